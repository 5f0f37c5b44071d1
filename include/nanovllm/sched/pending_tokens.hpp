#pragma once
/// Tokens of a sequence that are yet to be drawn.

#include <array>
#include <cstdint>
#include <utility>

namespace nanovllm {

/// The samples that steps under way draw for one sequence: each a row of its own step's logits,
/// oldest first. There are at most two steps, and those of a step follow each other, so nothing
/// is allocated.
class PendingTokens {
 public:
  /// The newest step draws from rows [first, first + count) for the sequence.
  void push(std::int32_t first, std::int32_t count) {
    if (count == 0) return;
    (runs_[0].count == 0 ? runs_[0] : runs_[1]) = {first, count};
  }
  /// The samples of the oldest step that draws any are known.
  void pop_oldest() { runs_[0] = std::exchange(runs_[1], {}); }
  /// The newest step that draws any is taken back.
  void pop_newest() { (runs_[1].count == 0 ? runs_[0] : runs_[1]) = {}; }
  void clear() { runs_ = {}; }

  [[nodiscard]] bool empty() const { return runs_[0].count == 0; }
  [[nodiscard]] std::int32_t size() const { return runs_[0].count + runs_[1].count; }
  [[nodiscard]] std::int32_t operator[](std::int32_t i) const {
    return i < runs_[0].count ? runs_[0].first + i : runs_[1].first + (i - runs_[0].count);
  }

  friend bool operator==(const PendingTokens&, const PendingTokens&) = default;

 private:
  struct Run {
    std::int32_t first = 0, count = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };
  std::array<Run, 2> runs_{};
};

}  // namespace nanovllm
