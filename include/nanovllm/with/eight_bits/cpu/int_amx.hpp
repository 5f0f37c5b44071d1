#pragma once
/// The kernel for matrices of integers with the tile products of bytes of AMX, for many rows.
///
/// `tdpbssd` adds x[16 rows][32 columns] · w[8 words][16 outputs of 4] to 16 × 16 sums of integers:
/// a group of 32 columns is one product of half a tile register's width, since the next group has
/// other scales. The codes of a panel are made signed bytes once, for all rows of x. The sums of
/// floats of 16 rows stay in the registers of AVX-512 while groups go by. A group's product begins
/// before the one ahead of it is scaled, in other tile registers, so that both units work.

#if defined(__x86_64__)

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_amx.hpp"
#include "nanovllm/cpu/linear/linear_avx512.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/eight_bits/cpu/int_avx.hpp"
#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/int_tile.hpp"

#define NANOVLLM_TARGET_AMX_INT8 \
  "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8"

namespace nanovllm::cpu::detail {

[[nodiscard]] inline bool has_amx_int8() {
  static const bool has = best_isa() >= Isa::amx && cpu_has_amx_int8() && has_avx512_vnni();
  return has;
}

}  // namespace nanovllm::cpu::detail

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AMX_INT8)
namespace nanovllm::cpu::detail {

/// The sums that a tile register holds.
struct alignas(64) AmxDots {
  std::int32_t values[16][16];
};

/// The products of 16 rows of x with 16 outputs, of a group. `kSet` is the set of tile registers
/// that it uses; `codes` are those of the first output.
template <int kSet>
[[gnu::always_inline]] inline void amx_dot(const ActivationGroup* x, std::int64_t stride,
                                           const std::int8_t* codes, AmxDots& dots) {
  constexpr int kLine = 4 * kPanelRows;
  const auto stride_bytes = stride * static_cast<std::int64_t>(sizeof(ActivationGroup));
  if constexpr (kSet == 0) {  // the numbers of the registers must be literals
    _tile_zero(0);
    _tile_loadd(1, x->codes, stride_bytes);
    _tile_loadd(2, codes, kLine);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, dots.values, 64);
  } else {
    _tile_zero(3);
    _tile_loadd(4, x->codes, stride_bytes);
    _tile_loadd(5, codes, kLine);
    _tile_dpbssd(3, 4, 5);
    _tile_stored(3, dots.values, 64);
  }
}

/// Columns [column, column + 16) of a tile of 16 rows; row `i` is summed in accumulator `i`.
template <int kBits, bool kShifts, int... i>
void amx_multiply_integers(const ActivationGroup* x, std::int64_t stride, const IntPanel& panel,
                           const std::int8_t* codes, int column, Tile& tile,
                           std::integer_sequence<int, i...>) {
  using Matrix = IntMatrix<kBits>;
  constexpr int kGroupCodes = kPanelRows * static_cast<int>(kIntGroup);
  AmxDots dots[2];
  __m512 sum[] = {(void(i), _mm512_setzero_ps())...};
  codes += 4 * column;
  amx_dot<0>(x, stride, codes, dots[0]);
  const std::uint8_t* scales_at = panel.data + Matrix::kCodeBytes + 2 * column;
  for (std::int64_t g = 0; g < panel.groups; ++g, ++x, scales_at += Matrix::kGroupBytes) {
    codes += kGroupCodes;
    if (g + 1 < panel.groups) {
      if (g % 2 == 0) {
        amx_dot<1>(x + 1, stride, codes, dots[1]);
      } else {
        amx_dot<0>(x + 1, stride, codes, dots[0]);
      }
    }
    const auto& dot = dots[g % 2].values;
    const __m512 scales = vnni_halves(scales_at);
    __m512 value[] = {_mm512_maskz_cvtepi32_ps(
        kAllLanes, _mm512_load_si512(static_cast<const void*>(dot[i])))...};
    if constexpr (kShifts) {
      const __m512 shift = vnni_halves(panel.shifts + g * kPanelRows + column);
      ((value[i] = _mm512_fmadd_ps(shift, _mm512_set1_ps(x[i * stride].float_sum()), value[i])),
       ...);
    }
    ((sum[i] = _mm512_fmadd_ps(value[i], _mm512_mul_ps(scales, _mm512_set1_ps(x[i * stride].scale)),
                               sum[i])),
     ...);
  }
  (_mm512_store_ps(tile.values[i] + column, sum[i]), ...);
}

struct AmxInt {
  static constexpr int kRows = 16;  ///< that a call takes, no fewer

  /// Bytes of the codes of a panel, as `unpack` has them.
  [[nodiscard]] static std::int64_t unpacked_bytes(const IntPanel& panel) {
    return panel.groups * kPanelRows * kIntGroup;
  }

  /// Shapes the tile registers; to be called on each thread before `multiply`. `amx_release` frees
  /// them.
  static void configure() {
    AmxConfig config;
    for (const int first : {0, 3}) {  // sums, x, weights
      constexpr std::uint8_t kTileRows[] = {kRows, kRows, kIntGroup / 4};
      constexpr std::uint16_t kRowBytes[] = {64, kIntGroup, 64};
      for (int i = 0; i < 3; ++i) {
        config.rows[first + i] = kTileRows[i];
        config.row_bytes[first + i] = kRowBytes[i];
      }
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);  // as in amx_configure
    _tile_loadconfig(&config);
  }

  /// The codes of a panel, [groups][8 words][32 outputs][4 columns], signed. `out` is 64-byte
  /// aligned.
  template <int kBits>
  static void unpack(const IntPanel& panel, std::int8_t* out) {
    using Matrix = IntMatrix<kBits>;
    constexpr int kLine = 4 * kPanelRows;
    const std::uint8_t* group = panel.data;
    for (std::int64_t g = 0; g < panel.groups; ++g, group += Matrix::kGroupBytes) {
      for (int at = 0; at < Matrix::kCodeBytes; at += 64) {
        const __m512i codes = _mm512_load_si512(group + at);
        if constexpr (kBits == 8) {
          _mm512_store_si512(out + at, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)));
        } else {
          const __m512i low_half = _mm512_set1_epi8(15), bias = _mm512_set1_epi8(Matrix::kBias);
          const __m512i high = _mm512_maskz_srli_epi32(kAllLanes, codes, 4);
          std::int8_t* const to = out + at / kLine * 2 * kLine + at % kLine;
          _mm512_store_si512(to, _mm512_sub_epi8(_mm512_and_si512(codes, low_half), bias));
          _mm512_store_si512(to + kLine, _mm512_sub_epi8(_mm512_and_si512(high, low_half), bias));
        }
      }
      out += kPanelRows * kIntGroup;
    }
    // The compiler takes the tile instructions to read no memory: make it finish its stores.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  /// A tile of 16 rows, as the families of int_tile.hpp; `codes` is what `unpack` made of `panel`.
  template <int kBits>
  static void multiply(const ActivationGroup* x, std::int64_t stride, const IntPanel& panel,
                       const std::int8_t* codes, Tile& tile) {
    constexpr std::make_integer_sequence<int, kRows> kIndices{};
    for (int column = 0; column < kPanelRows; column += 16) {
      if (panel.shifts == nullptr) {
        amx_multiply_integers<kBits, false>(x, stride, panel, codes, column, tile, kIndices);
      } else {
        amx_multiply_integers<kBits, true>(x, stride, panel, codes, column, tile, kIndices);
      }
    }
  }
};

}  // namespace nanovllm::cpu::detail
NANOVLLM_END_TARGET

#endif
