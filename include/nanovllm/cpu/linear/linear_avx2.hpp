#pragma once
/// Linear kernels for AVX2 with FMA and F16C.
///
/// 6 rows × two vectors of outputs: 12 accumulators, two weight vectors and one broadcast of x fit
/// the 16 registers; a panel takes two passes. One or two rows take four vectors in one pass.

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX2)
namespace nanovllm::cpu::detail {

inline __m256i avx2_words(const void* words) {
  return _mm256_load_si256(static_cast<const __m256i*>(words));
}
/// The lower 16 bits of eight words.
inline __m128i avx2_narrow(__m256i words) {
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

/// The first element of each of eight words, as floats.
inline __m256 avx2_first(const float* words) { return _mm256_load_ps(words); }
inline __m256 avx2_first(const bf16* words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(avx2_words(words), 16));
}
inline __m256 avx2_first(const half* words) {
  return _mm256_cvtph_ps(
      avx2_narrow(_mm256_and_si256(avx2_words(words), _mm256_set1_epi32(0xffff))));
}

/// The second element of each of eight words, as floats.
inline __m256 avx2_second(const bf16* words) {
  return _mm256_castsi256_ps(_mm256_and_si256(avx2_words(words), _mm256_set1_epi32(-0x10000)));
}
inline __m256 avx2_second(const half* words) {
  return _mm256_cvtph_ps(avx2_narrow(_mm256_srli_epi32(avx2_words(words), 16)));
}

/// Fetches the word that comes sixteen words after this one: 2 KiB ahead hides the latency of
/// memory and loses little at a panel's end.
inline void avx2_prefetch(const void* word) {
  const char* const ahead = static_cast<const char*>(word) + 2048;
  _mm_prefetch(ahead, _MM_HINT_T0);
  _mm_prefetch(ahead + 64, _MM_HINT_T0);
}

/// `kVectors` vectors of columns of a tile, from `column` on; element (i / kVectors, column +
/// i % kVectors · 8 …) is summed in accumulator `i`. The indices are a pack so that every
/// accumulator is a separate variable, in a register at any optimisation level.
template <int kVectors, class T, int... i>
void avx2_multiply(const float* x, const Panel<T>& panel, int column, Tile& tile,
                   std::integer_sequence<int, i...>) {
  constexpr int kPerWord = PackedMatrix<T>::kPerWord, kVector = 8 * kPerWord;
  constexpr int kRows = sizeof...(i) / kVectors;
  __m256 sum[] = {(void(i), _mm256_setzero_ps())...};
  const T* word = panel.data;
  for (std::int64_t count = panel.words; count > 0; --count, word += kPanelRows * kPerWord) {
    avx2_prefetch(word);
    const T* const weights = word + column * kPerWord;
    ((sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(x[i / kVectors]),
                               avx2_first(weights + i % kVectors * kVector), sum[i])),
     ...);
    x += kRows;
    if constexpr (kPerWord == 2) {
      ((sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(x[i / kVectors]),
                                 avx2_second(weights + i % kVectors * kVector), sum[i])),
       ...);
      x += kRows;
    }
  }
  (_mm256_store_ps(tile.values[i / kVectors] + column + i % kVectors * 8, sum[i]), ...);
}

inline __m256 avx2_load(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 avx2_load(const bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m256 avx2_load(const half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline void avx2_store(float* p, __m256 v) { _mm256_storeu_ps(p, v); }
inline void avx2_store(bf16* p, __m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), avx2_narrow(upper));
}
inline void avx2_store(half* p, __m256 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

struct Avx2Linear {
  using Operand = float;
  static constexpr int kMaxRows = 6;

  template <class T>
  static void multiply(int rows, const float* x, const Panel<T>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      if constexpr (kRows <= 2) {
        avx2_multiply<4>(x, panel, 0, tile, std::make_integer_sequence<int, 4 * kRows>());
      } else {
        avx2_multiply<2>(x, panel, 0, tile, std::make_integer_sequence<int, 2 * kRows>());
        avx2_multiply<2>(x, panel, 16, tile, std::make_integer_sequence<int, 2 * kRows>());
      }
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    const int whole = cols / 8 * 8;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < whole; c += 8) {
        Out* const to = y + r * stride + c;
        __m256 value = _mm256_load_ps(tile.values[r] + c);
        if (accumulate) value = _mm256_add_ps(value, avx2_load(to));
        avx2_store(to, value);
      }
    }
    store_columns(tile, rows, whole, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail
NANOVLLM_END_TARGET

#endif
