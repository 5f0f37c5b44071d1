#pragma once
/// The sum of one vector over all ranks, as a step of a kernel: in ascending rank order, in
/// float32, rounded once. All ranks get the same bits, and the same ones however it is sent.
///
///   one-shot   everybody sends its vector to everybody, and everybody adds: one way through the
///              links, size - 1 vectors out and in
///   two-shot   everybody sends its vector to the one that owns it, which adds and sends the sum to
///              everybody: two ways, and at most 2 · (size - 1) / size vectors on average
///
/// With two ranks both send as much, so that one-shot is better; with more, two-shot is for sums
/// whose bytes take longer than a way. See peer_view.cuh for why neither needs fences.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/parallel/peer/peer_view.cuh"

namespace nanovllm::peer {

/// How the ranks exchange what they add.
enum class Shots : std::uint8_t { one, two };

/// What a thread gets of vector `index` of this rank's buffer.
/// @tparam kMost  ranks of the largest group that the kernel is for
template <class T, int kMost>
class Exchange {
 public:
  static constexpr int kSize = cuda::kVecSize<T>;

  /// `owner` is the rank that adds in two shots; the same on all ranks.
  __device__ __forceinline__ Exchange(const View& view, const Call& call, Shots shots, int owner,
                                      std::uint32_t index)
      : view_(view), call_(call.number), shots_(shots), owner_(owner), index_(index) {}

  /// Sends this rank's vector to those that add it.
  __device__ __forceinline__ void send(uint4 own) const {
    const uint4 sent = sendable(own);
    if (shots_ == Shots::two) {
      if (owner_ != view_.rank) store_relaxed(view_.place(call_, view_.rank, owner_, index_), sent);
    } else {
      send_to_others(sent);
    }
  }

  /// Waits for the sum. Behind `send`.
  [[nodiscard]] __device__ __forceinline__ uint4 receive(uint4 own, Patience& patience) const {
    if (shots_ == Shots::one) return sum_of_all(own, patience);
    if (owner_ == view_.rank) {
      const uint4 sum = sum_of_all(own, patience);
      send_to_others(sendable(sum));  // which is `sum`, unless the group has ended
      return sum;
    }
    void* const place = view_.place(call_, owner_, view_.rank, index_);
    uint4 sum = load_relaxed(place);
    while (!is_here(sum) && patience.goes_on()) sum = load_relaxed(place);
    clear(place);
    return sum;
  }

  /// Waits for the vectors of all ranks in one shot, and calls visit(rank, vector) in rank order.
  template <class Visit>
  __device__ __forceinline__ void receive_each(uint4 own, Patience& patience,
                                               const Visit& visit) const {
    uint4 parts[kMost];
    const auto comes = [&](int r) { return r < view_.size && r != view_.rank; };
    const auto place = [&](int r) { return view_.place(call_, r, view_.rank, index_); };
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (comes(r)) parts[r] = load_relaxed(place(r));
    }
    for (bool complete = false; !complete;) {
      complete = true;
#pragma unroll
      for (int r = 0; r < kMost; ++r) {
        if (!comes(r) || is_here(parts[r])) continue;
        complete = false;
        parts[r] = load_relaxed(place(r));
      }
      if (!complete && !patience.goes_on()) break;
    }
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= view_.size) continue;
      if (r != view_.rank) clear(place(r));
      visit(r, r == view_.rank ? own : parts[r]);
    }
  }

 private:
  __device__ __forceinline__ static void clear(void* place) {
    store_relaxed(place, {kNotHere, kNotHere, kNotHere, kNotHere});
  }

  __device__ __forceinline__ void send_to_others(uint4 sent) const {
#pragma unroll
    for (int i = 1; i < kMost; ++i) {
      // Every rank begins with the one behind it, so that no link is asked by all at once.
      const int to = view_.rank + i < view_.size ? view_.rank + i : view_.rank + i - view_.size;
      if (i < view_.size) store_relaxed(view_.place(call_, view_.rank, to, index_), sent);
    }
  }

  [[nodiscard]] __device__ __forceinline__ uint4 sum_of_all(uint4 own, Patience& patience) const {
    float sum[kSize] = {};
    receive_each(own, patience, [&](int, uint4 vector) {
      float part[kSize];
      cuda::unpack<T>(vector, part);
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum[i] = __fadd_rn(sum[i], part[i]);
    });
    return cuda::pack<T>(sum);
  }

  const View& view_;
  const std::uint32_t call_;
  const Shots shots_;
  const int owner_;
  const std::uint32_t index_;
};

/// Calls `body.operator()<kMost>()` for a group of `size` ranks.
template <class Body>
void with_most_ranks(int size, const Body& body) {
  if (size <= 2) return body.template operator()<2>();
  if (size <= 4) return body.template operator()<4>();
  body.template operator()<kMaxRanks>();
}

}  // namespace nanovllm::peer
