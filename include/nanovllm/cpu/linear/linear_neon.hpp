#pragma once
/// Linear kernels for aarch64: NEON, without and with the matrix product of bf16.
///
/// 6 rows × four vectors of outputs: 24 accumulators, four weight vectors and two of x fit the 32
/// registers; a panel takes two passes. One or two rows take eight vectors in one pass. Weights in
/// 16 bits need registers while they are made floats, and so more passes. With bf16 matrix products
/// it is 8 rows × 8 outputs, 4 × 16 or 2 × 32: 16 accumulators.
///
/// BFMMLA multiplies two rows of x by two rows of the weight, four bf16 of each. To a sum it adds
/// two products, then the next two; each product and each sum is rounded to odd, and denormals are
/// flushed to zero (Arm Architecture Reference Manual, with FPCR.EBF = 0, which is where Linux
/// starts a program).

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/neon.hpp"

namespace nanovllm::cpu::detail {

/// Four words of two elements.
template <class T>
uint32x4_t neon_words(const T* words) {
  return vreinterpretq_u32_u16(vld1q_u16(&words->bits));
}

/// The first element of each of four words, as floats.
inline float32x4_t neon_first(const float* words) { return vld1q_f32(words); }
inline float32x4_t neon_first(const bf16* words) {
  return vreinterpretq_f32_u32(vshlq_n_u32(neon_words(words), 16));
}
inline float32x4_t neon_first(const half* words) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(neon_words(words))));
}

/// The second element of each of four words, as floats.
inline float32x4_t neon_second(const bf16* words) {
  return vreinterpretq_f32_u32(vandq_u32(neon_words(words), vdupq_n_u32(0xffff0000u)));
}
inline float32x4_t neon_second(const half* words) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(neon_words(words), 16)));
}

/// Fetches the word that comes sixteen words after this one, which loses little at a panel's end.
inline void neon_prefetch(const void* word) {
  const char* const ahead = static_cast<const char*>(word) + 2048;
  __builtin_prefetch(ahead);
  __builtin_prefetch(ahead + 64);
}

/// Up to four of an operand's `kRows` rows, from `kFirst` on.
template <int kRows, int kFirst>
float32x4_t neon_rows(const float* x) {
  if constexpr (kRows - kFirst >= 4) {
    return vld1q_f32(x + kFirst);
  } else if constexpr (kRows - kFirst == 2) {
    return vcombine_f32(vld1_f32(x + kFirst), vdup_n_f32(0.f));
  } else {
    return vdupq_n_f32(x[kFirst]);
  }
}

/// sum + w · x[kLane]. (A function, because the intrinsic is a macro in some compilers.)
template <int kLane>
float32x4_t neon_fma(float32x4_t sum, float32x4_t w, float32x4_t x) {
  return vfmaq_laneq_f32(sum, w, x, kLane);
}

/// `kVectors` vectors of columns of a tile, from `column` on; element (i / kVectors, column +
/// i % kVectors · 4 …) is summed in accumulator `i`. The indices are a pack so that every
/// accumulator is a separate variable, in a register at any optimisation level.
template <int kVectors, class T, int... i>
void neon_multiply(const float* x, const Panel<T>& panel, int column, Tile& tile,
                   std::integer_sequence<int, i...>) {
  constexpr int kPerWord = PackedMatrix<T>::kPerWord, kVector = 4 * kPerWord;
  constexpr int kRows = sizeof...(i) / kVectors, kSecond = kRows > 4 ? 4 : 0;
  float32x4_t sum[] = {(void(i), vdupq_n_f32(0.f))...};
  const T* word = panel.data;
  for (std::int64_t count = panel.words; count > 0; --count, word += kPanelRows * kPerWord) {
    neon_prefetch(word);
    const T* const weights = word + column * kPerWord;
    const float32x4_t rows[] = {neon_rows<kRows, 0>(x), neon_rows<kRows, kSecond>(x)};
    ((sum[i] = neon_fma<i / kVectors % 4>(sum[i], neon_first(weights + i % kVectors * kVector),
                                          rows[i / kVectors / 4])),
     ...);
    x += kRows;
    if constexpr (kPerWord == 2) {
      const float32x4_t next[] = {neon_rows<kRows, 0>(x), neon_rows<kRows, kSecond>(x)};
      ((sum[i] = neon_fma<i / kVectors % 4>(sum[i], neon_second(weights + i % kVectors * kVector),
                                            next[i / kVectors / 4])),
       ...);
      x += kRows;
    }
  }
  (neon::store_quad(tile.values[i / kVectors] + column + i % kVectors * 4, sum[i]), ...);
}

/// Rounds a tile's first rows and columns into y.
template <class Out>
void neon_store_tile(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                     bool accumulate) {
  const int whole = cols / 4 * 4;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < whole; c += 4) {
      Out* const to = y + r * stride + c;
      float32x4_t value = vld1q_f32(tile.values[r] + c);
      if (accumulate) value = vaddq_f32(value, neon::load_quad(to));
      neon::store_quad(to, value);
    }
  }
  store_columns(tile, rows, whole, cols, y, stride, accumulate);
}

struct NeonLinear {
  using Operand = float;
  static constexpr int kMaxRows = 6;

  template <class T>
  static void multiply(int rows, const float* x, const Panel<T>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      constexpr int kSize = PackedMatrix<T>::kPerWord * kRows;
      constexpr int kVectors = kSize <= 2 ? 8 : kSize <= 8 ? 4 : 2;
      for (int column = 0; column < kPanelRows; column += 4 * kVectors) {
        neon_multiply<kVectors>(x, panel, column, tile,
                                std::make_integer_sequence<int, kVectors * kRows>());
      }
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    neon_store_tile(tile, rows, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail

// BFMMLA in assembly: clang before 16 has no intrinsic for it in a program for any aarch64, and
// that of g++ cannot be inlined where -mcpu asks for other features. For the assembler's leave,
// clang wants an attribute of the function, and g++ a directive.
#if defined(__clang__)
#define NANOVLLM_BFMMLA "bfmmla "
NANOVLLM_BEGIN_TARGET("bf16")
#else
#define NANOVLLM_BFMMLA ".arch_extension bf16\n\tbfmmla "
#endif
namespace nanovllm::cpu::detail {

/// sum + x · wᵀ, of two rows of four bf16 each.
inline float32x4_t neon_bfmmla(float32x4_t sum, uint32x4_t x, uint32x4_t w) {
  asm(NANOVLLM_BFMMLA "%0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(x), "w"(w));
  return sum;
}

/// Rows 2 · pair and 2 · pair + 1 of two operands: of each row its two words. A missing row is
/// zero.
template <int kRows>
uint32x4_t neon_row_pair(const std::uint32_t* x, const std::uint32_t* next, int pair) {
  const uint32x2_t none = vdup_n_u32(0);
  if constexpr (kRows == 1) {
    const uint32x2_t both = vld1_lane_u32(next, vld1_dup_u32(x), 1);
    return vcombine_u32(both, none);
  } else {
    return vzip1q_u32(vcombine_u32(vld1_u32(x + 2 * pair), none),
                      vcombine_u32(vld1_u32(next + 2 * pair), none));
  }
}

/// Columns 2 · kPair and 2 · kPair + 1 of two lines of words: of each column its two words.
template <int kPair>
uint32x4_t neon_column_pair(const bf16* line, const bf16* next) {
  constexpr int kQuad = kPair / 2 * 8;
  const uint32x4_t words = neon_words(line + kQuad), next_words = neon_words(next + kQuad);
  if constexpr (kPair % 2 == 0) {
    return vzip1q_u32(words, next_words);
  } else {
    return vzip2q_u32(words, next_words);
  }
}

/// Writes what BFMMLA has of rows `row` and, if there is one, row + 1, and of two columns.
template <int kRows>
void neon_store_pair(float32x4_t sum, Tile& tile, int row, int column) {
  vst1_f32(tile.values[row] + column, vget_low_f32(sum));
  if constexpr (kRows > 1) vst1_f32(tile.values[row + 1] + column, vget_high_f32(sum));
}

/// Sums of a tile's columns from `column` on, by BFMMLA: accumulator `i` has rows 2 p and 2 p + 1
/// and columns 2 c and 2 c + 1, for p = i / kColumnPairs and c = i % kColumnPairs. All numbers of
/// rows take this one instruction, so that they have one order of sums.
template <int kRows, int kColumnPairs, int... i>
void neon_bf16_multiply(const std::uint32_t* x, const Panel<bf16>& panel, int column, Tile& tile,
                        std::integer_sequence<int, i...>) {
  static constexpr std::uint32_t kNone[kRows] = {};
  constexpr int kLine = 2 * kPanelRows;
  float32x4_t sum[] = {(void(i), vdupq_n_f32(0.f))...};
  const bf16* weights = panel.data + column * 2;
  for (std::int64_t word = 0; word < panel.words; word += 2) {
    neon_prefetch(weights);
    neon_prefetch(weights + kLine);
    // An odd last word is followed by the padding of the panel.
    const std::uint32_t* const next = word + 1 < panel.words ? x + kRows : kNone;
    ((sum[i] = neon_bfmmla(sum[i], neon_row_pair<kRows>(x, next, i / kColumnPairs),
                           neon_column_pair<i % kColumnPairs>(weights, weights + kLine))),
     ...);
    x += 2 * kRows;
    weights += 2 * kLine;
  }
  (neon_store_pair<kRows>(sum[i], tile, i / kColumnPairs * 2, column + i % kColumnPairs * 2), ...);
}

struct NeonBf16Linear {
  using Operand = std::uint32_t;
  static constexpr int kMaxRows = 8;

  static void multiply(int rows, const std::uint32_t* x, const Panel<bf16>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      constexpr int kPairs = (kRows + 1) / 2;
      constexpr int kColumnPairs = kPairs == 1 ? 16 : kPairs == 2 ? 8 : 4;
      for (int column = 0; column < kPanelRows; column += 2 * kColumnPairs) {
        neon_bf16_multiply<kRows, kColumnPairs>(
            x, panel, column, tile, std::make_integer_sequence<int, kPairs * kColumnPairs>());
      }
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    neon_store_tile(tile, rows, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail
#if defined(__clang__)
NANOVLLM_END_TARGET
#endif
#undef NANOVLLM_BFMMLA

#endif
