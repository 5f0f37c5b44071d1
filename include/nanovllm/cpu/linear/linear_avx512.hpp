#pragma once
/// Linear kernels for AVX-512, without and with the bf16 dot product.
///
/// 12 rows × two vectors of outputs: 24 accumulators, two weight vectors and the broadcasts of x
/// fit the 32 registers and need 14 loads for 24 multiply-adds, so that a core of two loads and two
/// multiply-adds a cycle is bound by the latter; 24 chains hide their latency.
///
/// The dot-product instruction rounds to nearest even and flushes denormals to zero, inputs and
/// results alike. A machine may run it at half the rate of float32 multiply-adds (Sapphire Rapids)
/// or at twice that rate (Zen 5).

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"

// Unmasked shifts and conversions of g++ 12 raise a false "maybe uninitialized"; under a mask of
// ones they compile to the same instruction without it.

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX512)
namespace nanovllm::cpu::detail {

inline constexpr __mmask16 kAllLanes = 0xffff;

/// The first element of each of sixteen words, as floats.
inline __m512 avx512_first(const float* words) { return _mm512_load_ps(words); }
inline __m512 avx512_first(const bf16* words) {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, _mm512_load_si512(words), 16));
}
inline __m512 avx512_first(const half* words) {
  const __m256i low = _mm512_maskz_cvtepi32_epi16(kAllLanes, _mm512_load_si512(words));
  return _mm512_maskz_cvtph_ps(kAllLanes, low);
}

/// The second element of each of sixteen words, as floats.
inline __m512 avx512_second(const bf16* words) {
  const __m512i upper = _mm512_set1_epi32(-0x10000);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(words), upper));
}
inline __m512 avx512_second(const half* words) {
  const __m512i shifted = _mm512_maskz_srli_epi32(kAllLanes, _mm512_load_si512(words), 16);
  return _mm512_maskz_cvtph_ps(kAllLanes, _mm512_maskz_cvtepi32_epi16(kAllLanes, shifted));
}

/// Fetches the word that comes sixteen words after this one: 2 KiB ahead hides the latency of
/// memory and loses little at a panel's end.
inline void avx512_prefetch(const void* word) {
  const char* const ahead = static_cast<const char*>(word) + 2048;
  _mm_prefetch(ahead, _MM_HINT_T0);
  _mm_prefetch(ahead + 64, _MM_HINT_T0);
}

/// A tile whose element (i / 2, i % 2 · 16 …) is summed in accumulator `i`. The indices are a pack
/// so that every accumulator is a separate variable, in a register at any optimisation level.
template <class T, int... i>
void avx512_multiply(const float* x, const Panel<T>& panel, Tile& tile,
                     std::integer_sequence<int, i...>) {
  constexpr int kPerWord = PackedMatrix<T>::kPerWord, kLine = 16 * kPerWord;
  constexpr int kRows = sizeof...(i) / 2;
  __m512 sum[] = {(void(i), _mm512_setzero_ps())...};
  const T* weights = panel.data;
  for (std::int64_t word = 0; word < panel.words; ++word) {
    avx512_prefetch(weights);
    const __m512 first[] = {avx512_first(weights), avx512_first(weights + kLine)};
    ((sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(x[i / 2]), first[i % 2], sum[i])), ...);
    x += kRows;
    if constexpr (kPerWord == 2) {
      const __m512 second[] = {avx512_second(weights), avx512_second(weights + kLine)};
      ((sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(x[i / 2]), second[i % 2], sum[i])), ...);
      x += kRows;
    }
    weights += 2 * kLine;
  }
  (_mm512_store_ps(tile.values[i / 2] + i % 2 * 16, sum[i]), ...);
}

inline __m512 avx512_load(__mmask16 lanes, const float* p) {
  return _mm512_maskz_loadu_ps(lanes, p);
}
inline __m512 avx512_load(__mmask16 lanes, const bf16* p) {
  const __m512i bits = _mm512_maskz_cvtepu16_epi32(kAllLanes, _mm256_maskz_loadu_epi16(lanes, p));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, bits, 16));
}
inline __m512 avx512_load(__mmask16 lanes, const half* p) {
  return _mm512_maskz_cvtph_ps(kAllLanes, _mm256_maskz_loadu_epi16(lanes, p));
}

inline void avx512_store(__mmask16 lanes, float* p, __m512 v) {
  _mm512_mask_storeu_ps(p, lanes, v);
}
inline void avx512_store(__mmask16 lanes, bf16* p, __m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_mask_storeu_epi16(
      p, lanes,
      _mm512_maskz_cvtepi32_epi16(kAllLanes, _mm512_maskz_srli_epi32(kAllLanes, chosen, 16)));
}
inline void avx512_store(__mmask16 lanes, half* p, __m512 v) {
  _mm256_mask_storeu_epi16(p, lanes,
                           _mm512_maskz_cvtps_ph(kAllLanes, v, _MM_FROUND_TO_NEAREST_INT));
}

/// Rounds rows [first, last) and columns [0, cols) of a tile into y, whose row 0 is the tile's.
template <class Out>
void avx512_store_tile(const Tile& tile, int first, int last, int cols, Out* y, std::int64_t stride,
                       bool accumulate) {
  for (int c = 0; c < cols; c += 16) {
    const auto lanes = static_cast<__mmask16>((1u << std::min(16, cols - c)) - 1u);
    for (int r = first; r < last; ++r) {
      Out* const to = y + r * stride + c;
      __m512 value = _mm512_load_ps(tile.values[r] + c);
      if (accumulate) value = _mm512_add_ps(value, avx512_load(lanes, to));
      avx512_store(lanes, to, value);
    }
  }
}

struct Avx512Linear {
  using Operand = float;
  static constexpr int kMaxRows = 12;

  template <class T>
  static void multiply(int rows, const float* x, const Panel<T>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      avx512_multiply(x, panel, tile, std::make_integer_sequence<int, 2 * kRows>());
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

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX512_BF16)
namespace nanovllm::cpu::detail {

inline __m512bh avx512_words(const void* words) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(words));
}
inline __m512bh avx512_broadcast(std::uint32_t word) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(word)));
}

/// As avx512_multiply, a word of x at a time.
template <int... i>
void avx512_bf16_multiply(const std::uint32_t* x, const Panel<bf16>& panel, Tile& tile,
                          std::integer_sequence<int, i...>) {
  __m512 sum[] = {(void(i), _mm512_setzero_ps())...};
  const bf16* weights = panel.data;
  for (std::int64_t word = 0; word < panel.words; ++word) {
    avx512_prefetch(weights);
    const __m512bh w[] = {avx512_words(weights), avx512_words(weights + 32)};
    ((sum[i] = _mm512_dpbf16_ps(sum[i], avx512_broadcast(x[i / 2]), w[i % 2])), ...);
    x += sizeof...(i) / 2;
    weights += 64;
  }
  (_mm512_store_ps(tile.values[i / 2] + i % 2 * 16, sum[i]), ...);
}

struct Avx512Bf16Linear {
  using Operand = std::uint32_t;
  static constexpr int kMaxRows = 12;

  static void multiply(int rows, const std::uint32_t* x, const Panel<bf16>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      avx512_bf16_multiply(x, panel, tile, std::make_integer_sequence<int, 2 * kRows>());
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
