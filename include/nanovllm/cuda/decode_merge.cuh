#pragma once
/// How the decode kernel puts together items that several warps have shared: within a block through
/// shared memory, between blocks through the workspace. `decode_kernel.cuh` has the whole picture.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/cuda/decode_plan.cuh"
#include "nanovllm/cuda/decode_tile.cuh"
#include "nanovllm/cuda/mma.cuh"

namespace nanovllm::cuda::detail {

/// Four columns of one head, and the maximum and sum of weights that belong to them.
struct DecodePart {
  float4 out = {0.f, 0.f, 0.f, 0.f};
  float max = -INFINITY, sum = 0.f;
};

/// Merges parts 0 … count - 1, in that order; `read(i)` gives part i, or one without keys. Reads
/// several at once, to wait for memory once.
template <class Read>
__device__ __forceinline__ DecodePart merge_parts(int count, const Read& read) {
  constexpr int kAtOnce = 8;
  DecodePart total;
  for (int base = 0; base < count; base += kAtOnce) {
    DecodePart parts[kAtOnce];
    float max = total.max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i < count) parts[i] = read(base + i);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) max = fmaxf(max, parts[i].max);
    const auto scale_by = [](float factor, DecodePart& part) {
      part.out.x *= factor, part.out.y *= factor, part.out.z *= factor, part.out.w *= factor;
      part.sum *= factor;
    };
    scale_by(exp2_approx(total.max - max), total);
    total.max = max;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      scale_by(exp2_approx(parts[i].max - max), parts[i]);
      total.out.x += parts[i].out.x, total.out.y += parts[i].out.y;
      total.out.z += parts[i].out.z, total.out.w += parts[i].out.w;
      total.sum += parts[i].sum;
    }
  }
  return total;
}

/// Where parts lie: in shared memory, or in global memory that other blocks wrote, which is read
/// past L1.
enum class PartPlace { shared, global };

/// Merges `count` parts of an item and gives the results to `write(head, column, part)`, four
/// columns at a time, all threads of the block together. `part(i)` is where part i lies,
/// [group][kPartFloats], or null if it has no keys.
template <class Traits, PartPlace kPlace, class PartAt, class Write>
__device__ __forceinline__ void merge_item(int count, int group, const PartAt& part_at,
                                           const Write& write) {
  constexpr int kColumns = Traits::kHeadDim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < group * kColumns; i += Traits::kThreads) {
    const int head = i / kColumns, column = i % kColumns * 4;
    write(head, column, merge_parts(count, [&](int index) {
            DecodePart out;
            const float* row = part_at(index);
            if (row == nullptr) return out;
            row += head * Traits::kPartFloats;
            const auto* const columns = reinterpret_cast<const float4*>(row + column);
            const auto* const softmax = reinterpret_cast<const float2*>(row + Traits::kHeadDim);
            out.out = kPlace == PartPlace::shared ? *columns : __ldcg(columns);
            const float2 max_sum = kPlace == PartPlace::shared ? *softmax : __ldcg(softmax);
            out.max = max_sum.x, out.sum = max_sum.y;
            return out;
          }));
  }
}

/// Writes four columns of a head, divided by the sum of weights.
template <class T>
__device__ __forceinline__ void store_columns(const DecodeProblem<T>& problem, int item, int head,
                                              int column, const DecodePart& part) {
  const int sequence = item / problem.num_kv_heads, kv_head = item % problem.num_kv_heads;
  T* const to = problem.out + sequence * problem.out_stride +
                (kv_head * problem.group + head) * problem.out_head_stride + column;
  const float scale = 1.f / part.sum;
  *reinterpret_cast<uint2*>(to) = {pack_pair<T>(part.out.x * scale, part.out.y * scale),
                                   pack_pair<T>(part.out.z * scale, part.out.w * scale)};
}

/// The unfinished items of a block, found among its warps' slots.
struct DecodeShared {
  int opening_item = -1;  ///< blocks before this one began it
  int closing_item = -1;  ///< this block began it, blocks after it go on
};

/// Where the workspace keeps a block's part of its opening item (side 0) or closing item (side 1).
template <class Traits, class T>
__device__ __forceinline__ float* partial_at(const DecodeProblem<T>& problem, int block, int side) {
  return problem.partials + (std::int64_t{2} * block + side) * problem.group * Traits::kPartFloats;
}

/// Merges what the warps of the block have left unfinished. Neighbouring slots with one item belong
/// together; items complete now are written, the others go to the workspace. `slots` holds two a
/// warp; `slot_memory(i)` is where slot i's part lies.
template <class Traits, class T, class SlotMemory>
__device__ __forceinline__ DecodeShared merge_warps(const DecodeProblem<T>& problem,
                                                    const DecodeSlot* slots,
                                                    const SlotMemory& slot_memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const DecodeSlot mine = lane < 2 * Traits::kWarps ? slots[lane] : DecodeSlot{-1, false, false};
  DecodeShared shared;
  for (unsigned left = __ballot_sync(~0u, mine.item >= 0); left != 0;) {
    const int begin = __ffs(static_cast<int>(left)) - 1;
    const int item = __shfl_sync(~0u, mine.item, begin);
    const unsigned run = __ballot_sync(~0u, mine.item == item);
    const int last = 31 - __clz(static_cast<int>(run));
    left &= ~run;
    const bool has_first = __shfl_sync(~0u, mine.has_first, begin);
    const bool has_last = __shfl_sync(~0u, mine.has_last, last);
    if (!has_first) shared.opening_item = item;
    if (has_first && !has_last) shared.closing_item = item;
    float* const partial =
        partial_at<Traits>(problem, static_cast<int>(blockIdx.x), has_first ? 1 : 0);
    merge_item<Traits, PartPlace::shared>(
        last / 2 - begin / 2 + 1, problem.group,
        [&](int i) -> const float* {
          // After the first part, every part is one that its warp did not begin.
          const int slot = i == 0 ? begin : (begin / 2 + i) * 2;
          return (run >> slot & 1) != 0 ? slot_memory(slot) : nullptr;
        },
        [&](int head, int column, const DecodePart& part) {
          if (has_first && has_last) {
            store_columns(problem, item, head, column, part);
            return;
          }
          float* const row = partial + head * Traits::kPartFloats;
          *reinterpret_cast<float4*>(row + column) = part.out;
          if (column == 0)
            *reinterpret_cast<float2*>(row + Traits::kHeadDim) = {part.max, part.sum};
        });
  }
  return shared;
}

/// Counts a block in at `counter`; true for the last of `parts` blocks, for which the writes of the
/// others are visible then. The counter is zero again afterwards.
__device__ __forceinline__ bool arrive_last(unsigned* counter, int parts) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter)), "r"(parts - 1)
               : "memory");
  return before == static_cast<unsigned>(parts - 1);
}

/// Merges the items that the block shares with others, if it is the last to finish its part.
template <class Traits, class T>
__device__ __forceinline__ void merge_blocks(const DecodeProblem<T>& problem,
                                             const DecodeRange& range, const DecodeShared& shared) {
  if (range.opening_parts == 0 && range.closing_parts == 0) return;
  __syncthreads();  // the block's parts are written
  const int block = static_cast<int>(blockIdx.x);
  bool last = false;
  if (threadIdx.x == 0 && range.opening_parts > 0)
    last = arrive_last(problem.counters + range.opening_block, range.opening_parts);
  if (threadIdx.x == 32 && range.closing_parts > 0)
    last = arrive_last(problem.counters + block, range.closing_parts);
  const bool last_of_opening = __syncthreads_or(threadIdx.x == 0 && last);
  const bool last_of_closing = __syncthreads_or(threadIdx.x == 32 && last);
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    const bool opening = side == 0;
    if (!(opening ? last_of_opening : last_of_closing)) continue;
    const int first_block = opening ? range.opening_block : block;
    const int item = opening ? shared.opening_item : shared.closing_item;
    merge_item<Traits, PartPlace::global>(
        opening ? range.opening_parts : range.closing_parts, problem.group,
        [&](int i) { return partial_at<Traits>(problem, first_block + i, i == 0 ? 1 : 0); },
        [&](int head, int column, const DecodePart& part) {
          store_columns(problem, item, head, column, part);
        });
  }
}

}  // namespace nanovllm::cuda::detail
