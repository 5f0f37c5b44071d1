#pragma once
/// How the decode kernel puts together items that several warps have shared: within a block through
/// shared memory, between blocks through the workspace. `kernel.cuh` has the whole picture.
///
/// Blocks share an item in ascending order; the one that has seen its last tile collects the parts
/// of those before it. A part needs neither counter nor fence: the workspace is full of
/// `kDecodeEmptyWord`, a NaN that no part contains, so the collector reads a word until it is
/// another, and puts `kDecodeEmptyWord` back for the next kernel. Blocks wait for blocks of lower
/// index only, and after they have given away what others wait for; so none waits for ever as long
/// as the blocks of the grid are resident together (one an SM) or start in the order of their
/// indices. Where a part never comes, because the plan was for other lengths, the collector ends
/// the kernel by a trap. It goes by the clock: under a debugger or a sanitizer a part may take any
/// number of looks.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/tile/exp2.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

/// Four columns of one head, and the maximum and sum of weights that belong to them.
struct DecodePart {
  float4 out = {0.f, 0.f, 0.f, 0.f};
  float max = -INFINITY, sum = 0.f;
};

/// Parts that are merged at once: their loads are under way together.
inline constexpr int kPartsAtOnce = 8;

/// Adds parts to `total`, in order.
__device__ __forceinline__ void add_parts(DecodePart& total, DecodePart (&parts)[kPartsAtOnce]) {
  const auto scale_by = [](float factor, DecodePart& part) {
    part.out.x *= factor, part.out.y *= factor, part.out.z *= factor, part.out.w *= factor;
    part.sum *= factor;
  };
  float max = total.max;
#pragma unroll
  for (const DecodePart& part : parts) max = fmaxf(max, part.max);
  scale_by(exp2_approx(total.max - max), total);
  total.max = max;
#pragma unroll
  for (DecodePart& part : parts) {
    scale_by(exp2_approx(part.max - max), part);
    total.out.x += part.out.x, total.out.y += part.out.y;
    total.out.z += part.out.z, total.out.w += part.out.w;
    total.sum += part.sum;
  }
}

// ---- Between blocks ----

/// Writes words that another block reads. A word that happens to be `kDecodeEmptyWord` becomes
/// another NaN.
__device__ __forceinline__ void publish(float* to, float4 value) {
  const auto word = [](float x) {
    const unsigned bits = __float_as_uint(x);
    return bits == kDecodeEmptyWord ? 0x7fffffffu : bits;
  };
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(word(value.x)), "r"(word(value.y)),
                 "r"(word(value.z)), "r"(word(value.w))
               : "memory");
}

/// Reads words that another block writes, as they are now.
__device__ __forceinline__ float4 peek(const float* from) {
  float4 out;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return out;
}

__device__ __forceinline__ bool is_complete(float4 words) {
  return (__float_as_uint(words.x) != kDecodeEmptyWord) &
         (__float_as_uint(words.y) != kDecodeEmptyWord) &
         (__float_as_uint(words.z) != kDecodeEmptyWord) &
         (__float_as_uint(words.w) != kDecodeEmptyWord);
}

/// Where the workspace keeps a block's part of an item that blocks before it began (side 0), or
/// that it began itself (side 1): [group][kPartFloats].
template <class Traits, class T>
__device__ __forceinline__ float* partial_at(const DecodeProblem<T>& problem, int block, int side) {
  return problem.partials + (std::int64_t{2} * block + side) * problem.group * Traits::kPartFloats;
}

/// Global time in units of 2³² ns (4.3 s).
__device__ __forceinline__ unsigned coarse_time() {
  unsigned out;
  asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(out));
  return out;
}

/// How long a collector waits for a part, in units of `coarse_time`: half a minute.
inline constexpr unsigned kDecodePatience = 7;

/// Looks at a part, some milliseconds, before the clock is read: a part is mostly there sooner.
inline constexpr unsigned kLooksPerTime = 4096;

/// Adds to `total` the parts of blocks [first, end) of one item, waiting for them.
template <class Traits, class T>
__device__ __forceinline__ void add_blocks(const DecodeProblem<T>& problem, int first, int end,
                                           int head, int column, DecodePart& total) {
#pragma unroll 1
  for (int base = first; base < end; base += kPartsAtOnce) {
    DecodePart parts[kPartsAtOnce];
    float4 softmax[kPartsAtOnce];
    unsigned begin = 0;  // of the wait, where it is a long one
    bool complete = false;
    for (unsigned looks = 1; !complete; ++looks) {
      if (looks % kLooksPerTime == 0) {
        const unsigned now = coarse_time();
        if (looks == kLooksPerTime) begin = now;
        if (now - begin > kDecodePatience) __trap();
      }
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; ++i) {
        if (base + i >= end) continue;
        const float* const row = partial_at<Traits>(problem, base + i, base + i == first ? 1 : 0) +
                                 head * Traits::kPartFloats;
        parts[i].out = peek(row + column);
        softmax[i] = peek(row + Traits::kHeadDim);
      }
      complete = true;
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; ++i) {
        if (base + i >= end) continue;
        complete &= is_complete(parts[i].out) & is_complete(softmax[i]);
        parts[i].max = softmax[i].x, parts[i].sum = softmax[i].y;
      }
    }
    add_parts(total, parts);
  }
}

/// Makes the parts of blocks [first, end) of one item empty again. All threads of the block.
template <class Traits, class T>
__device__ __forceinline__ void clear_blocks(const DecodeProblem<T>& problem, int first, int end) {
  const float none = __uint_as_float(kDecodeEmptyWord);
  const int words = problem.group * Traits::kPartFloats;
  for (int block = first; block < end; ++block) {
    float* const part = partial_at<Traits>(problem, block, block == first ? 1 : 0);
    for (int i = static_cast<int>(threadIdx.x) * 4; i < words; i += Traits::kThreads * 4)
      *reinterpret_cast<float4*>(part + i) = {none, none, none, none};
  }
}

// ---- Within a block ----

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

/// Neighbouring slots that belong to one item: slot `begin`, then slots 0 of the warps after it.
struct DecodeRun {
  unsigned slots;  ///< bit i: slot i belongs to it
  int begin, num_warps;

  /// The slot of its i-th warp, or -1 if that had no tile.
  __device__ __forceinline__ int slot(int i) const {
    const int out = i == 0 ? begin : (begin / 2 + i) * 2;
    return (slots >> out & 1) != 0 ? out : -1;
  }
};

/// Four columns of a head from a run's parts.
template <class Traits, class SlotMemory>
__device__ __forceinline__ DecodePart merge_run(const DecodeRun& run, int head, int column,
                                                const SlotMemory& slot_memory) {
  static_assert(Traits::kWarps <= kPartsAtOnce);
  DecodePart parts[kPartsAtOnce], total;
#pragma unroll
  for (int i = 0; i < kPartsAtOnce; ++i) {
    const int slot = i < run.num_warps ? run.slot(i) : -1;
    if (slot < 0) continue;
    const float* const row = slot_memory(slot) + head * Traits::kPartFloats;
    parts[i].out = *reinterpret_cast<const float4*>(row + column);
    const float2 softmax = *reinterpret_cast<const float2*>(row + Traits::kHeadDim);
    parts[i].max = softmax.x, parts[i].sum = softmax.y;
  }
  add_parts(total, parts);
  return total;
}

/// Merges what the warps of the block have left unfinished. `slots` holds two a warp;
/// `slot_memory(i)` is where slot i's part lies. `opening_block` is the first that has a part of
/// the block's first item. All threads of the block.
template <class Traits, class T, class SlotMemory>
__device__ __forceinline__ void merge_slots(const DecodeProblem<T>& problem,
                                            const DecodeSlot* slots, int opening_block,
                                            const SlotMemory& slot_memory) {
  constexpr int kColumns = Traits::kHeadDim / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, block = static_cast<int>(blockIdx.x);
  const DecodeSlot mine = lane < 2 * Traits::kWarps ? slots[lane] : DecodeSlot{-1, false, false};
  // The last item first: other blocks may wait for it, and this one for them in its first.
  for (unsigned left = __ballot_sync(~0u, mine.item >= 0); left != 0;) {
    const int last = 31 - __clz(static_cast<int>(left));
    const int item = __shfl_sync(~0u, mine.item, last);
    DecodeRun run;
    run.slots = __ballot_sync(~0u, mine.item == item);
    run.begin = __ffs(static_cast<int>(run.slots)) - 1;
    run.num_warps = last / 2 - run.begin / 2 + 1;
    left &= ~run.slots;
    const bool has_first = __shfl_sync(~0u, mine.has_first, run.begin);
    const bool has_last = __shfl_sync(~0u, mine.has_last, last);
    float* const partial = partial_at<Traits>(problem, block, has_first ? 1 : 0);
    for (int i = static_cast<int>(threadIdx.x); i < problem.group * kColumns;
         i += Traits::kThreads) {
      const int head = i / kColumns, column = i % kColumns * 4;
      DecodePart part = merge_run<Traits>(run, head, column, slot_memory);
      if (has_last) {
        if (!has_first) add_blocks<Traits>(problem, opening_block, block, head, column, part);
        store_columns(problem, item, head, column, part);
      } else {
        float* const row = partial + head * Traits::kPartFloats;
        publish(row + column, part.out);
        if (column == 0) publish(row + Traits::kHeadDim, {part.max, part.sum, 0.f, 0.f});
      }
    }
    if (has_last && !has_first) {
      __syncthreads();  // all have been read
      clear_blocks<Traits>(problem, opening_block, block);
    }
  }
}

}  // namespace nanovllm::cuda::detail
