#pragma once
/// Kernels for matrices of integers on aarch64, with the byte dot product (SDOT, the extension
/// DotProd) and with the byte matrix product (SMMLA, the extension I8MM).
///
/// SDOT adds to each of four outputs the products of a word, four columns, with a word of x. One or
/// two rows take the eight vectors of outputs of a panel in one pass, four rows four, more rows
/// two: at most 16 sums of integers stay in the 32 registers. The sums of floats, which a group of
/// 32 columns needs once, may be in memory.
///
/// SMMLA multiplies two rows of x by two outputs, eight columns of each: twice as many products an
/// instruction, for which the words of two lines are put side by side. One row takes SDOT, since
/// half of SMMLA's products would be lost.

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_neon.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/neon.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/int_tile.hpp"

namespace nanovllm::cpu::detail {

inline constexpr int kNeonLine = 4 * kPanelRows;  ///< bytes of a word of all outputs of a panel

/// What a dot product of the codes, as `neon_codes` has them, is too large by for each 1 of the sum
/// of x.
template <int kBits>
inline constexpr int kNeonBias = kBits == 8 ? 0 : IntMatrix<kBits>::kBias;

/// Codes of four outputs for word `word`, signed in 8 bits; in 4 bits with their bias.
template <int kBits>
int8x16_t neon_codes(const std::uint8_t* group, int word) {
  if constexpr (kBits == 8) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + word * kNeonLine), vdupq_n_u8(128)));
  } else {
    const uint8x16_t both = vld1q_u8(group + word / 2 * kNeonLine);
    return vreinterpretq_s8_u8(word % 2 == 0 ? vandq_u8(both, vdupq_n_u8(15))
                                             : vshrq_n_u8(both, 4));
  }
}

/// Adds a group to the sums of floats: element (i / kVectors, i % kVectors · 4 …) is in `i`.
/// `shifts` may be null.
template <int kVectors, int... i>
[[gnu::always_inline]] inline void neon_add_group(float32x4_t (&sum)[sizeof...(i)],
                                                  const int32x4_t (&dot)[sizeof...(i)],
                                                  const ActivationGroup* x, std::int64_t stride,
                                                  const half* scales, const half* shifts,
                                                  std::integer_sequence<int, i...>) {
  float32x4_t value[] = {vcvtq_f32_s32(dot[i])...};
  if (shifts != nullptr) {
    ((value[i] = vfmaq_f32(value[i], neon::load_quad(shifts + i % kVectors * 4),
                           vdupq_n_f32(x[i / kVectors * stride].float_sum()))),
     ...);
  }
  ((sum[i] = vfmaq_f32(sum[i], value[i],
                       vmulq_f32(neon::load_quad(scales + i % kVectors * 4),
                                 vdupq_n_f32(x[i / kVectors * stride].scale)))),
   ...);
}

/// Columns [column, column + 4 · kVectors) of a tile, summed as `neon_add_group` has it. `Kernel`
/// gives the dot products of a group.
template <class Kernel, int kBits, int kVectors, int... i>
void neon_multiply_integers(const ActivationGroup* x, std::int64_t stride, const IntPanel& panel,
                            int column, Tile& tile, std::integer_sequence<int, i...> indices) {
  using Matrix = IntMatrix<kBits>;
  float32x4_t sum[] = {(void(i), vdupq_n_f32(0.f))...};
  const std::uint8_t* group = panel.data;
  for (std::int64_t g = 0; g < panel.groups; ++g, ++x, group += Matrix::kGroupBytes) {
    int32x4_t dot[sizeof...(i)];
    Kernel::template dot_of_group<kBits, kVectors>(x, stride, group + 4 * column, dot, indices);
    const auto* const scales = reinterpret_cast<const half*>(group + Matrix::kCodeBytes);
    const half* const shifts = panel.shifts == nullptr ? nullptr : panel.shifts + g * kPanelRows;
    neon_add_group<kVectors>(sum, dot, x, stride, scales + column,
                             shifts == nullptr ? nullptr : shifts + column, indices);
  }
  (neon::store_quad(tile.values[i / kVectors] + column + i % kVectors * 4, sum[i]), ...);
}

/// All columns of a tile of `kRows` rows.
template <class Kernel, int kBits, int kRows>
void neon_multiply_panel(const ActivationGroup* x, std::int64_t stride, const IntPanel& panel,
                         Tile& tile) {
  constexpr int kVectors = kRows <= 2 ? 8 : kRows <= 4 ? 4 : 2;
  for (int column = 0; column < kPanelRows; column += 4 * kVectors) {
    neon_multiply_integers<Kernel, kBits, kVectors>(
        x, stride, panel, column, tile, std::make_integer_sequence<int, kVectors * kRows>());
  }
}

}  // namespace nanovllm::cpu::detail

// In assembly, for the reasons that linear_neon.hpp has. Assemblers take both instructions from
// ARMv8.2 on, which no .arch_extension gives. To that of g++ an .arch holds for the rest of the
// file, so it names what -mcpu may ask for on a CPU without DotProd, too.
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__clang__)
#define NANOVLLM_SDOT "sdot "
#define NANOVLLM_SMMLA ".arch_extension i8mm\n\tsmmla "
#else
#define NANOVLLM_SDOT ".arch armv8.6-a+crypto+sve\n\tsdot "
#define NANOVLLM_SMMLA ".arch armv8.6-a+crypto+sve\n\tsmmla "
#endif
namespace nanovllm::cpu::detail {

/// sum + w · word `kLane` of x, for four outputs.
template <int kLane>
int32x4_t neon_sdot(int32x4_t sum, int8x16_t w, int8x16_t x) {
  asm(NANOVLLM_SDOT "%0.4s, %1.16b, %2.4b[%c3]" : "+w"(sum) : "w"(w), "w"(x), "i"(kLane));
  return sum;
}

struct DotProdInt {
  static constexpr int kMaxRows = 8;

  template <int kBits>
  static void multiply(int rows, const ActivationGroup* x, std::int64_t stride,
                       const IntPanel& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      neon_multiply_panel<DotProdInt, kBits, kRows>(x, stride, panel, tile);
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    neon_store_tile(tile, rows, cols, y, stride, accumulate);
  }

  /// Σ code of w · code of x, element (i / kVectors, i % kVectors · 4 …) in `dot[i]`; `codes` are
  /// those of the first output.
  template <int kBits, int kVectors, int... i>
  [[gnu::always_inline]] static void dot_of_group(const ActivationGroup* x, std::int64_t stride,
                                                  const std::uint8_t* codes,
                                                  int32x4_t (&dot)[sizeof...(i)],
                                                  std::integer_sequence<int, i...> indices) {
    constexpr int kRows = sizeof...(i) / kVectors;
    ((dot[i] = vdupq_n_s32(-kNeonBias<kBits> * x[i / kVectors * stride].sum)), ...);
    NANOVLLM_UNROLL
    for (int word = 0; word < kIntGroup / 4; word += 4) {
      int8x16_t rows[kRows];
      NANOVLLM_UNROLL
      for (int r = 0; r < kRows; ++r) rows[r] = vld1q_s8(x[r * stride].codes + 4 * word);
      add_word<kBits, kVectors, 0>(dot, rows, codes, word, indices);
      add_word<kBits, kVectors, 1>(dot, rows, codes, word, indices);
      add_word<kBits, kVectors, 2>(dot, rows, codes, word, indices);
      add_word<kBits, kVectors, 3>(dot, rows, codes, word, indices);
    }
  }

 private:
  /// The same for word `word` + kLane alone; `x` has four words of each row, `word` and the next.
  template <int kBits, int kVectors, int kLane, int kRows, int... i>
  [[gnu::always_inline]] static void add_word(int32x4_t (&dot)[sizeof...(i)],
                                              const int8x16_t (&x)[kRows],
                                              const std::uint8_t* codes, int word,
                                              std::integer_sequence<int, i...>) {
    int8x16_t w[kVectors];
    NANOVLLM_UNROLL
    for (int v = 0; v < kVectors; ++v) w[v] = neon_codes<kBits>(codes + 16 * v, word + kLane);
    ((dot[i] = neon_sdot<kLane>(dot[i], w[i % kVectors], x[i / kVectors])), ...);
  }
};

/// sum + x · wᵀ, of two rows and two outputs, eight columns each.
inline int32x4_t neon_smmla(int32x4_t sum, int8x16_t x, int8x16_t w) {
  asm(NANOVLLM_SMMLA "%0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(w));
  return sum;
}

/// Row `kRow` of the two that SMMLA has, of four outputs.
template <int kRow>
int32x4_t neon_row_of(int32x4_t first, int32x4_t second) {
  if constexpr (kRow == 0) {
    return vcombine_s32(vget_low_s32(first), vget_low_s32(second));
  } else {
    return vcombine_s32(vget_high_s32(first), vget_high_s32(second));
  }
}

struct I8mmInt {
  static constexpr int kMaxRows = 8;

  template <int kBits>
  static void multiply(int rows, const ActivationGroup* x, std::int64_t stride,
                       const IntPanel& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      if constexpr (kRows == 1) {
        neon_multiply_panel<DotProdInt, kBits, kRows>(x, stride, panel, tile);
      } else {
        neon_multiply_panel<I8mmInt, kBits, kRows>(x, stride, panel, tile);
      }
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    neon_store_tile(tile, rows, cols, y, stride, accumulate);
  }

  /// As that of DotProdInt. While it sums, accumulator `i` has rows 2 p and 2 p + 1 and outputs 2 c
  /// and 2 c + 1, for p = i / (2 · kVectors) and c = i % (2 · kVectors).
  template <int kBits, int kVectors, int... i>
  [[gnu::always_inline]] static void dot_of_group(const ActivationGroup* x, std::int64_t stride,
                                                  const std::uint8_t* codes,
                                                  int32x4_t (&dot)[sizeof...(i)],
                                                  std::integer_sequence<int, i...>) {
    constexpr int kOutputPairs = 2 * kVectors, kRowPairs = sizeof...(i) / kOutputPairs;
    int32x4_t sum[] = {biased<kBits>(x + i / kOutputPairs * 2 * stride, stride)...};
    NANOVLLM_UNROLL
    for (int word = 0; word < kIntGroup / 4; word += 2) {
      int8x16_t rows[kRowPairs], outputs[kOutputPairs];
      NANOVLLM_UNROLL
      for (int p = 0; p < kRowPairs; ++p) {
        const ActivationGroup* const pair = x + 2 * p * stride;
        rows[p] =
            vcombine_s8(vld1_s8(pair->codes + 4 * word), vld1_s8(pair[stride].codes + 4 * word));
      }
      NANOVLLM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const auto first = vreinterpretq_s32_s8(neon_codes<kBits>(codes + 16 * v, word));
        const auto second = vreinterpretq_s32_s8(neon_codes<kBits>(codes + 16 * v, word + 1));
        outputs[2 * v] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
        outputs[2 * v + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
      }
      ((sum[i] = neon_smmla(sum[i], rows[i / kOutputPairs], outputs[i % kOutputPairs])), ...);
    }
    ((dot[i] = neon_row_of<i / kVectors % 2>(sum[at<kVectors>(i)], sum[at<kVectors>(i) + 1])), ...);
  }

 private:
  /// Which accumulator has the first two outputs of element `i` of the result.
  template <int kVectors>
  static constexpr int at(int i) {
    return i / kVectors / 2 * (2 * kVectors) + i % kVectors * 2;
  }

  /// What two rows of x begin with.
  template <int kBits>
  static int32x4_t biased(const ActivationGroup* x, std::int64_t stride) {
    return vcombine_s32(vdup_n_s32(-kNeonBias<kBits> * x->sum),
                        vdup_n_s32(-kNeonBias<kBits> * x[stride].sum));
  }
};

}  // namespace nanovllm::cpu::detail
#undef NANOVLLM_SDOT
#undef NANOVLLM_SMMLA

#endif
