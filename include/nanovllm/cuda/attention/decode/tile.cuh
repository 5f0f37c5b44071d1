#pragma once
/// What one warp of the decode kernel does with a tile of 16 keys: scores, softmax, weighted
/// values, on the tensor cores. `kernel.cuh` has the whole picture.

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/attention/decode/operands.cuh"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/tile/exp2.cuh"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm::cuda {

/// Sizes of the kernel for a cache of format `Kv`, up to `kHeadTiles` · 8 query heads a kv head,
/// and `kWarps` warps a block.
template <KvFormat KvValue, int kHeadDimValue, int kHeadTilesValue, int kWarpsValue>
struct DecodeTraits {
  using Kv = KvValue;
  using Stored = KvStored<Kv>;
  static constexpr bool kHasScales = ScaledKvFormat<Kv>;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kHeadTiles = kHeadTilesValue;
  static constexpr int kWarps = kWarpsValue;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSteps = kHeadDim / 16;  ///< of 16 along head_dim
  static constexpr int kElementBytes = static_cast<int>(sizeof(Stored));
  static constexpr int kRowBytes = kElementBytes * kHeadDim;  ///< of one key or value
  static constexpr int kChunkElements = 16 / kElementBytes;   ///< of 16 bytes
  static constexpr int kChunks = kHeadDim / kChunkElements;   ///< of 16 bytes, of a row
  static constexpr int kQueryChunks = kHeadDim / 8;           ///< the same of a query
  static constexpr int kQueryRowBytes = 16 * kQueryChunks;
  static constexpr int kRowsPerCopy = 32 / kChunks;  ///< rows that a warp copies at once
  static constexpr int kCopies = kDecodeTileKeys / kRowsPerCopy;
  static constexpr int kMatrixBytes = kDecodeTileKeys * kRowBytes;  ///< K or V of a tile
  static constexpr int kTileBytes = decode_tile_bytes(kElementBytes, kHasScales, kHeadDim);
  static constexpr int kStages = decode_stages(kTileBytes);  ///< tiles in a warp's ring
  static constexpr int kRingBytes = kStages * kTileBytes;
  /// An unfinished head: head_dim weighted sums, the maximum and the sum of weights; 4 floats more
  /// than head_dim, so that the stores of a fragment fall into different banks.
  static constexpr int kPartFloats = kHeadDim + kDecodePartExtra;

  /// What the number of a 16-byte chunk of row `row` is exchanged with by XOR, so that 8 rows of a
  /// chunk lie in different banks.
  __device__ __forceinline__ static int exchange(int row) {
    return kRowBytes >= 128 ? row % 8 : row / 2 % 4;
  }
  /// Row g + 8 · `half` of the `step`-th product with V, g = lane / 4, is element
  /// `first_element()` + `element_offset(step, half)` of head_dim. The second is a constant, so
  /// addresses of all of a lane's elements take one register.
  __device__ __forceinline__ static int first_element() {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    return kElementBytes == 1 ? 2 * g : g;
  }
  [[nodiscard]] NANOVLLM_HD static constexpr int element_offset(int step, int half) {
    return 16 * step + (kElementBytes == 1 ? half : 8 * half);
  }

  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(8 * kHeadTiles * (kHeadTiles < kDecodeSharedHeadTiles ? kPartFloats : kHeadDim) *
                        4 <=
                    kRingBytes,
                "a ring takes an unfinished item");
};

/// The operands, and the workspace's memory.
template <class T>
struct DecodeProblem {
  const T* q;  ///< [num_seqs, num_kv_heads · group, head_dim]
  std::int64_t q_stride, q_head_stride;
  T* out;  ///< as q
  std::int64_t out_stride, out_head_stride;
  const void* kv;  ///< as KvView
  std::int64_t page_stride;
  int head_stride, block_size;
  const BlockId* block_tables;
  std::int64_t table_stride;
  const std::int32_t* kv_lens;
  int num_seqs, num_kv_heads, group;
  float scale_log2;  ///< scale · log2(e)
  bool early;        ///< see DecodeStart
  DecodePlan plan;
  float* partials;
};

namespace detail {

/// The softmax of one item's tiles so far, for one warp. Lane l holds columns 2t and 2t + 1 of each
/// head tile, t = l % 4: their maxima, this lane's sums of weights, and rows g and g + 8 of each 16
/// of Oᵀ, g = l / 4; `Traits::element_offset` says which elements these are. Maxima are those of
/// the weights, sums those of 2^(score - maximum).
template <class T, class Traits>
struct DecodeSoftmax {
  using Operand = DecodeOperand<T, Traits>;
  static constexpr int kHeadTiles = Traits::kHeadTiles, kSteps = Traits::kSteps;
  float out[kHeadTiles][kSteps][4];
  float max[kHeadTiles][2];
  float sum[kHeadTiles][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (float& x : out[n][step]) x = 0.f;
      }
      max[n][0] = max[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0.f;
    }
  }

  /// Takes in the scores of the tile at the shared address `tile`, of which `num_keys` keys exist.
  __device__ __forceinline__ void take(float (&scores)[kHeadTiles][4], std::uint32_t tile,
                                       int num_keys, float scale_log2) {
    const DecodeScales<Traits> scales(tile, num_keys, scale_log2);
    std::uint32_t weights[kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= scales.of_key(i / 2);
      if (num_keys < kDecodeTileKeys) mask(scores[n], num_keys);
      weigh(n, scores[n], scales, weights[n]);
    }
    add_values(tile + Traits::kMatrixBytes, weights);
  }

  /// Completes the sums of weights: adds up the lanes'.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (float& x : sum[n]) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
      }
    }
  }

 private:
  /// Keys that do not exist get weight zero.
  __device__ __forceinline__ static void mask(float (&scores)[4], int num_keys) {
    const int key = static_cast<int>(threadIdx.x) % 32 / 4;
    if (key >= num_keys) scores[0] = scores[1] = -INFINITY;
    if (key + 8 >= num_keys) scores[2] = scores[3] = -INFINITY;
  }

  /// Scores to weights 2^(score - maximum), as the operand B of the second product; what was summed
  /// up under a smaller maximum is scaled down.
  __device__ __forceinline__ void weigh(int n, const float (&scores)[4],
                                        const DecodeScales<Traits>& scales,
                                        std::uint32_t (&weights)[2]) {
    float p[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float low = scores[i], high = scores[i + 2];
      if constexpr (Traits::kHasScales) low += scales.value_log2[0], high += scales.value_log2[1];
      float most = fmaxf(low, high);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      most = fmaxf(most, max[n][i]);
      const float shrink = exp2_approx(max[n][i] - most);
      max[n][i] = most;
      p[i] = exp2_approx(low - most);
      p[i + 2] = exp2_approx(high - most);
      if constexpr (Traits::kHasScales) {
        low = exp2_approx(scores[i] - most), high = exp2_approx(scores[i + 2] - most);
      } else {
        low = p[i], high = p[i + 2];
      }
      sum[n][i] = sum[n][i] * shrink + (low + high);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        out[n][step][i] *= shrink;
        out[n][step][i + 2] *= shrink;
      }
    }
    weights[0] = movmatrix_trans(pack_pair<Operand>(p[0], p[1]));
    weights[1] = movmatrix_trans(pack_pair<Operand>(p[2], p[3]));
  }

  /// Oᵀ += Vᵀ · Pᵀ.
  __device__ __forceinline__ void add_values(std::uint32_t values,
                                             const std::uint32_t (&weights)[kHeadTiles][2]) {
    const std::uint32_t address = value_address<Traits>(values);
    const auto multiply = [&](int step, const std::uint32_t(&v)[4]) {
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n)
        mma_m16n8k16<Operand>(out[n][step], v, weights[n][0], weights[n][1]);
    };
    if constexpr (Traits::kElementBytes == 1) {
#pragma unroll
      for (int pair = 0; pair < kSteps / 2; ++pair) {
        std::uint32_t v[2][4];
        load_value_bytes<Traits>(address, pair, v);
        multiply(2 * pair, v[0]);
        multiply(2 * pair + 1, v[1]);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t v[4];
        ldmatrix_x4_trans(v, address ^ (step * 32));
        multiply(step, v);
      }
    }
  }
};

/// The queries of one sequence's heads, in registers, and their softmax.
template <class T, class Traits>
struct DecodeState : DecodeSoftmax<T, Traits> {
  static constexpr int kHeadTiles = Traits::kHeadTiles, kSteps = Traits::kSteps;
  std::uint32_t q[kHeadTiles][kSteps][2];  ///< Qᵀ as the operand B of `kSteps` products

  /// Begins an item: reads its queries. `q_item` is the row of the item's first head.
  __device__ __forceinline__ void begin(const T* q_item, std::int64_t head_stride, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const int head = 8 * n + lane / 4;
      const auto* const row = reinterpret_cast<const std::uint32_t*>(q_item + head * head_stride);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = Traits::kElementBytes == 1 ? lane % 4 * 2 + i : lane % 4 + 4 * i;
          q[n][step][i] = head < group ? decode_operands<T, Traits>(row[8 * step + at]) : 0u;
        }
      }
    }
    this->clear();
  }

  /// Takes in the tile at the shared address `tile`, of which `num_keys` keys exist.
  __device__ __forceinline__ void attend(std::uint32_t tile, int num_keys, float scale_log2) {
    float scores[kHeadTiles][4];
    score(tile, scores);
    this->take(scores, tile, num_keys, scale_log2);
  }

 private:
  /// Sᵀ = K · Qᵀ, in two chains of products.
  __device__ __forceinline__ void score(std::uint32_t tile, float (&scores)[kHeadTiles][4]) const {
    const std::uint32_t address = key_address<Traits>(tile);
    float chains[2][kHeadTiles][4] = {};
#pragma unroll
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      std::uint32_t k[2][4];
      load_keys<Traits>(address, pair, k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
          const auto& operand = q[n][2 * pair + i];
          mma_m16n8k16<DecodeOperand<T, Traits>>(chains[i][n], k[i], operand[0], operand[1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = chains[0][n][i] + chains[1][n][i];
    }
  }
};

/// Writes a finished item, from one warp's registers. `to` is the row of the item's first head.
template <class T, class Traits>
__device__ __forceinline__ void store_item(const DecodeSoftmax<T, Traits>& state, int group, T* to,
                                           std::int64_t head_stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n) {
    const int head = 8 * n + lane / 4;
    const float scale0 = 1.f / state.sum[n][0], scale1 = 1.f / state.sum[n][1];
    auto* const row = reinterpret_cast<std::uint32_t*>(to + head * head_stride);
#pragma unroll
    for (int step = 0; step < Traits::kSteps; ++step) {
      const float(&o)[4] = state.out[n][step];
      const std::uint32_t low = movmatrix_trans(pack_pair<T>(o[0] * scale0, o[1] * scale1));
      const std::uint32_t high = movmatrix_trans(pack_pair<T>(o[2] * scale0, o[3] * scale1));
      if (head >= group) continue;
      if constexpr (Traits::kElementBytes == 1) {  // even elements in `low`, odd ones in `high`
        *reinterpret_cast<uint2*>(row + 8 * step + lane % 4 * 2) = {__byte_perm(low, high, 0x5410),
                                                                    __byte_perm(low, high, 0x7632)};
      } else {
        row[8 * step + lane % 4] = low, row[8 * step + 4 + lane % 4] = high;
      }
    }
  }
}

/// Writes an unfinished item to shared memory, [group][kPartFloats].
template <class T, class Traits>
__device__ __forceinline__ void store_part(const DecodeSoftmax<T, Traits>& state, int group,
                                           float* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = 8 * n + lane % 4 * 2 + i;
      if (head >= group) continue;
      float* const row = to + head * Traits::kPartFloats;
      float* const mine = row + Traits::first_element();
#pragma unroll
      for (int step = 0; step < Traits::kSteps; ++step) {
        mine[Traits::element_offset(step, 0)] = state.out[n][step][i];
        mine[Traits::element_offset(step, 1)] = state.out[n][step][i + 2];
      }
      if (lane / 4 == 0)
        *reinterpret_cast<float2*>(row + Traits::kHeadDim) = {state.max[n][i], state.sum[n][i]};
    }
  }
}

}  // namespace detail
}  // namespace nanovllm::cuda
