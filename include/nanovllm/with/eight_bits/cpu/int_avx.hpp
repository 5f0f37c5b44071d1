#pragma once
/// The kernel for matrices of integers with AVX2, whose products of an unsigned and a signed byte
/// are summed by twos to 16 bits, which must not overflow.
///
/// - 4 bits: 15 · 127 · 2 = 3,810, so the eight words of a group are summed in 16 bits.
/// - 8 bits: the size of the weight by x with the weight's sign: 128 · 127 · 2 = 32,512; each word
///   is then summed in 32 bits.
///
/// One or two rows × the four vectors of a panel, so that each line of weights is read once.
///
/// And the kernel with the byte dot product of AVX-512 VNNI: 64 products of an unsigned and a
/// signed byte, summed by fours to sixteen 32-bit integers.
///
/// 8 rows × two vectors of outputs: 16 sums of integers and two vectors of weights stay in the 32
/// registers; the sums of floats, which a group of 32 columns needs once, may be in memory. Words
/// of x are broadcast from memory. Halves of bytes are unpacked once for the rows of a call.
///
/// It has no prefetches: the loads of the next groups are under way early enough, and asking for
/// lines 2 KiB ahead made one row a third to a half slower on an AMD EPYC (Zen 4).

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_avx2.hpp"
#include "nanovllm/cpu/linear/linear_avx512.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/int_tile.hpp"

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX2)
namespace nanovllm::cpu::detail {

inline __m256 avx2_halves(const half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256i avx2_broadcast_word(const ActivationGroup& x, int word) {
  return _mm256_set1_epi32(word_of(x, word));
}

/// Sums by twos of 16-bit integers.
inline __m256i avx2_add_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

inline constexpr int kAvx2Vectors = kPanelRows / 8;  ///< of outputs

/// Σ code of w · code of x of a group: element (i / 4, i % 4 · 8 …) of a tile in accumulator `i`.
template <int... i>
[[gnu::always_inline]] inline void avx2_dot_8_bits(const ActivationGroup* x, std::int64_t stride,
                                                   const std::uint8_t* codes,
                                                   __m256i (&dot)[sizeof...(i)],
                                                   std::integer_sequence<int, i...>) {
  ((dot[i] = _mm256_setzero_si256()), ...);
  NANOVLLM_UNROLL
  for (int word = 0; word < kIntGroup / 4; ++word, codes += 4 * kPanelRows) {
    avx2_prefetch(codes);
    const __m256i bias = _mm256_set1_epi8(-128);
    __m256i weights[kAvx2Vectors], sizes[kAvx2Vectors];
    NANOVLLM_UNROLL
    for (int v = 0; v < kAvx2Vectors; ++v) {
      weights[v] = _mm256_xor_si256(avx2_words(codes + 32 * v), bias);
      sizes[v] = _mm256_abs_epi8(weights[v]);
    }
    ((dot[i] = _mm256_add_epi32(
          dot[i], avx2_add_pairs(_mm256_maddubs_epi16(
                      sizes[i % kAvx2Vectors],
                      _mm256_sign_epi8(avx2_broadcast_word(x[i / kAvx2Vectors * stride], word),
                                       weights[i % kAvx2Vectors]))))),
     ...);
  }
}

/// The same for 4 bits.
template <int... i>
[[gnu::always_inline]] inline void avx2_dot_4_bits(const ActivationGroup* x, std::int64_t stride,
                                                   const std::uint8_t* codes,
                                                   __m256i (&dot)[sizeof...(i)],
                                                   std::integer_sequence<int, i...>) {
  ((dot[i] = _mm256_setzero_si256()), ...);
  const __m256i low_half = _mm256_set1_epi8(15);
  NANOVLLM_UNROLL
  for (int pair = 0; pair < kIntGroup / 8; ++pair, codes += 4 * kPanelRows) {
    avx2_prefetch(codes);
    __m256i even[kAvx2Vectors], odd[kAvx2Vectors];
    NANOVLLM_UNROLL
    for (int v = 0; v < kAvx2Vectors; ++v) {
      const __m256i both = avx2_words(codes + 32 * v);
      even[v] = _mm256_and_si256(both, low_half);
      odd[v] = _mm256_and_si256(_mm256_srli_epi32(both, 4), low_half);
    }
    ((dot[i] = _mm256_add_epi16(
          dot[i],
          _mm256_maddubs_epi16(even[i % kAvx2Vectors],
                               avx2_broadcast_word(x[i / kAvx2Vectors * stride], 2 * pair)))),
     ...);
    ((dot[i] = _mm256_add_epi16(
          dot[i],
          _mm256_maddubs_epi16(odd[i % kAvx2Vectors],
                               avx2_broadcast_word(x[i / kAvx2Vectors * stride], 2 * pair + 1)))),
     ...);
  }
  ((dot[i] = _mm256_sub_epi32(
        avx2_add_pairs(dot[i]),
        _mm256_set1_epi32(IntMatrix<4>::kBias * x[i / kAvx2Vectors * stride].sum))),
   ...);
}

/// A tile whose element (i / 4, i % 4 · 8 …) is summed in accumulator `i`.
template <int kBits, int... i>
void avx2_multiply_integers(const ActivationGroup* x, std::int64_t stride, const IntPanel& panel,
                            Tile& tile, std::integer_sequence<int, i...> indices) {
  using Matrix = IntMatrix<kBits>;
  __m256 sum[] = {(void(i), _mm256_setzero_ps())...};
  const std::uint8_t* group = panel.data;
  for (std::int64_t g = 0; g < panel.groups; ++g, ++x, group += Matrix::kGroupBytes) {
    __m256i dot[sizeof...(i)];
    if constexpr (kBits == 8) {
      avx2_dot_8_bits(x, stride, group, dot, indices);
    } else {
      avx2_dot_4_bits(x, stride, group, dot, indices);
    }
    __m256 value[] = {_mm256_cvtepi32_ps(dot[i])...};
    if (panel.shifts != nullptr) {
      const half* const shifts = panel.shifts + g * kPanelRows;
      ((value[i] =
            _mm256_fmadd_ps(avx2_halves(shifts + i % kAvx2Vectors * 8),
                            _mm256_set1_ps(x[i / kAvx2Vectors * stride].float_sum()), value[i])),
       ...);
    }
    const auto* const scales = reinterpret_cast<const half*>(group + Matrix::kCodeBytes);
    ((sum[i] = _mm256_fmadd_ps(value[i],
                               _mm256_mul_ps(avx2_halves(scales + i % kAvx2Vectors * 8),
                                             _mm256_set1_ps(x[i / kAvx2Vectors * stride].scale)),
                               sum[i])),
     ...);
  }
  (_mm256_store_ps(tile.values[i / kAvx2Vectors] + i % kAvx2Vectors * 8, sum[i]), ...);
}

struct Avx2Int {
  static constexpr int kMaxRows = 2;

  template <int kBits>
  static void multiply(int rows, const ActivationGroup* x, std::int64_t stride,
                       const IntPanel& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      avx2_multiply_integers<kBits>(x, stride, panel, tile,
                                    std::make_integer_sequence<int, kAvx2Vectors * kRows>());
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    Avx2Linear::store(tile, rows, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail
NANOVLLM_END_TARGET

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
