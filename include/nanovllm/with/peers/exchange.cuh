#pragma once
/// How ranks exchange vectors through the memory of peers; and `all_gather_columns`, which is
/// nothing else.
///
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
///
///   whole[i, rank · width + j] = part of rank [i, j]
///
/// part [n, width] and whole [n, size · width] of any stride. Values arrive as they are, but for
/// NaNs whose bits look like a word that has not arrived: they are other NaNs. Units and blocks are
/// those of sum.cuh. Bytes over links: (size - 1) · n · width · sizeof(T) out and in.
/// Measured: peer_sum_bench, cuda_tp2_h200.json, logits over two GPUs 11.2 us by NCCL to 3.3 (1
/// row), 127 to 68 (64), 429 to 272 (256).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/peers/peer_view.cuh"

namespace nanovllm::peer {

/// How the ranks exchange what they add.
enum class Shots : std::uint8_t { one, two };

/// How a sum runs.
struct Launch {
  Shots shots = Shots::one;
  unsigned max_blocks = 1u << 20;
};

/// What a thread does with vector `index` of this rank's place in the buffers.
/// @tparam kMost  ranks of the largest group that the kernel is for
template <class T, int kMost, Shots kShots>
class Exchange {
 public:
  static constexpr int kSize = cuda::kVecSize<T>;

  /// `unit` says which rank adds in two shots.
  __device__ __forceinline__ Exchange(const View& view, const Call& call, std::uint32_t unit,
                                      std::uint32_t index)
      : view_(view),
        sent_at_(view.offset(call.number, view.rank, index)),
        first_(view.buffers[view.rank] + view.offset(call.number, 0, index)) {
    if constexpr (kShots == Shots::two)
      owner_ = static_cast<int>(unit % static_cast<std::uint32_t>(view.size));
  }

  /// Sends this rank's vector to those that add it. Not once the group has ended: then the others
  /// must not take garbage for a sum.
  __device__ __forceinline__ void send(uint4 own) const {
    const uint4 sent = sendable(own);
    if constexpr (kShots == Shots::two) {
      if (owner_ != view_.rank) store_relaxed(view_.buffers[owner_] + sent_at_, sent);
    } else {
      send_to_others(sent);
    }
  }

  /// Waits for the sum. After `send`.
  [[nodiscard]] __device__ __forceinline__ uint4 receive(uint4 own, Patience& patience) const {
    if constexpr (kShots == Shots::one) {
      return sum_of_all(own, patience);
    } else if (owner_ == view_.rank) {
      const uint4 sum = sum_of_all(own, patience);
      if (!patience.has_ended()) send_to_others(sendable(sum));
      return sum;
    } else {
      void* const place = place_of(owner_);
      uint4 sum = load_relaxed(place);
      while (!is_here(sum) && patience.goes_on()) sum = load_relaxed(place);
      clear(place);
      return sum;
    }
  }

  /// Waits for the vectors of all ranks in one shot, and calls visit(rank, vector) in rank order.
  template <class Visit>
  __device__ __forceinline__ void receive_each(uint4 own, Patience& patience,
                                               const Visit& visit) const {
    uint4 parts[kMost];
    const auto comes = [&](int r) { return r < view_.size && r != view_.rank; };
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (comes(r)) parts[r] = load_relaxed(place_of(r));
    }
    for (bool complete = false; !complete;) {
      complete = true;
#pragma unroll
      for (int r = 0; r < kMost; ++r) {
        if (!comes(r) || is_here(parts[r])) continue;
        complete = false;
        parts[r] = load_relaxed(place_of(r));
      }
      if (!complete && !patience.goes_on()) break;
    }
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= view_.size) continue;
      if (r != view_.rank) clear(place_of(r));
      visit(r, r == view_.rank ? own : parts[r]);
    }
  }

 private:
  /// Where what rank r sends to this rank comes.
  [[nodiscard]] __device__ __forceinline__ void* place_of(int r) const {
    return first_ + static_cast<std::size_t>(r) * view_.bytes_of_a_rank();
  }

  __device__ __forceinline__ static void clear(void* place) {
    store_relaxed(place, {kNotHere, kNotHere, kNotHere, kNotHere});
  }

  __device__ __forceinline__ void send_to_others(uint4 sent) const {
#pragma unroll
    for (int i = 1; i < kMost; ++i) {
      // Every rank begins with the one after it, so that no link is asked by all at once.
      const int to = view_.rank + i < view_.size ? view_.rank + i : view_.rank + i - view_.size;
      if (i < view_.size) store_relaxed(view_.buffers[to] + sent_at_, sent);
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
  const std::size_t sent_at_;  // in the buffers of others
  std::byte* const first_;     // of what comes from rank 0
  int owner_ = 0;
};

/// Calls `body.operator()<kMost>()`, kMost ≥ `size`.
template <class Body>
void with_most_ranks(int size, const Body& body) {
  if (size <= 2) return body.template operator()<2>();
  if (size <= 4) return body.template operator()<4>();
  body.template operator()<kMaxRanks>();
}

/// Vectors of a unit of a gather.
inline constexpr int kGatherThreads = 256;

template <class T>
struct GatherProblem {
  View view;
  MatrixView<const T> part;
  MatrixView<T> whole;
  cuda::RowVectors vectors;  ///< of `part`
};

template <class T, int kMost, bool kWhole>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const __grid_constant__ GatherProblem<T> problem) {
  const View& view = problem.view;
  cuda::grid_dependency_wait();
  cuda::grid_dependency_launch();
  const Call call = begin_call(view);
  Patience patience(view);
  const std::int64_t width = problem.part.extent(1);
  const std::uint32_t num_units = ceil_div(problem.vectors.total, std::uint32_t{kGatherThreads});
  for (std::uint32_t unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
    const std::uint32_t index = unit * kGatherThreads + threadIdx.x;
    const bool exists = index < problem.vectors.total;
    const auto place = problem.vectors.template place<cuda::kVecSize<T>>(exists ? index : 0);
    T* const to = problem.whole.at(place.row, place.column);
    const Exchange<T, kMost, Shots::one> exchange(view, call, unit, index);
    uint4 own{};
    if (exists) {
      own = cuda::load_first<kWhole>(problem.part.at(place.row, place.column), place.count);
      if (!call.has_ended) exchange.send(own);
    }
    if (unit == blockIdx.x && count_call(view, call)) patience.end();
    if (!exists) continue;
    exchange.receive_each(sendable(own), patience, [&](int rank, uint4 vector) {
      cuda::store_first<kWhole>(to + rank * width, place.count, vector);
    });
  }
}

/// See the head of this file. The vectors of 16 bytes of `part`, each row rounded up to whole ones,
/// must fit in a slot.
template <Element T>
void all_gather_columns(const View& view, MatrixView<const T> part, MatrixView<T> whole,
                        const cuda::Context& context, unsigned max_blocks = Launch{}.max_blocks) {
  if (part.empty()) return;
  const auto vectors =
      cuda::RowVectors::of<T>("all_gather_columns", part.extent(0), part.extent(1));
  const GatherProblem<T> problem{view, part, whole, vectors};
  const unsigned grid =
      std::min(ceil_div(vectors.total, std::uint32_t{kGatherThreads}), max_blocks);
  with_most_ranks(view.size, [&]<int kMost>() {
    const cuda::LaunchConfig config{.grid = grid, .block = kGatherThreads};
    if (cuda::has_whole_rows(part) && cuda::has_whole_rows(whole)) {
      cuda::launch(gather_kernel<T, kMost, true>, config, context, problem);
    } else {
      cuda::launch(gather_kernel<T, kMost, false>, config, context, problem);
    }
  });
}

}  // namespace nanovllm::peer
