#pragma once
/// Finds stop strings in streamed text and holds back what may still become one.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// Text goes in piece by piece; out comes, as early as possible, everything that can no longer be
/// part of a stop string. Only a tail that is a proper prefix of some stop string is held back.
class StopMatcher {
 public:
  StopMatcher() = default;

  /// @param stops        non-empty strings.
  /// @param include_stop whether the matched string is part of the released text.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  struct Result {
    std::string text;      ///< released now
    bool stopped = false;  ///< a stop string was found: `text` ends before it, or with it
    std::string stop{};    ///< the one that was found
  };

  /// Without any, all that is pushed comes out at once.
  [[nodiscard]] bool has_stops() const { return !stops_.empty(); }

  /// Adds `piece`, in which a stop string may end. Of several that do the one that begins first
  /// counts, and of those the first in the list.
  [[nodiscard]] Result push(std::string_view piece);

  /// Adds `piece`, in which no stop string may end; one that begins in it may end in a later piece.
  [[nodiscard]] std::string pass(std::string_view piece);

  /// Releases what is held back: the text ends here.
  [[nodiscard]] std::string flush();

 private:
  /// Length of the longest tail that is a proper prefix of a stop string.
  [[nodiscard]] std::size_t held_back() const;

  std::string release(std::size_t count);

  std::vector<std::string> stops_;
  bool include_stop_ = false;
  std::string pending_;
  std::size_t num_passed_ = 0;  // of pending_: bytes in which no stop string ends
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <utility>

namespace nanovllm {

NANOVLLM_INLINE StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {}

NANOVLLM_INLINE StopMatcher::Result StopMatcher::push(std::string_view piece) {
  pending_ += piece;
  std::size_t first = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const std::size_t at =
        pending_.find(stop, num_passed_ < stop.size() ? 0 : num_passed_ - stop.size() + 1);
    if (at < first) {
      first = at;
      found = &stop;
    }
  }
  if (found != nullptr) return {release(first + (include_stop_ ? found->size() : 0)), true, *found};
  return {release(pending_.size() - held_back())};
}

NANOVLLM_INLINE std::string StopMatcher::pass(std::string_view piece) {
  pending_ += piece;
  num_passed_ = pending_.size();
  return release(pending_.size() - held_back());
}

NANOVLLM_INLINE std::string StopMatcher::flush() { return release(pending_.size()); }

NANOVLLM_INLINE std::size_t StopMatcher::held_back() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > longest; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

NANOVLLM_INLINE std::string StopMatcher::release(std::size_t count) {
  std::string out = pending_.substr(0, count);
  pending_.erase(0, count);
  num_passed_ -= std::min(num_passed_, count);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
