#pragma once
/// A bound on the bodies that all requests have in memory together.

#include <atomic>
#include <cstddef>

namespace nanovllm::examples {

/// What the bodies take. Thread-safe.
class BodyMemory {
 public:
  explicit BodyMemory(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Counts `bytes` more, if they fit.
  [[nodiscard]] bool add(std::size_t bytes) {
    const std::size_t before = bytes_.fetch_add(bytes);
    if (before + bytes <= max_bytes_) return true;
    bytes_.fetch_sub(bytes);
    return false;
  }
  void remove(std::size_t bytes) { bytes_.fetch_sub(bytes); }

 private:
  const std::size_t max_bytes_;
  std::atomic<std::size_t> bytes_ = 0;
};

/// One request's share, as long as this lives or until `release`. The first `kFree` bytes of a body
/// do not count, so that small requests are served while large ones take all there is; there are no
/// more of them than connections.
class BodyShare {
 public:
  static constexpr std::size_t kFree = 64 * 1024;

  explicit BodyShare(BodyMemory& memory) : memory_(memory) {}
  ~BodyShare() { release(); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  /// The body has `size` bytes so far, no fewer than before. Returns whether there is room for
  /// them.
  [[nodiscard]] bool grow_to(std::size_t size) {
    if (size <= kFree + held_) return true;
    const std::size_t more = size - kFree - held_;
    if (!memory_.add(more)) return false;
    held_ += more;
    return true;
  }

  void release() {
    memory_.remove(held_);
    held_ = 0;
  }

 private:
  BodyMemory& memory_;
  std::size_t held_ = 0;
};

}  // namespace nanovllm::examples
