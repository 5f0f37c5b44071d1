#pragma once
/// Linear kernel for AMX: bf16 tile products.
///
/// A tile register holds 16 rows of 64 bytes. `tdpbf16ps` adds x[16 rows][32 cols] · w[16 words][16
/// rows of 2] to float32 sums [16][16]; the second operand is one KiB of a panel as it lies in
/// memory. Two tiles of x times two panels need four loads for four products, which the first-level
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
#include "nanovllm/cpu/linear_avx512.hpp"
#include "nanovllm/cpu/linear_tile.hpp"

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

inline void amx_fetch_ahead(const bf16* panel) {
  const char* const ahead = reinterpret_cast<const char*>(panel) + kFetchAheadBytes;
  for (int line = 0; line < 16; ++line) _mm_prefetch(ahead + 64 * line, _MM_HINT_T1);
}

/// A tile of rows of x, at most 32 when there is a lower tile and else 16, times a pair of panels.
/// `kFetch` tells whether to fetch the weights ahead: the first rows do it for the others.
template <bool kLower, bool kFetch>
void amx_multiply(const bf16* x, std::int64_t stride, const PanelPair<bf16>& pair, Tile& tile) {
  constexpr int kTileElements = 512, kTileLine = sizeof(tile.values[0]);
  const std::int64_t steps = ceil_div(pair.words, 16), stride_bytes = stride * 2;
  const bf16 *first = pair.first, *second = pair.second;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kLower) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, x, stride_bytes);
    _tile_loadd(6, first, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, second, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kLower) {
      _tile_loadd(5, x + 16 * stride, stride_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (kFetch) {
      amx_fetch_ahead(first);
      amx_fetch_ahead(second);
    }
    x += 32;
    first += kTileElements;
    second += kTileElements;
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
  void multiply(const PanelPair<bf16>& pair, std::int64_t first, int cols) const {
    Tile tile;
    for (std::int64_t row = 0; row < rows; row += 32) {
      const std::int64_t end = std::min(row + 32, rows);
      const bool lower = end - row > 16;
      const std::int64_t start = std::max<std::int64_t>(0, std::min(row, end - (lower ? 32 : 16)));
      const auto kernel = lower
                              ? (row == 0 ? amx_multiply<true, true> : amx_multiply<true, false>)
                              : (row == 0 ? amx_multiply<false, true> : amx_multiply<false, false>);
      kernel(x + start * x_stride, x_stride, pair, tile);
      avx512_store_tile(tile, static_cast<int>(row - start), static_cast<int>(end - start), cols,
                        y + start * y_stride + first, y_stride, accumulate);
    }
  }
};

}  // namespace nanovllm::cpu::detail
NANOVLLM_END_TARGET

#endif
