#pragma once
/// `Vec` as two AVX2 registers. See simd.hpp.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/simd/portable.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#include <cstdint>

NANOVLLM_BEGIN_TARGET(NANOVLLM_TARGET_AVX2)
namespace nanovllm::cpu::avx2 {

/// Rows × vectors of sums that a matrix kernel keeps in registers: 8 of the 16.
inline constexpr int kBlockRows = 4, kBlockVecs = 1;

struct Vec {
  __m256 lo, hi;
};

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

inline __m256 load_half_vec(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load_half_vec(const bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m256 load_half_vec(const half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <Element T>
inline Vec load(const T* p) {
  return {load_half_vec(p), load_half_vec(p + 8)};
}
inline Vec load(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}
/// As half, whose exponent has 8 more for its bias and one bit more. A NaN's bits are all set.
inline Vec load(const fp8_e4m3* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i ones = _mm_set1_epi8(-1);
  const __m128i is_nan = _mm_cmpeq_epi8(_mm_or_si128(bytes, _mm_set1_epi8(-128)), ones);
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i halves = _mm256_or_si256(_mm256_and_si256(shifted, _mm256_set1_epi16(-0x4080)),
                                         _mm256_cvtepi8_epi16(is_nan));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

/// Eight floats rounded to bf16, in the upper halves of the lanes; the lower halves are undefined.
inline __m256i bf16_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

inline void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
inline void store(bf16* p, Vec v) {
  const __m256i lo = _mm256_srli_epi32(bf16_bits(v.lo), 16);
  const __m256i hi = _mm256_srli_epi32(bf16_bits(v.hi), 16);
  const __m256i interleaved = _mm256_packus_epi32(lo, hi);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(interleaved, 0xd8));
}
inline void store(half* p, Vec v) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, kNearest));
}

inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }

inline Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}

inline std::uint32_t mask_gt(Vec a, Vec b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
  return static_cast<std::uint32_t>(lo | hi << 8);
}
inline std::uint32_t mask_ge(Vec a, Vec b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
  return static_cast<std::uint32_t>(lo | hi << 8);
}

inline float reduce_add(Vec v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float reduce_max(Vec v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

template <Element T>
inline Vec round_to(Vec v);
template <>
inline Vec round_to<float>(Vec v) {
  return v;
}
template <>
inline Vec round_to<bf16>(Vec v) {
  const __m256i upper = _mm256_set1_epi32(-0x10000);
  return {_mm256_castsi256_ps(_mm256_and_si256(bf16_bits(v.lo), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(bf16_bits(v.hi), upper))};
}
template <>
inline Vec round_to<half>(Vec v) {
  half rounded[kLanes];
  store(rounded, v);
  return load(rounded);
}

inline Vec scale_by_power(Vec p, Vec t) {
  const __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(t.lo), 23);
  const __m256i hi = _mm256_slli_epi32(_mm256_castps_si256(t.hi), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.lo), lo)),
          _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.hi), hi))};
}

inline Vec load_bits(const void* p) {
  const auto* const halves = static_cast<const float*>(p);
  return {_mm256_loadu_ps(halves), _mm256_loadu_ps(halves + 8)};
}
inline Vec even_bf16(Vec pairs) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.lo), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.hi), 16))};
}
inline Vec odd_bf16(Vec pairs) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000));
  return {_mm256_and_ps(pairs.lo, upper), _mm256_and_ps(pairs.hi, upper)};
}

/// Transposes an 8 × 8 block: pairs, then fours, then halves of the registers change places.
inline void transpose_8x8(__m256 (&r)[8]) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

inline void transpose(Vec (&rows)[kLanes]) {
  __m256 quarter[4][8];  // top left, top right, bottom left, bottom right
  for (int i = 0; i < 8; ++i) {
    quarter[0][i] = rows[i].lo;
    quarter[1][i] = rows[i].hi;
    quarter[2][i] = rows[i + 8].lo;
    quarter[3][i] = rows[i + 8].hi;
  }
  for (auto& block : quarter) transpose_8x8(block);
  for (int i = 0; i < 8; ++i) {
    rows[i] = {quarter[0][i], quarter[2][i]};
    rows[i + 8] = {quarter[1][i], quarter[3][i]};
  }
}

inline Vec sum_each(const Vec (&rows)[kLanes]) {
  __m256 sums[2];
  for (int i = 0; i < 2; ++i) {
    __m256 a[8];
    for (int j = 0; j < 8; ++j) a[j] = _mm256_add_ps(rows[8 * i + j].lo, rows[8 * i + j].hi);
    for (int j = 0; j < 4; ++j) a[j] = _mm256_hadd_ps(a[2 * j], a[2 * j + 1]);
    for (int j = 0; j < 2; ++j) a[j] = _mm256_hadd_ps(a[2 * j], a[2 * j + 1]);
    sums[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[0], a[1], 0x20),
                            _mm256_permute2f128_ps(a[0], a[1], 0x31));
  }
  return {sums[0], sums[1]};
}

/// Words in the lower halves of 64-bit lanes, the halves above them undefined, as products of
/// 32-bit words want them.
struct PhiloxWords {
  __m256i a, b, c, d;
};

/// A round of core/philox.hpp on four counters.
inline void philox_round(PhiloxWords& x, __m256i key0, __m256i key1) {
  const __m256i product0 = _mm256_mul_epu32(x.a, _mm256_set1_epi64x(0xD2511F53));
  const __m256i product1 = _mm256_mul_epu32(x.c, _mm256_set1_epi64x(0xCD9E8D57));
  x.a = _mm256_xor_si256(_mm256_srli_epi64(product1, 32), _mm256_xor_si256(x.b, key0));
  x.b = product1;
  x.c = _mm256_xor_si256(_mm256_srli_epi64(product0, 32), _mm256_xor_si256(x.d, key1));
  x.d = product0;
}

inline __m256 upper_24_bits(__m256i words) {
  const __m256 upper = _mm256_cvtepi32_ps(_mm256_srli_epi32(words, 8));
  return _mm256_mul_ps(upper, _mm256_set1_ps(0x1p-24f));
}

/// Counters lie in such an order that four words of each end beside each other.
inline void random_fractions(std::uint64_t key, std::uint32_t counter, std::uint64_t position,
                             Vec (&out)[4]) {
  PhiloxWords x[4];
  for (int i = 0; i < 4; ++i) {
    x[i].a = _mm256_add_epi32(_mm256_set1_epi64x(counter + 4 * static_cast<std::uint32_t>(i)),
                              _mm256_set_epi64x(3, 1, 2, 0));
    x[i].b = _mm256_set1_epi64x(static_cast<std::uint32_t>(position));
    x[i].c = _mm256_set1_epi64x(static_cast<std::uint32_t>(position >> 32));
    x[i].d = _mm256_setzero_si256();
  }
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m256i keys0 = _mm256_set1_epi64x(key0), keys1 = _mm256_set1_epi64x(key1);
    for (PhiloxWords& words : x) philox_round(words, keys0, keys1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < 4; ++i) {
    constexpr int kOddWords = 0xaa;
    const __m256i ab = _mm256_blend_epi32(x[i].a, _mm256_slli_epi64(x[i].b, 32), kOddWords);
    const __m256i cd = _mm256_blend_epi32(x[i].c, _mm256_slli_epi64(x[i].d, 32), kOddWords);
    out[i] = {upper_24_bits(_mm256_unpacklo_epi64(ab, cd)),
              upper_24_bits(_mm256_unpackhi_epi64(ab, cd))};
  }
}

}  // namespace nanovllm::cpu::avx2
NANOVLLM_END_TARGET
#endif
