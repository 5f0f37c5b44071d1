#pragma once
/// How a block of `small_m_linear` may be cut, and what it takes. For the host; nothing here needs
/// CUDA.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

namespace nanovllm::cuda {

/// Most rows of x that `small_m_linear` takes.
inline constexpr std::int64_t kMaxSmallMRows = 16;

/// Tiles of 8 rows of W a block of `small_m_linear` may own.
inline constexpr int kSmallMTiles[] = {1, 2, 4, 6};
/// The fewest with a norm ahead or SwiGLU after.
inline constexpr int kMinSmallMFusedTiles = 4;

/// Whether a block may own so many, and no fewer than `fewest`.
[[nodiscard]] constexpr bool has_small_m_tiles(int tiles, int fewest = 1) {
  return tiles >= fewest && std::find(std::begin(kSmallMTiles), std::end(kSmallMTiles), tiles) !=
                                std::end(kSmallMTiles);
}

/// Calls run.operator()<tiles>(). False where no block owns so many.
template <class Run>
bool with_small_m_tiles(int tiles, const Run& run) {
  return with_variant<static_cast<int>(std::size(kSmallMTiles))>(
      static_cast<int>(std::find(std::begin(kSmallMTiles), std::end(kSmallMTiles), tiles) -
                       std::begin(kSmallMTiles)),
      [&]<int kIndex>() {
        run.template operator()<kSmallMTiles[kIndex]>();
        return true;
      });
}

/// A good number of tiles for `n` rows of W: the largest that leaves a block for each SM.
[[nodiscard]] constexpr int default_small_m_tiles(std::int64_t n, int num_sms) {
  int tiles = 1;
  for (const int larger : kSmallMTiles) {
    if (ceil_div(n, 8 * larger) * 10 >= num_sms * 9) tiles = larger;
  }
  return tiles;
}

/// Whether `small_m_linear` does m rows of x by W [n, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_small_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= kMaxSmallMRows && k % 8 == 0 && std::max(n, k) <= kMaxLinearExtent;
}

/// Whether start-up should try it. By large weights and more than one row, one op after itself is
/// as fast as with cuBLASLt, but a step is not: 8 rows of Qwen3-8B take 5.5 ms by this kernel and
/// 4.8 without it (H200). Why is not known.
[[nodiscard]] constexpr bool suits_small_m(std::int64_t m, std::int64_t n, std::int64_t k,
                                           std::int64_t small_weights = kSmallWeights) {
  return m == 1 || n <= small_weights / k;
}

/// Rows up to which its blocks ask for all shared memory of their multiprocessors, so that theirs
/// and decode attention's begin beside each other: a layer of one row takes 1 to 2 us less up to
/// some 500 keys. With more rows what is fetched ahead gets in the way of the keys.
inline constexpr std::int64_t kSmallMSharedRows = 1;

/// `LaunchConfig::shared_percent` of its launches with m rows.
[[nodiscard]] constexpr int small_m_shared_percent(std::int64_t m) {
  return m <= kSmallMSharedRows ? 100 : -1;
}

}  // namespace nanovllm::cuda
