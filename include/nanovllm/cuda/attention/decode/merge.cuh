#pragma once
/// How the decode kernel puts together items that several warps have shared: within a block through
/// shared memory, between blocks through the workspace. `kernel.cuh` has the whole picture.
///
/// Blocks share an item in ascending order; the one that has seen its last tile collects the parts
/// of those before it (`exchange.cuh`), and the pieces of what it shares with other sequences
/// (`shared.cuh`). Blocks wait for blocks of lower index only, and after they have given away what
/// others wait for; so none waits for ever as long as the blocks of the grid are resident together
/// (one an SM) or start in the order of their indices.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/cuda/attention/decode/exchange.cuh"
#include "nanovllm/cuda/attention/decode/shared.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

// ---- Between blocks ----

/// Where the workspace keeps a block's part of an item that blocks before it began (side 0), or
/// that it began itself (side 1): [group][kPartFloats].
template <class Traits, class T>
__device__ __forceinline__ float* partial_at(const DecodeProblem<T>& problem, int block, int side) {
  return problem.partials + (std::int64_t{2} * block + side) * problem.group * Traits::kPartFloats;
}

/// Adds to `total` the parts of blocks [first, end) of one item, waiting for them.
template <class Traits, class T>
__device__ __forceinline__ void add_blocks(const DecodeProblem<T>& problem, int first, int end,
                                           int head, int column, DecodePart& total) {
#pragma unroll 1
  for (int base = first; base < end; base += kPartsAtOnce) {
    DecodePart parts[kPartsAtOnce];
    float4 softmax[kPartsAtOnce];
    Patience patience;
    for (bool complete = false; !complete; patience.look()) {
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

/// What the warps of the block have left unfinished: `slots`, two a warp, by items.
template <class Traits>
struct DecodeLeftovers {
  DecodeSlot mine;  ///< of the lane

  __device__ __forceinline__ explicit DecodeLeftovers(const DecodeSlot* slots)
      : mine{-1, false, false, false} {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < 2 * Traits::kWarps) mine = slots[lane];
  }

  /// One item of the block.
  struct Item {
    DecodeRun run;
    int item;  ///< sequence · kv heads + kv head
    bool has_first, has_last, is_member;
  };

  /// Calls visit(item) for each, the last first. All threads of the block.
  template <class Visit>
  __device__ __forceinline__ void each_item(const Visit& visit) const {
    for (unsigned left = __ballot_sync(~0u, mine.item >= 0); left != 0;) {
      const int last = 31 - __clz(static_cast<int>(left));
      Item out;
      out.item = __shfl_sync(~0u, mine.item, last);
      out.run.slots = __ballot_sync(~0u, mine.item == out.item);
      out.run.begin = __ffs(static_cast<int>(out.run.slots)) - 1;
      out.run.num_warps = last / 2 - out.run.begin / 2 + 1;
      out.has_first = __shfl_sync(~0u, mine.has_first, out.run.begin);
      out.has_last = __shfl_sync(~0u, mine.has_last, last);
      out.is_member = __shfl_sync(~0u, mine.is_member, last);
      left &= ~out.run.slots;
      visit(out);
    }
  }
};

/// Merges what the warps of the block have left unfinished, as many items at a time as there are
/// threads for. `slots` holds two a warp; `slot_memory(i)` is where slot i's part lies.
/// `opening_block` is the first that has a part of the block's first item. All threads of the
/// block.
template <class Traits, bool kShares, class T, class SlotMemory>
__device__ __forceinline__ void merge_slots(const DecodeProblem<T>& problem,
                                            const DecodeSlot* slots, int opening_block,
                                            const SlotMemory& slot_memory) {
  constexpr int kColumns = Traits::kHeadDim / 4;
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int pieces = problem.group * kColumns;
  // Teams of 2^team_bits warps, so many that a thread has one piece of an item, where they suffice.
  const int team_bits = min(32 - __clz((pieces - 1) / 32), 31 - __clz(Traits::kWarps));
  const int team = 32 << team_bits, num_teams = Traits::kWarps >> team_bits;
  const DecodeLeftovers<Traits> leftovers(slots);
  using Item = typename DecodeLeftovers<Traits>::Item;
  const auto is_shared = [](const Item& item) { return kShares && item.is_member; };
  int turn = thread / 32 >> team_bits;
  bool takes_blocks = false, takes_pieces = false;  // of others, to be made empty again
  // The last item first: other blocks may wait for it, and this one for them in its first.
  leftovers.each_item([&](const Item& item) {
    takes_blocks |= item.has_last && !item.has_first;  // the block's first item alone
    takes_pieces |= item.has_last && is_shared(item);
    if (turn-- != 0) return;
    turn += num_teams;
    const int kv_head = item.item % problem.num_kv_heads;
    DecodeSpan span{};
    if (is_shared(item)) span = read_span(problem.plan.spans + item.item / problem.num_kv_heads);
    float* const partial = partial_at<Traits>(problem, block, item.has_first ? 1 : 0);
    for (int i = thread & (team - 1); i < pieces; i += team) {
      const int head = i / kColumns, column = i % kColumns * 4;
      DecodePart part = merge_run<Traits>(item.run, head, column, slot_memory);
      if (item.has_last) {
        if (!item.has_first) add_blocks<Traits>(problem, opening_block, block, head, column, part);
        if (is_shared(item)) add_pieces<Traits>(problem, span, kv_head, head, column, part);
        store_columns(problem, item.item, head, column, part);
      } else {
        float* const row = partial + head * Traits::kPartFloats;
        publish(row + column, part.out);
        if (column == 0) publish(row + Traits::kHeadDim, {part.max, part.sum, 0.f, 0.f});
      }
    }
  });
  if (!takes_blocks && !takes_pieces) return;
  __syncthreads();  // all have been read
  if (takes_blocks) clear_blocks<Traits>(problem, opening_block, block);
  if constexpr (kShares) {
    leftovers.each_item([&](const Item& item) {
      if (!item.has_last || !item.is_member) return;
      clear_pieces<Traits>(problem,
                           read_span(problem.plan.spans + item.item / problem.num_kv_heads),
                           item.item % problem.num_kv_heads);
    });
  }
}

}  // namespace nanovllm::cuda::detail
