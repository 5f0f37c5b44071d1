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

/// The logits of the four tokens of a tile that are this lane's, clean; -inf where banned or beyond
/// the vocabulary.
__device__ __forceinline__ void load_tile(RowTiles row, int tile, bool aligned, float (&x)[4]) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::int64_t first = std::int64_t{tile} * kLogitTile + threadIdx.x % 32 * 4;
  if (aligned && first + 4 <= row.vocab) {
    const float4 y = *reinterpret_cast<const float4*>(row.logits + first);
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = first + i < row.vocab ? row.logits[first + i] : -kInfinity;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = clean(x[i]);
  if (row.ban_bits == nullptr) return;
  const std::uint32_t bans = row.ban_bits[first / 32] >> static_cast<unsigned>(first % 32);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = (bans >> i & 1) != 0 ? -kInfinity : x[i];
}

/// The keys of the four tokens of a tile that are this lane's; kNoKey beyond the vocabulary.
__device__ __forceinline__ void load_keys(RowTiles row, int tile, bool aligned,
                                          std::uint32_t (&keys)[4]) {
  const std::int64_t first = std::int64_t{tile} * kLogitTile + threadIdx.x % 32 * 4;
  float x[4];
  if (aligned && first + 4 <= row.vocab) {
    const float4 y = *reinterpret_cast<const float4*>(row.logits + first);
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = first + i < row.vocab ? row.logits[first + i] : 0.f;
  }
  const std::uint32_t bans =
      row.ban_bits == nullptr ? 0u : row.ban_bits[first / 32] >> static_cast<unsigned>(first % 32);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    keys[i] = (bans >> i & 1) != 0 ? kMinusInfKey : key_of(clean(x[i]));
    if (first + i >= row.vocab) keys[i] = kNoKey;
  }
}

/// Calls visit(first id, keys of four tokens) with all lanes of a warp for every tile whose largest
/// key is at least `low`, a warp per tile.
template <class Visit>
__device__ __forceinline__ void visit_tiles(RowTiles row, std::uint32_t low, Visit visit) {
  constexpr int kAhead = 4;  // loads in flight
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int num_tiles = row.num_tiles();
  const bool aligned = is_vector_aligned(row.logits);
  for (int begin = 0; begin < num_tiles; begin += kSelectThreads) {
    const int mine = begin + lane * kSelectWarps + warp;  // neighbours go to different warps
    unsigned hits = __ballot_sync(kAllLanes, mine < num_tiles && row.maxima[mine] >= low);
    while (hits != 0) {
      std::uint32_t keys[kAhead][4];
      int tiles[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        tiles[j] =
            hits == 0 ? -1 : begin + (__ffs(static_cast<int>(hits)) - 1) * kSelectWarps + warp;
        hits &= hits - 1;
        if (tiles[j] >= 0) load_keys(row, tiles[j], aligned, keys[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (tiles[j] >= 0) visit(static_cast<TokenId>(tiles[j] * kLogitTile + lane * 4), keys[j]);
      }
    }
  }
}

}  // namespace nanovllm::cuda
