#pragma once
/// How the decode kernel reads keys that many sequences have in common once for all of them.
///
/// The members' query heads stand side by side as the columns of one product, up to 32, so that a
/// tile of keys is read once for 32 / group sequences. The warps of a block take turns at the tiles
/// of its range, with the queries in shared memory, and merge what they have of an item when they
/// have come to its end, or the range to its. What a block has of an item, a 'piece', it leaves in
/// the workspace; where a member has come to the end of its own keys, it takes in its columns of
/// the pieces of all groups that it is in, deepest first, and in ascending order of the blocks. A
/// piece needs neither counter nor fence (`exchange.cuh`). Pieces are written before a block reads
/// for single sequences, and nothing is waited for before that, so none waits for ever as long as
/// all blocks of the grid run at some time: there are no more than SMs, and none of them keeps
/// another from running.
/// Source: Ye et al., "Cascade Inference", 2024; Juravsky et al., "Hydragen", 2024.

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
  /// To the item after this one; there must be one.
  __device__ __forceinline__ void advance(int num_chunks, int num_kv_heads) {
    if (++chunk < num_chunks) return;
    chunk = 0;
    if (++head < num_kv_heads) return;
    head = 0;
    ++index;
  }
};

// ---- The queries of many sequences ----

/// Copies the queries of an item's members to `to` in shared memory, [32][head_dim] operands, the
/// 16-byte chunks of row r exchanged by XOR with r % 8; rows without a query are zeros. Where keys
/// have 8 bits, a chunk has the even pairs of 16 elements, the next one the odd pairs. All threads
/// of the block.
template <class T, class Traits>
__device__ __forceinline__ void gather_queries(const DecodeProblem<T>& problem,
                                               const SharedItem& item, const DecodeGroup& group,
                                               unsigned char* to) {
  const int members_at_once = kDecodeSharedColumns / problem.group;
  const int num_columns = item.num_columns(group, members_at_once, problem.group);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kDecodeSharedColumns * Traits::kQueryChunks;
       i += Traits::kThreads) {
    const int column = i / Traits::kQueryChunks, chunk = i % Traits::kQueryChunks;
    int4 value = {0, 0, 0, 0};
    if (column < num_columns) {
      const int place = group.first + item.chunk * members_at_once + column / problem.group;
      const int head = item.head * problem.group + column % problem.group;
      const T* const row = problem.q + __ldcg(problem.plan.order + place) * problem.q_stride +
                           head * problem.q_head_stride;
      if constexpr (Traits::kElementBytes == 1) {
        const auto* const pairs =
            reinterpret_cast<const std::uint32_t*>(row + chunk / 2 * 16) + chunk % 2;
        const auto operands = [&](int j) {
          return static_cast<int>(decode_operands<T, Traits>(pairs[2 * j]));
        };
        value = {operands(0), operands(1), operands(2), operands(3)};
      } else {
        value = *reinterpret_cast<const int4*>(row + chunk * 8);
      }
    }
    *reinterpret_cast<int4*>(to + column * Traits::kQueryRowBytes + ((chunk ^ (column % 8)) * 16)) =
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
      queries + (lane % 8) * Traits::kQueryRowBytes + (((lane / 8) ^ (lane % 8)) * 16);
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n)
    scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.f;
#pragma unroll
  for (int pair = 0; pair < Traits::kSteps / 2; ++pair) {
    std::uint32_t k[2][4];
    load_keys<Traits>(keys, pair, k);
#pragma unroll
    for (int n = 0; n < Traits::kHeadTiles; ++n) {
      std::uint32_t q[4];
      ldmatrix_x4(q, (columns ^ (pair * 64)) + n * 8 * Traits::kQueryRowBytes);
      mma_m16n8k16<DecodeOperand<T, Traits>>(scores[n], k[0], q[0], q[1]);
      mma_m16n8k16<DecodeOperand<T, Traits>>(scores[n], k[1], q[2], q[3]);
    }
  }
}

// ---- Pieces ----

/// The piece of item `item` by block `block`.
template <class Traits, class T>
__device__ __forceinline__ float* piece_at(const DecodeProblem<T>& problem, int item, int block) {
  return problem.plan.pieces +
         std::int64_t{item + block} * kDecodeSharedColumns * Traits::kPartFloats;
}

/// Where element `row` of column `column` is in a warp's part of an item, [32][head_dim]. Rows are
/// exchanged so that the stores of a fragment fall into different banks.
template <class Traits>
__device__ __forceinline__ int part_index(int column, int row) {
  return column * Traits::kHeadDim + (row ^ (column / 2 % 4 * 8));
}

/// Writes what a warp has of an item to its ring, which is idle, and maxima and sums, [32] each, to
/// `softmax`.
template <class T, class Traits>
__device__ __forceinline__ void store_many(const DecodeSoftmax<T, Traits>& state, float* ring,
                                           float2* softmax) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first_column = lane % 4 * 2;
  // The exchange touches bits 3 and 4 of a row alone, so four addresses do for all.
#pragma unroll
  for (int half = 0; half < 4; ++half) {
    float* const to =
        ring + part_index<Traits>(first_column, Traits::element_offset(half / 2, half % 2) +
                                                    Traits::first_element());
#pragma unroll
    for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll
      for (int step = half / 2; step < Traits::kSteps; step += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          to[(8 * n + i) * Traits::kHeadDim + step / 2 * 32] = state.out[n][step][i + half % 2 * 2];
      }
    }
  }
  if (lane / 4 > 0) return;
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      softmax[8 * n + first_column + i] = {state.max[n][i], state.sum[n][i]};
  }
}

/// Merges what the block's warps have of an item, and leaves it as a piece. A warp that had no tile
/// has a maximum of -inf. All threads of the block.
template <class Traits>
__device__ __forceinline__ void publish_piece(const unsigned char* rings, const float2* softmax,
                                              int num_columns, float* piece) {
  constexpr int kVectors = Traits::kHeadDim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < num_columns * kVectors; i += Traits::kThreads) {
    const int column = i / kVectors, row = i % kVectors * 4;
    DecodePart parts[kPartsAtOnce], total;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) {
      const float2 of_warp = softmax[w * kDecodeSharedColumns + column];
      if (of_warp.x == -INFINITY) continue;
      parts[w].max = of_warp.x, parts[w].sum = of_warp.y;
      parts[w].out = *reinterpret_cast<const float4*>(
          reinterpret_cast<const float*>(rings + w * Traits::kRingBytes) +
          part_index<Traits>(column, row));
    }
    add_parts(total, parts);
    float* const to = piece + column * Traits::kPartFloats;
    publish(to + row, total.out);
    if (row == 0) publish(to + Traits::kHeadDim, {total.max, total.sum, 0.f, 0.f});
  }
}

// ---- Members ----

/// Floats from a piece of an item to the next.
template <class Traits>
inline constexpr int kPieceFloats = kDecodeSharedColumns* Traits::kPartFloats;

/// Calls `visit(rows, num_pieces)` for every group that a sequence is in, the deepest first: the
/// sequence's rows, [group][head_dim + 4], of the first piece that belongs to its kv head `head`.
/// Those of the other pieces come `kPieceFloats` after each other.
template <class Traits, class T, class Visit>
__device__ __forceinline__ void for_each_group(const DecodeProblem<T>& problem,
                                               const DecodeSpan& span, int head,
                                               const Visit& visit) {
  const int members_at_once = kDecodeSharedColumns / problem.group;
  for (int g = span.group; g >= 0;) {
    const DecodeGroup group = read_group(problem.plan.groups + g);
    const int member = span.place - group.first, chunk = member / members_at_once;
    const int item = head * group.num_chunks + chunk;
    const int first_tile = group.tile_base + item * group.num_tiles;
    const auto block_of = [&](int tile) {
      return static_cast<int>((static_cast<std::uint64_t>(tile + 1) * group.list_blocks - 1) /
                              group.list_tiles);
    };
    const int first = block_of(first_tile);
    visit(piece_at<Traits>(problem, group.item_base + item, first) +
              member % members_at_once * problem.group * Traits::kPartFloats,
          block_of(first_tile + group.num_tiles - 1) - first + 1);
    g = group.parent;
  }
}

/// Pieces whose loads are under way together: a look at one takes as long as a look at all.
template <class Traits>
inline constexpr int kPiecesTakenAtOnce = Traits::kHeadTiles == 1 ? 2 : 1;  // as registers allow
inline constexpr int kPiecesAddedAtOnce = 4;

/// Takes the pieces of a finished item into one warp's registers, and makes them empty again.
template <class T, class Traits>
__device__ __forceinline__ void take_pieces(const DecodeProblem<T>& problem, const DecodeSpan& span,
                                            int head, DecodeSoftmax<T, Traits>& state) {
  constexpr int kAtOnce = kPiecesTakenAtOnce<Traits>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float none = __uint_as_float(kDecodeEmptyWord);
  const auto take = [&](float* rows, int num_pieces, int n) {
    const auto row_of = [&](int piece, int i) {
      return rows + piece * kPieceFloats<Traits> + (8 * n + lane % 4 * 2 + i) * Traits::kPartFloats;
    };
    const auto is_mine = [&](int piece, int i) {
      return piece < num_pieces && 8 * n + lane % 4 * 2 + i < problem.group;
    };
    float out[kAtOnce][2][Traits::kSteps][2];
    float4 softmax[kAtOnce][2];
    Patience patience;
    for (bool complete = false; !complete; patience.look()) {
      complete = true;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!is_mine(j, i)) continue;
          const float* const row = row_of(j, i);
          const float* const mine = row + Traits::first_element();
          softmax[j][i] = peek(row + Traits::kHeadDim);
#pragma unroll
          for (int step = 0; step < Traits::kSteps; ++step) {
            out[j][i][step][0] = peek_word(mine + Traits::element_offset(step, 0));
            out[j][i][step][1] = peek_word(mine + Traits::element_offset(step, 1));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!is_mine(j, i)) continue;
          complete = complete & is_complete(softmax[j][i]);
#pragma unroll
          for (int step = 0; step < Traits::kSteps; ++step)
            complete = complete & is_complete(out[j][i][step][0]) & is_complete(out[j][i][step][1]);
        }
      }
    }
    __syncwarp();  // eight lanes have read each maximum and sum
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!is_mine(j, i)) continue;
        const float most = fmaxf(state.max[n][i], softmax[j][i].x);
        const float keep = exp2_approx(state.max[n][i] - most);
        const float add = exp2_approx(softmax[j][i].x - most);
        state.max[n][i] = most;
        state.sum[n][i] = state.sum[n][i] * keep + softmax[j][i].y * add;
        float* const row = row_of(j, i);
        float* const mine = row + Traits::first_element();
#pragma unroll
        for (int step = 0; step < Traits::kSteps; ++step) {
          state.out[n][step][i] = state.out[n][step][i] * keep + out[j][i][step][0] * add;
          state.out[n][step][i + 2] = state.out[n][step][i + 2] * keep + out[j][i][step][1] * add;
          mine[Traits::element_offset(step, 0)] = none;
          mine[Traits::element_offset(step, 1)] = none;
        }
        if (lane / 4 == 0)
          *reinterpret_cast<float4*>(row + Traits::kHeadDim) = {none, none, none, none};
      }
    }
  };
  for_each_group<Traits>(problem, span, head, [&](float* rows, int num_pieces) {
    for (; num_pieces > 0; num_pieces -= kAtOnce, rows += kAtOnce * kPieceFloats<Traits>) {
#pragma unroll
      for (int n = 0; n < Traits::kHeadTiles; ++n) take(rows, num_pieces, n);
    }
  });
}

/// Adds the pieces of an item to four columns of one of its heads.
template <class Traits, class T>
__device__ __forceinline__ void add_pieces(const DecodeProblem<T>& problem, const DecodeSpan& span,
                                           int kv_head, int head, int column, DecodePart& total) {
  constexpr int kAtOnce = kPiecesAddedAtOnce;
  for_each_group<Traits>(problem, span, kv_head, [&](const float* rows, int num_pieces) {
    const float* row = rows + head * Traits::kPartFloats;
    for (; num_pieces > 0; num_pieces -= kAtOnce, row += kAtOnce * kPieceFloats<Traits>) {
      DecodePart parts[kAtOnce];
      float4 softmax[kAtOnce];
      Patience patience;
      for (bool complete = false; !complete; patience.look()) {
        complete = true;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (j >= num_pieces) continue;
          parts[j].out = peek(row + j * kPieceFloats<Traits> + column);
          softmax[j] = peek(row + j * kPieceFloats<Traits> + Traits::kHeadDim);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (j < num_pieces)
            complete = complete & is_complete(parts[j].out) & is_complete(softmax[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= num_pieces) continue;
        parts[j].max = softmax[j].x, parts[j].sum = softmax[j].y;
        add_part(total, parts[j]);
      }
    }
  });
}

/// Makes the pieces of an item empty again. All threads of the block.
template <class Traits, class T>
__device__ __forceinline__ void clear_pieces(const DecodeProblem<T>& problem,
                                             const DecodeSpan& span, int kv_head) {
  const float none = __uint_as_float(kDecodeEmptyWord);
  const int words = problem.group * Traits::kPartFloats;
  for_each_group<Traits>(problem, span, kv_head, [&](float* rows, int num_pieces) {
    for (; num_pieces > 0; --num_pieces, rows += kPieceFloats<Traits>) {
      for (int i = static_cast<int>(threadIdx.x) * 4; i < words; i += Traits::kThreads * 4)
        *reinterpret_cast<float4*>(rows + i) = {none, none, none, none};
    }
  });
}

}  // namespace nanovllm::cuda::detail
