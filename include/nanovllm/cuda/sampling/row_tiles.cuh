#pragma once
/// How the selection reads a row: in tiles of 128 logits, and of these only those whose largest
/// logit says so.

#include <cstdint>
#include <limits>

#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/tile/alignment.cuh"

namespace nanovllm::cuda {

using Mass = unsigned long long;  ///< in units of `RowTiles::mass_unit`

/// A row as the selection reads it.
struct RowTiles {
  const float* logits;
  std::int64_t vocab;
  const std::uint32_t* maxima;    ///< per tile
  const std::uint32_t* ban_bits;  ///< null: none
  float largest;
  double scale;      ///< log2(e) / temperature
  double mass_unit;  ///< 1 / the mass of the largest logit in integer units: no sum overflows

  [[nodiscard]] __device__ int num_tiles() const {
    return static_cast<int>((vocab + kLogitTile - 1) / kLogitTile);
  }
  [[nodiscard]] __device__ std::uint32_t largest_key() const { return key_of(largest); }

  /// Relative to the largest, in integers; below half a unit 0.
  [[nodiscard]] __device__ Mass mass_of_key(std::uint32_t key) const {
    return __double2ull_rn(mass_of(logit_of(key), largest, scale) * mass_unit);
  }
};

/// Of each of kTiles tiles the four tokens that are this lane's, as they lie in memory. All loads
/// are issued before the first is used: a warp waits once for all of them.
template <int kTiles>
struct LoadedTiles {
  float4 logits[kTiles];
  std::uint32_t bans[kTiles];  ///< bit i: the i-th of the four

  /// Tiles with negative indices are left out.
  __device__ __forceinline__ LoadedTiles(RowTiles row, const int (&tiles)[kTiles]) {
    const std::int64_t lane = threadIdx.x % 32 * 4;
    if (is_vector_aligned(row.logits) && row.vocab % 4 == 0) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const std::int64_t first = std::int64_t{tiles[j]} * kLogitTile + lane;
        if (first >= 0 && first < row.vocab) {
          logits[j] = __ldcg(reinterpret_cast<const float4*>(row.logits + first));
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const std::int64_t first = std::int64_t{tiles[j]} * kLogitTile + lane;
        if (first < 0) continue;
        if (first < row.vocab) logits[j].x = __ldcg(row.logits + first);
        if (first + 1 < row.vocab) logits[j].y = __ldcg(row.logits + first + 1);
        if (first + 2 < row.vocab) logits[j].z = __ldcg(row.logits + first + 2);
        if (first + 3 < row.vocab) logits[j].w = __ldcg(row.logits + first + 3);
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) bans[j] = 0;
    if (row.ban_bits == nullptr) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (tiles[j] < 0) continue;
      const std::int64_t word = std::int64_t{tiles[j]} * (kLogitTile / 32) + threadIdx.x % 32 / 8;
      bans[j] = __ldcg(row.ban_bits + word) >> (threadIdx.x % 8 * 4);
    }
  }

  /// The logits of tile j, which is tile `tile` of the row; -inf where banned or beyond the
  /// vocabulary. They may be NaN.
  __device__ __forceinline__ void get(RowTiles row, int j, int tile, float (&x)[4]) const {
    x[0] = logits[j].x, x[1] = logits[j].y, x[2] = logits[j].z, x[3] = logits[j].w;
    const std::int64_t left =
        row.vocab - std::int64_t{tile} * kLogitTile - std::int64_t{threadIdx.x % 32 * 4};
    if (bans[j] == 0 && left >= 4) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((bans[j] >> i & 1) != 0 || i >= left) x[i] = -std::numeric_limits<float>::infinity();
    }
  }

  /// Makes tile 1 tile 0 and so on, here and in `tiles`: a loop over them that is not unrolled
  /// keeps all in registers.
  __device__ __forceinline__ void advance(int (&tiles)[kTiles]) {
#pragma unroll
    for (int j = 0; j + 1 < kTiles; ++j) {
      logits[j] = logits[j + 1], bans[j] = bans[j + 1];
      tiles[j] = tiles[j + 1];
    }
    tiles[kTiles - 1] = -1;
  }

  /// Their keys; kNoKey beyond the vocabulary.
  __device__ __forceinline__ void get_keys(RowTiles row, int j, int tile,
                                           std::uint32_t (&keys)[4]) const {
    float x[4];
    get(row, j, tile, x);
    const std::int64_t first = std::int64_t{tile} * kLogitTile + threadIdx.x % 32 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      keys[i] = first + i < row.vocab ? key_of(clean(x[i])) : kNoKey;
    }
  }
};

/// Calls visit(tiles, which) with all lanes of a warp for every tile whose largest key is at least
/// `low`, a warp per kTiles of them; `which` has their indices, -1 where there are fewer, and both
/// may be changed. The tiles are those of block `rank` of `blocks` that share the row.
template <int kTiles, class Visit>
__device__ __forceinline__ void load_tiles_above(RowTiles row, std::uint32_t low, int rank,
                                                 int blocks, Visit visit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warps = blocks * kSelectWarps;
  const int warp = rank * kSelectWarps + static_cast<int>(threadIdx.x / 32);
  const int num_tiles = row.num_tiles();
  for (int begin = 0; begin < num_tiles; begin += 32 * warps) {
    const int mine = begin + lane * warps + warp;  // neighbours go to different warps
    unsigned hits = __ballot_sync(kAllLanes, mine < num_tiles && __ldcg(row.maxima + mine) >= low);
    while (hits != 0) {
      int tiles[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        tiles[j] = hits == 0 ? -1 : begin + (__ffs(static_cast<int>(hits)) - 1) * warps + warp;
        hits &= hits - 1;
      }
      LoadedTiles<kTiles> loaded(row, tiles);
      visit(loaded, tiles);
    }
  }
}

/// Calls visit(first id, keys of four tokens) with all lanes of a warp for every tile whose largest
/// key is at least `low`, a warp per tile.
template <class Visit>
__device__ __forceinline__ void visit_tiles(RowTiles row, std::uint32_t low, Visit visit) {
  constexpr int kTiles = 4;
  const auto first = static_cast<TokenId>(threadIdx.x % 32 * 4);
  load_tiles_above<kTiles>(row, low, 0, 1, [&](LoadedTiles<kTiles>& loaded, int(&tiles)[kTiles]) {
#pragma unroll 1  // what is done with a tile is long
    for (; tiles[0] >= 0; loaded.advance(tiles)) {
      std::uint32_t keys[4];
      loaded.get_keys(row, 0, tiles[0], keys);
      visit(static_cast<TokenId>(tiles[0] * kLogitTile) + first, keys);
    }
  });
}

}  // namespace nanovllm::cuda
