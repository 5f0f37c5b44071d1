#pragma once
/// How the decode kernel reads keys that many sequences have in common once for all of them.
///
/// The members' query heads stand side by side as the columns of one product, up to 32, so that a
/// tile of keys is read once for 32 / group sequences. The queries lie in shared memory, for there
/// are too many for registers. Every warp that has tiles of an item leaves what it has found, a
/// 'piece', in the workspace; where a member has come to the end of its own keys, it takes in its
/// columns of the pieces of all groups that it is in, deepest first, and in ascending order of the
/// warps. As between blocks (`merge.cuh`) a piece needs neither counter nor fence: a word is there
/// when it is no longer `kDecodeEmptyWord`. Pieces are written before a warp reads for single
/// sequences, and nothing is waited for before that, so none waits for ever as long as all blocks
/// of the grid run at some time: it is one block an SM, and none of them keeps another from
/// running. Source: Ye et al., "Cascade Inference", 2024; Juravsky et al., "Hydragen", 2024.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/attention/decode/exchange.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/tile/exp2.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

// ---- Reading ----

/// Past L1: with an early start, L1 may be older than the plan.
__device__ __forceinline__ DecodeSharedRange read_shared_range(const DecodeSharedRange* range) {
  const auto* const words = reinterpret_cast<const int4*>(range);
  const int4 a = __ldcg(words);
  return {a.x, a.y, a.z, a.w, __ldcg(&range->num_tiles)};
}

__device__ __forceinline__ DecodeSpan read_span(const DecodeSpan* span) {
  const int4 a = __ldcg(reinterpret_cast<const int4*>(span));
  return {a.x, a.y, a.z, a.w};
}

__device__ __forceinline__ DecodeGroup read_group(const DecodeGroup* group) {
  const auto* const words = reinterpret_cast<const int4*>(group);
  const int4 a = __ldcg(words), b = __ldcg(words + 1), c = __ldcg(words + 2);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, 0};
}

/// One item of a group, in the list of what groups read: some of its members, and a kv head.
struct SharedItem {
  int index, head, chunk;

  /// Number of the item among those of all groups.
  __device__ __forceinline__ int number(const DecodeGroup& group) const {
    return group.item_base + head * group.num_chunks + chunk;
  }
  /// Query heads that are columns of this chunk.
  __device__ __forceinline__ int num_columns(const DecodeGroup& group, int members_at_once,
                                             int heads_of_a_member) const {
    return min(members_at_once, group.count - chunk * members_at_once) * heads_of_a_member;
  }
  /// To the item behind this one; there must be one.
  __device__ __forceinline__ void advance(int num_chunks, int num_kv_heads) {
    if (++chunk < num_chunks) return;
    chunk = 0;
    if (++head < num_kv_heads) return;
    head = 0;
    ++index;
  }
};

// ---- The queries of many sequences ----

/// Copies the queries of an item's members to the shared address `to`: [32][head_dim], the 16-byte
/// chunks of row r exchanged by XOR with r % 8; rows without a query are zeros. All lanes.
template <class T, class Traits>
__device__ __forceinline__ void gather_queries(const DecodeProblem<T>& problem,
                                               const SharedItem& item, const DecodeGroup& group,
                                               unsigned char* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int members_at_once = kDecodeSharedColumns / problem.group;
  const int num_columns = item.num_columns(group, members_at_once, problem.group);
  std::int64_t offset = 0;  // of the query of column `lane`
  if (lane < num_columns) {
    const int place = group.first + item.chunk * members_at_once + lane / problem.group;
    offset = __ldcg(problem.plan.order + place) * problem.q_stride +
             (item.head * problem.group + lane % problem.group) * problem.q_head_stride;
  }
#pragma unroll 4
  for (int i = lane; i < kDecodeSharedColumns * Traits::kChunks; i += 32) {
    const int column = i / Traits::kChunks, chunk = i % Traits::kChunks;
    const std::int64_t from = __shfl_sync(~0u, offset, column);
    int4 value = {0, 0, 0, 0};
    if (column < num_columns) value = *reinterpret_cast<const int4*>(problem.q + from + chunk * 8);
    *reinterpret_cast<int4*>(to + column * Traits::kRowBytes + ((chunk ^ (column % 8)) * 16)) =
        value;
  }
}

/// Sᵀ = K · Qᵀ with the queries at the shared address `queries`.
template <class T, class Traits>
__device__ __forceinline__ void score_many(std::uint32_t tile, std::uint32_t queries,
                                           float (&scores)[Traits::kHeadTiles][4]) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t keys = key_address<Traits>(tile);
  // Matrices: four chunks of 8 columns.
  const std::uint32_t columns =
      queries + (lane % 8) * Traits::kRowBytes + (((lane / 8) ^ (lane % 8)) * 16);
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n)
    scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.f;
#pragma unroll
  for (int step = 0; step < Traits::kSteps; step += 2) {
    std::uint32_t k[2][4];
    ldmatrix_x4(k[0], keys ^ (step * 32));
    ldmatrix_x4(k[1], keys ^ ((step + 1) * 32));
#pragma unroll
    for (int n = 0; n < Traits::kHeadTiles; ++n) {
      std::uint32_t q[4];
      ldmatrix_x4(q, (columns ^ (step * 32)) + n * 8 * Traits::kRowBytes);
      mma_m16n8k16<T>(scores[n], k[0], q[0], q[1]);
      mma_m16n8k16<T>(scores[n], k[1], q[2], q[3]);
    }
  }
}

// ---- Pieces ----

/// The piece of item `item` by the warp that is number `warp` in the list.
template <class Traits, class T>
__device__ __forceinline__ float* piece_at(const DecodeProblem<T>& problem, int item, int warp) {
  return problem.plan.pieces +
         std::int64_t{item + warp} * kDecodeSharedColumns * Traits::kPartFloats;
}

/// Leaves what a warp has found for the members of an item.
template <class T, class Traits>
__device__ __forceinline__ void publish_piece(const DecodeSoftmax<T, Traits>& state,
                                              int num_columns, float* piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * n + lane % 4 * 2 + i;
      if (column >= num_columns) continue;
      float* const row = piece + column * Traits::kPartFloats;
#pragma unroll
      for (int step = 0; step < Traits::kSteps; ++step) {
        publish(row + 16 * step + lane / 4, state.out[n][step][i]);
        publish(row + 16 * step + lane / 4 + 8, state.out[n][step][i + 2]);
      }
      if (lane / 4 == 0)
        publish(row + Traits::kHeadDim, {state.max[n][i], state.sum[n][i], 0.f, 0.f});
    }
  }
}

/// Calls `visit(rows)` with a sequence's rows, [group][head_dim + 4], of every piece that belongs
/// to its kv head `head`.
template <class Traits, class T, class Visit>
__device__ __forceinline__ void for_each_piece(const DecodeProblem<T>& problem,
                                               const DecodeSpan& span, int head,
                                               const Visit& visit) {
  const int members_at_once = kDecodeSharedColumns / problem.group;
  for (int g = span.group; g >= 0;) {
    const DecodeGroup group = read_group(problem.plan.groups + g);
    const int member = span.place - group.first, chunk = member / members_at_once;
    const int item = head * group.num_chunks + chunk;
    const int first_tile = group.tile_base + item * group.num_tiles;
    const auto warp_of = [&](int tile) {
      return static_cast<int>((static_cast<std::uint64_t>(tile + 1) * group.list_warps - 1) /
                              group.list_tiles);
    };
    const int last = warp_of(first_tile + group.num_tiles - 1);
    for (int warp = warp_of(first_tile); warp <= last; ++warp) {
      visit(piece_at<Traits>(problem, group.item_base + item, warp) +
            member % members_at_once * problem.group * Traits::kPartFloats);
    }
    g = group.parent;
  }
}

/// Takes the pieces of a finished item into one warp's registers, and makes them empty again.
template <class T, class Traits>
__device__ __forceinline__ void take_pieces(const DecodeProblem<T>& problem, const DecodeSpan& span,
                                            int head, DecodeSoftmax<T, Traits>& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float none = __uint_as_float(kDecodeEmptyWord);
  for_each_piece<Traits>(problem, span, head, [&](float* rows) {
#pragma unroll
    for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * n + lane % 4 * 2 + i;
        const bool mine = column < problem.group;
        float* const row = rows + column * Traits::kPartFloats;
        if (mine) {
          float out[Traits::kSteps][2];
          float4 softmax;
          Patience patience;
          for (bool complete = false; !complete; patience.look()) {
            softmax = peek(row + Traits::kHeadDim);
            complete = is_complete(softmax);
#pragma unroll
            for (int step = 0; step < Traits::kSteps; ++step) {
              out[step][0] = peek_word(row + 16 * step + lane / 4);
              out[step][1] = peek_word(row + 16 * step + lane / 4 + 8);
              complete = complete & is_complete(out[step][0]) & is_complete(out[step][1]);
            }
          }
          const float most = fmaxf(state.max[n][i], softmax.x);
          const float keep = exp2_approx(state.max[n][i] - most);
          const float add = exp2_approx(softmax.x - most);
          state.max[n][i] = most;
          state.sum[n][i] = state.sum[n][i] * keep + softmax.y * add;
#pragma unroll
          for (int step = 0; step < Traits::kSteps; ++step) {
            state.out[n][step][i] = state.out[n][step][i] * keep + out[step][0] * add;
            state.out[n][step][i + 2] = state.out[n][step][i + 2] * keep + out[step][1] * add;
            row[16 * step + lane / 4] = none;
            row[16 * step + lane / 4 + 8] = none;
          }
        }
        __syncwarp();  // eight lanes have read the maximum and the sum
        if (mine && lane / 4 == 0)
          *reinterpret_cast<float4*>(row + Traits::kHeadDim) = {none, none, none, none};
      }
    }
  });
}

/// Adds the pieces of an item to four columns of one of its heads.
template <class Traits, class T>
__device__ __forceinline__ void add_pieces(const DecodeProblem<T>& problem, const DecodeSpan& span,
                                           int kv_head, int head, int column, DecodePart& total) {
  for_each_piece<Traits>(problem, span, kv_head, [&](const float* rows) {
    const float* const row = rows + head * Traits::kPartFloats;
    DecodePart part;
    float4 softmax;
    Patience patience;
    for (bool complete = false; !complete; patience.look()) {
      part.out = peek(row + column);
      softmax = peek(row + Traits::kHeadDim);
      complete = is_complete(part.out) & is_complete(softmax);
    }
    part.max = softmax.x, part.sum = softmax.y;
    add_part(total, part);
  });
}

/// Makes the pieces of an item empty again. All threads of the block.
template <class Traits, class T>
__device__ __forceinline__ void clear_pieces(const DecodeProblem<T>& problem,
                                             const DecodeSpan& span, int kv_head) {
  const float none = __uint_as_float(kDecodeEmptyWord);
  const int words = problem.group * Traits::kPartFloats;
  for_each_piece<Traits>(problem, span, kv_head, [&](float* rows) {
    for (int i = static_cast<int>(threadIdx.x) * 4; i < words; i += Traits::kThreads * 4)
      *reinterpret_cast<float4*>(rows + i) = {none, none, none, none};
  });
}

}  // namespace nanovllm::cuda::detail
