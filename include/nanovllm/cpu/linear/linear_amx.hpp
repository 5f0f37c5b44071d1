#pragma once
/// Linear kernel for AMX: bf16 tile products.
///
/// A tile register holds 16 rows of 64 bytes. `tdpbf16ps` adds x[16 rows][32 cols] · w[16 words][16
/// rows of 2] to float32 sums [16][16]; the second operand is half the lines of sixteen words of a
/// panel. Two tiles of x times both halves need four loads for four products, which the first-level
/// cache can deliver; a batch of at most 16 rows takes one tile of x, and its time is that of
/// streaming the weights. Products are summed in ascending order of columns, 32 at a time, whatever
/// the number of rows. Denormals are flushed to zero, inputs and results alike.

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_avx512.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AMX)
namespace nanovllm::cpu::detail {

/// The operand of `ldtilecfg`: palette 1, and rows and bytes per row of each tile register.
struct alignas(64) AmxConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(AmxConfig) == 64);

/// Shapes tiles 0–3 (sums), 4, 5 (x: `upper` and `lower` rows) and 6, 7 (weights).
inline void amx_configure(int upper, int lower) {
  AmxConfig config;
  const int rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
  for (int i = 0; i < 8; ++i) {
    if (rows[i] == 0) continue;
    config.rows[i] = static_cast<std::uint8_t>(rows[i]);
    config.row_bytes[i] = 64;
  }
  // The compiler takes the tile instructions to read no memory: make it finish its stores.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_loadconfig(&config);
}

/// Leaves the tile registers empty, so that a context switch need not save them.
inline void amx_release() { _tile_release(); }

/// Weights to fetch to the second-level cache during one kernel call: so many cache lines per step
/// of 32 columns, from `address` on.
struct AmxPrefetch {
  const char* address = nullptr;
  int lines = 0;
};

/// A tile of rows of x, at most 32 when there is a lower tile and else 16, times a panel.
template <bool kLower>
void amx_multiply(const bf16* x, std::int64_t stride, const Panel<bf16>& panel,
                  AmxPrefetch prefetch, Tile& tile) {
  constexpr int kLine = 128, kTileLine = sizeof(tile.values[0]);
  const std::int64_t steps = ceil_div(panel.words, 16), stride_bytes = stride * 2;
  const bf16* weights = panel.data;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kLower) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t step = 0; step < steps; ++step, weights += 1024, x += 32) {
    _tile_loadd(4, x, stride_bytes);
    _tile_loadd(6, weights, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + 32, kLine);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kLower) {
      _tile_loadd(5, x + 16 * stride, stride_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (int i = 0; i < prefetch.lines; ++i, prefetch.address += 64) {
      _mm_prefetch(prefetch.address, _MM_HINT_T1);
    }
  }
  _tile_stored(0, tile.values[0], kTileLine);
  _tile_stored(1, tile.values[0] + 16, kTileLine);
  if constexpr (kLower) {
    _tile_stored(2, tile.values[16], kTileLine);
    _tile_stored(3, tile.values[16] + 16, kTileLine);
  }
}

/// y = x · Wᵀ or y += x · Wᵀ.
template <class Out>
struct AmxLinear {
  const bf16* x;  ///< as many columns as a row of the panels has, padding included
  std::int64_t x_stride;
  Out* y;
  std::int64_t y_stride;
  std::int64_t rows;
  bool accumulate;

  /// Tile registers for these rows; to be called on each thread before `multiply`.
  void configure() const {
    amx_configure(static_cast<int>(std::min<std::int64_t>(rows, 16)),
                  static_cast<int>(std::clamp<std::int64_t>(rows - 16, 0, 16)));
  }

  /// Columns [first, first + cols) of y, all rows, 32 at a time. The last rows are computed
  /// together with some before them when there are any, so that all tiles keep their shape; only
  /// their own results are stored.
  void multiply(const Panel<bf16>& panel, std::int64_t first, int cols) const {
    AmxPrefetch prefetch = weights_to_fetch(panel);
    Tile tile;
    for (std::int64_t row = 0; row < rows; row += 32) {
      const std::int64_t end = std::min(row + 32, rows);
      const int height = end - row > 16 ? 32 : 16;
      const std::int64_t start = std::max<std::int64_t>(0, std::min(row, end - height));
      if (height == 32) {
        amx_multiply<true>(x + start * x_stride, x_stride, panel, prefetch, tile);
      } else {
        amx_multiply<false>(x + start * x_stride, x_stride, panel, prefetch, tile);
      }
      prefetch.address += ceil_div(panel.words, 16) * prefetch.lines * 64;
      avx512_store_tile(tile, static_cast<int>(row - start), static_cast<int>(end - start), cols,
                        y + start * y_stride + first, y_stride, accumulate);
    }
  }

 private:
  /// One block of rows is bound by memory and best served a little ahead. Several blocks fetch
  /// the next panel among them, while they work on this one out of the cache.
  AmxPrefetch weights_to_fetch(const Panel<bf16>& panel) const {
    constexpr int kLinesPerStep = 32, kNearBytes = 4096;
    const auto* const begin = reinterpret_cast<const char*>(panel.data);
    const std::int64_t blocks = ceil_div(rows, 32);
    if (blocks == 1) return {begin + kNearBytes, kLinesPerStep};
    if (panel.ahead == 0) return {};
    return {begin + panel.ahead * 2, static_cast<int>((kLinesPerStep + blocks - 1) / blocks)};
  }
};

}  // namespace nanovllm::cpu::detail
NANOVLLM_END_TARGET

#endif
