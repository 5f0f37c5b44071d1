#pragma once
/// `Vec` as one AVX-512 register. See simd.hpp.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/simd/portable.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#include <cstdint>

#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // in g++ 12's own intrinsics, once inlined
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX512)
namespace nanovllm::cpu::avx512 {

/// Rows × vectors of sums that a matrix kernel keeps in registers: 16 of the 32.
inline constexpr int kBlockRows = 8, kBlockVecs = 2;

struct Vec {
  __m512 v;
};

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Vec load(const half* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline Vec load(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
/// As half, whose exponent has 8 more for its bias and one bit more.
inline Vec load(const fp8_e4m3* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i ones = _mm_set1_epi8(-1);
  const __mmask16 is_number = _mm_cmpneq_epi8_mask(_mm_or_si128(bytes, _mm_set1_epi8(-128)), ones);
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i halves = _mm256_and_si256(shifted, _mm256_set1_epi16(-0x4080));
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  return {_mm512_mask_cvtph_ps(nan, is_number, halves)};
}

/// The lanes rounded to bf16, in their upper halves; the lower halves are undefined. (The
/// instruction of AVX512-BF16 would flush subnormals to zero.)
inline __m512i bf16_bits(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
}

inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v.v); }
inline void store(bf16* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(v), 16)));
}
inline void store(half* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }

inline Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}

inline std::uint32_t mask_gt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline std::uint32_t mask_ge(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }

inline float reduce_add(Vec v) { return _mm512_reduce_add_ps(v.v); }
inline float reduce_max(Vec v) { return _mm512_reduce_max_ps(v.v); }

template <Element T>
inline Vec round_to(Vec v);
template <>
inline Vec round_to<float>(Vec v) {
  return v;
}
template <>
inline Vec round_to<bf16>(Vec v) {
  return {_mm512_castsi512_ps(_mm512_and_si512(bf16_bits(v), _mm512_set1_epi32(-0x10000)))};
}
template <>
inline Vec round_to<half>(Vec v) {
  return {_mm512_cvtph_ps(_mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}

inline Vec scale_by_power(Vec p, Vec t) {
  const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), power))};
}

inline Vec load_bits(const void* p) { return {_mm512_loadu_ps(p)}; }
inline Vec even_bf16(Vec pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))};
}
inline Vec odd_bf16(Vec pairs) {
  const __m512i upper = _mm512_set1_epi32(-0x10000);
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs.v), upper))};
}

/// Pairs, fours, then quarters and halves of the registers change places.
inline void transpose(Vec (&rows)[kLanes]) {
  __m512 a[kLanes], b[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < kLanes; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
    a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i].v = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    rows[i + 8].v = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
  }
}

inline Vec sum_each(const Vec (&rows)[kLanes]) {
  __m512 a[8], b[4];
  for (int i = 0; i < 8; ++i) {
    const __m512 x = rows[2 * i].v, y = rows[2 * i + 1].v;
    a[i] = _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
  }
  for (int i = 0; i < 4; ++i) {  // four sums of four lanes each
    b[i] = _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                         _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
  }
  for (int i = 0; i < 2; ++i) {
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
  }
  return {_mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x88),
                        _mm512_shuffle_f32x4(a[0], a[1], 0xdd))};
}

/// Words in the lower halves of 64-bit lanes, the halves above them undefined, as products of
/// 32-bit words want them.
struct PhiloxWords {
  __m512i a, b, c, d;
};

/// A round of core/philox.hpp on eight counters.
inline void philox_round(PhiloxWords& x, __m512i key0, __m512i key1) {
  constexpr int kXor = 0x96;
  const __m512i product0 = _mm512_mul_epu32(x.a, _mm512_set1_epi64(0xD2511F53));
  const __m512i product1 = _mm512_mul_epu32(x.c, _mm512_set1_epi64(0xCD9E8D57));
  x.a = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), x.b, key0, kXor);
  x.b = product1;
  x.c = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), x.d, key1, kXor);
  x.d = product0;
}

inline Vec upper_24_bits(__m512i words) {
  const __m512 upper = _mm512_cvtepi32_ps(_mm512_srli_epi32(words, 8));
  return {_mm512_mul_ps(upper, _mm512_set1_ps(0x1p-24f))};
}

/// Counters lie in such an order that four words of each end beside each other.
inline void random_fractions(std::uint64_t key, std::uint32_t counter, std::uint64_t position,
                             Vec (&out)[4]) {
  const __m512i low = _mm512_set1_epi64(0xffffffff);
  PhiloxWords x[2];
  for (int i = 0; i < 2; ++i) {
    x[i].a = _mm512_add_epi32(_mm512_set1_epi64(counter + 8 * static_cast<std::uint32_t>(i)),
                              _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0));
    x[i].b = _mm512_set1_epi64(static_cast<std::uint32_t>(position));
    x[i].c = _mm512_set1_epi64(static_cast<std::uint32_t>(position >> 32));
    x[i].d = _mm512_setzero_si512();
  }
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m512i keys0 = _mm512_set1_epi64(key0), keys1 = _mm512_set1_epi64(key1);
    philox_round(x[0], keys0, keys1);
    philox_round(x[1], keys0, keys1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < 2; ++i) {
    constexpr int kOtherIfClear = 0xca;  // low ? first : second
    const __m512i ab =
        _mm512_ternarylogic_epi64(low, x[i].a, _mm512_slli_epi64(x[i].b, 32), kOtherIfClear);
    const __m512i cd =
        _mm512_ternarylogic_epi64(low, x[i].c, _mm512_slli_epi64(x[i].d, 32), kOtherIfClear);
    out[2 * i] = upper_24_bits(_mm512_unpacklo_epi64(ab, cd));
    out[2 * i + 1] = upper_24_bits(_mm512_unpackhi_epi64(ab, cd));
  }
}

}  // namespace nanovllm::cpu::avx512
NANOVLLM_END_TARGET

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
