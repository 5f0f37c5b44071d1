#pragma once
/// How many sums of `CopiedSums` the ranks of a process have begun. For the host.
///
/// A kernel that waits for a copy is launched once the other rank has enqueued that copy. So it
/// does not matter whether a CUDA call of the other rank waits for this device: the first launch
/// of a kernel may do so, since it loads code. Source: CUDA Programming Guide, "Lazy Loading",
/// "Concurrent Execution". It is a precaution: on H200s no call was seen to wait. Ranks in
/// processes do without.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "nanovllm/parallel/backoff.hpp"

namespace nanovllm::peer {

class BegunSums {
 public:
  /// Of `rank`, none yet. Before the ranks meet.
  void reset(int rank) { of(rank).store(0, std::memory_order_relaxed); }
  /// The copies of one more sum of `rank` are enqueued.
  void count(int rank) { of(rank).fetch_add(1, std::memory_order_release); }

  /// Returns once `rank` has begun more than `before` sums, or false if it has not within `limit`
  /// seconds. Meanwhile calls check(), which may throw.
  template <class Check>
  [[nodiscard]] bool wait(int rank, std::uint64_t before, double limit, const Check& check) const {
    if (has_begun(rank, before)) return true;
    const Backoff backoff(kLongestPause);
    while (!has_begun(rank, before)) {
      if (backoff.waited() > std::chrono::duration<double>(limit)) return false;
      check();
      backoff.pause();
    }
    return true;
  }

 private:
  static constexpr Backoff::Duration kLongestPause{50};

  [[nodiscard]] bool has_begun(int rank, std::uint64_t before) const {
    return numbers_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire) > before;
  }
  [[nodiscard]] std::atomic<std::uint64_t>& of(int rank) {
    return numbers_[static_cast<std::size_t>(rank)];
  }

  std::array<std::atomic<std::uint64_t>, 2> numbers_{};  // such sums are of two ranks
};

}  // namespace nanovllm::peer
