#pragma once
/// The kernel for matrices of integers with the byte dot product of AVX-512 VNNI: 64 products of an
/// unsigned and a signed byte, summed by fours to sixteen 32-bit integers.
///
/// 8 rows × two vectors of outputs: 16 sums of integers and two vectors of weights stay in the 32
/// registers; the sums of floats, which a group of 32 columns needs once, may be in memory. Words
/// of x are broadcast from memory. Halves of bytes are unpacked once for the rows of a call.
///
/// There are no prefetches: the loads of the next groups are under way early enough, and asking for
/// lines 2 KiB ahead made one row a third to a half slower on an AMD EPYC (Zen 4).

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_avx512.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/int_tile.hpp"
#include "nanovllm/with/eight_bits/cpu/quantise.hpp"

#define NANOVLLM_TARGET_AVX512_VNNI "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"

namespace nanovllm::cpu::detail {

[[nodiscard]] inline bool has_avx512_vnni() {
  static const bool has = best_isa() >= Isa::avx512 && __builtin_cpu_supports("avx512vnni");
  return has;
}

}  // namespace nanovllm::cpu::detail

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX512_VNNI)
namespace nanovllm::cpu::detail {

inline __m512 vnni_halves(const void* p) {
  return _mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

/// sum[i] += products of the four columns of a word.
template <int... i>
[[gnu::always_inline]] inline void vnni_add_word(__m512i (&dot)[sizeof...(i)],
                                                 const __m512i (&w)[2], const ActivationGroup* x,
                                                 std::int64_t stride, int word,
                                                 std::integer_sequence<int, i...>) {
  ((dot[i] =
        _mm512_dpbusd_epi32(dot[i], w[i % 2], _mm512_set1_epi32(word_of(x[i / 2 * stride], word)))),
   ...);
}

/// A tile whose element (i / 2, i % 2 · 16 …) is summed in accumulator `i`. The indices are a pack
/// so that every accumulator is a separate variable, in a register at any optimisation level.
template <int kBits, bool kShifts, int... i>
void vnni_multiply(const ActivationGroup* x, std::int64_t stride, const IntPanel& panel, Tile& tile,
                   std::integer_sequence<int, i...> indices) {
  using Matrix = IntMatrix<kBits>;
  constexpr int kLine = 4 * kPanelRows;
  __m512 sum[] = {(void(i), _mm512_setzero_ps())...};
  const std::uint8_t* group = panel.data;
  for (std::int64_t g = 0; g < panel.groups; ++g, ++x, group += Matrix::kGroupBytes) {
    __m512i dot[] = {_mm512_set1_epi32(-Matrix::kBias * x[i / 2 * stride].sum)...};
    NANOVLLM_UNROLL
    for (int line = 0; line < Matrix::kCodeBytes / kLine; ++line) {
      const std::uint8_t* const codes = group + line * kLine;
      const __m512i both[] = {_mm512_load_si512(codes), _mm512_load_si512(codes + 64)};
      if constexpr (kBits == 8) {
        vnni_add_word(dot, both, x, stride, line, indices);
      } else {
        const __m512i low_half = _mm512_set1_epi8(15);
        const __m512i even[] = {_mm512_and_si512(both[0], low_half),
                                _mm512_and_si512(both[1], low_half)};
        const __m512i odd[] = {
            _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, both[0], 4), low_half),
            _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, both[1], 4), low_half)};
        vnni_add_word(dot, even, x, stride, 2 * line, indices);
        vnni_add_word(dot, odd, x, stride, 2 * line + 1, indices);
      }
    }
    const __m512 scales[] = {vnni_halves(group + Matrix::kCodeBytes),
                             vnni_halves(group + Matrix::kCodeBytes + 32)};
    __m512 value[] = {_mm512_maskz_cvtepi32_ps(kAllLanes, dot[i])...};
    if constexpr (kShifts) {
      const half* const shifts = panel.shifts + g * kPanelRows;
      const __m512 shift[] = {vnni_halves(shifts), vnni_halves(shifts + 16)};
      ((value[i] =
            _mm512_fmadd_ps(shift[i % 2], _mm512_set1_ps(x[i / 2 * stride].float_sum()), value[i])),
       ...);
    }
    ((sum[i] = _mm512_fmadd_ps(
          value[i], _mm512_mul_ps(scales[i % 2], _mm512_set1_ps(x[i / 2 * stride].scale)), sum[i])),
     ...);
  }
  (_mm512_store_ps(tile.values[i / 2] + i % 2 * 16, sum[i]), ...);
}

struct VnniInt {
  static constexpr int kMaxRows = 8;

  template <int kBits>
  static void multiply(int rows, const ActivationGroup* x, std::int64_t stride,
                       const IntPanel& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      constexpr std::make_integer_sequence<int, 2 * kRows> kIndices{};
      if (panel.shifts == nullptr) {
        vnni_multiply<kBits, false>(x, stride, panel, tile, kIndices);
      } else {
        vnni_multiply<kBits, true>(x, stride, panel, tile, kIndices);
      }
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    avx512_store_tile(tile, 0, rows, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail
NANOVLLM_END_TARGET

#endif
