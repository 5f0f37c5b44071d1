#pragma once
/// `Vec` as four NEON registers, which every aarch64 CPU has. See simd.hpp.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cpu/simd/portable.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <cstdint>

namespace nanovllm::cpu::neon {

/// Rows × vectors of sums that a matrix kernel keeps in registers: 16 of the 32.
inline constexpr int kBlockRows = 4, kBlockVecs = 1;

struct Vec {
  float32x4_t a, b, c, d;
};

inline Vec broadcast(float x) {
  const float32x4_t quad = vdupq_n_f32(x);
  return {quad, quad, quad, quad};
}
inline Vec zero() { return broadcast(0.f); }

inline float32x4_t load_quad(const float* p) { return vld1q_f32(p); }
inline float32x4_t load_quad(const bf16* p) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(&p->bits)), 16));
}
inline float32x4_t load_quad(const half* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
}
template <Element T>
inline Vec load(const T* p) {
  return {load_quad(p), load_quad(p + 4), load_quad(p + 8), load_quad(p + 12)};
}

inline Vec load(const std::int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
          vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
/// As half, whose exponent has 8 more for its bias and one bit more. A NaN's bits are all set.
inline Vec load(const fp8_e4m3* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(&p->bits));
  const uint8x16_t nan = vceqq_s8(vorrq_s8(bytes, vdupq_n_s8(-128)), vdupq_n_s8(-1));
  const auto halves = [](int8x8_t eight, int8x8_t is_nan) {
    const int16x8_t shifted = vandq_s16(vshlq_n_s16(vmovl_s8(eight), 7), vdupq_n_s16(-0x4080));
    return vreinterpretq_f16_s16(vorrq_s16(shifted, vmovl_s8(is_nan)));
  };
  const int8x16_t is_nan = vreinterpretq_s8_u8(nan);
  const float16x8_t low = halves(vget_low_s8(bytes), vget_low_s8(is_nan));
  const float16x8_t high = halves(vget_high_s8(bytes), vget_high_s8(is_nan));
  return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
          vcvt_high_f32_f16(high)};
}

/// Four floats rounded to bf16, in the upper halves of the lanes; the lower halves are undefined.
/// (The instruction of FEAT_BF16 is not in every CPU.)
inline uint32x4_t bf16_bits(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vbslq_u32(vceqq_f32(x, x), rounded, quiet);
}

inline void store_quad(float* p, float32x4_t quad) { vst1q_f32(p, quad); }
inline void store_quad(bf16* p, float32x4_t quad) {
  vst1_u16(&p->bits, vshrn_n_u32(bf16_bits(quad), 16));
}
inline void store_quad(half* p, float32x4_t quad) {
  vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(quad)));
}
template <Element T>
inline void store(T* p, Vec v) {
  store_quad(p, v.a);
  store_quad(p + 4, v.b);
  store_quad(p + 8, v.c);
  store_quad(p + 12, v.d);
}

inline Vec operator+(Vec x, Vec y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
inline Vec operator-(Vec x, Vec y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
inline Vec operator*(Vec x, Vec y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
inline Vec operator/(Vec x, Vec y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}
inline Vec fma(Vec x, Vec y, Vec z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}

/// x > y ? yes : no
inline float32x4_t select_gt(float32x4_t x, float32x4_t y, float32x4_t yes, float32x4_t no) {
  return vbslq_f32(vcgtq_f32(x, y), yes, no);
}
inline Vec select_gt(Vec x, Vec y, Vec yes, Vec no) {
  return {select_gt(x.a, y.a, yes.a, no.a), select_gt(x.b, y.b, yes.b, no.b),
          select_gt(x.c, y.c, yes.c, no.c), select_gt(x.d, y.d, yes.d, no.d)};
}
/// The instruction of this name would give NaN where either is NaN.
inline Vec max(Vec x, Vec y) { return select_gt(x, y, x, y); }

/// Bit i is set where lane i of the four is; a lane is all ones or all zeros.
inline std::uint32_t mask_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  constexpr std::uint16_t kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t bits = vld1q_u16(kBits);
  const uint16x8_t low =
      vandq_u16(vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)), bits);
  const uint16x8_t high =
      vandq_u16(vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d)), bits);
  return static_cast<std::uint32_t>(vaddvq_u16(low)) | static_cast<std::uint32_t>(vaddvq_u16(high))
                                                           << 8;
}
inline std::uint32_t mask_gt(Vec x, Vec y) {
  return mask_of(vcgtq_f32(x.a, y.a), vcgtq_f32(x.b, y.b), vcgtq_f32(x.c, y.c),
                 vcgtq_f32(x.d, y.d));
}
inline std::uint32_t mask_ge(Vec x, Vec y) {
  return mask_of(vcgeq_f32(x.a, y.a), vcgeq_f32(x.b, y.b), vcgeq_f32(x.c, y.c),
                 vcgeq_f32(x.d, y.d));
}

inline float reduce_add(Vec v) {
  const float32x4_t four = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce_max(Vec v) {
  const float32x4_t pairs = select_gt(v.a, v.c, v.a, v.c);
  const float32x4_t others = select_gt(v.b, v.d, v.b, v.d);
  const float32x4_t four = select_gt(pairs, others, pairs, others);
  const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
  const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
  const float first = vget_lane_f32(two, 0), second = vget_lane_f32(two, 1);
  return first > second ? first : second;
}

template <Element T>
inline Vec round_to(Vec v);
template <>
inline Vec round_to<float>(Vec v) {
  return v;
}
inline float32x4_t round_to_bf16(float32x4_t quad) {
  return vreinterpretq_f32_u32(vandq_u32(bf16_bits(quad), vdupq_n_u32(0xffff0000u)));
}
template <>
inline Vec round_to<bf16>(Vec v) {
  return {round_to_bf16(v.a), round_to_bf16(v.b), round_to_bf16(v.c), round_to_bf16(v.d)};
}
template <>
inline Vec round_to<half>(Vec v) {
  return {vcvt_f32_f16(vcvt_f16_f32(v.a)), vcvt_f32_f16(vcvt_f16_f32(v.b)),
          vcvt_f32_f16(vcvt_f16_f32(v.c)), vcvt_f32_f16(vcvt_f16_f32(v.d))};
}

inline float32x4_t scale_by_power(float32x4_t p, float32x4_t t) {
  const uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), power));
}
inline Vec scale_by_power(Vec p, Vec t) {
  return {scale_by_power(p.a, t.a), scale_by_power(p.b, t.b), scale_by_power(p.c, t.c),
          scale_by_power(p.d, t.d)};
}

inline float32x4_t load_bits_quad(const std::uint8_t* p) {
  return vreinterpretq_f32_u8(vld1q_u8(p));
}
inline Vec load_bits(const void* p) {
  const auto* const bytes = static_cast<const std::uint8_t*>(p);
  return {load_bits_quad(bytes), load_bits_quad(bytes + 16), load_bits_quad(bytes + 32),
          load_bits_quad(bytes + 48)};
}
inline float32x4_t even_bf16(float32x4_t pairs) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs), 16));
}
inline float32x4_t odd_bf16(float32x4_t pairs) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xffff0000u)));
}
inline Vec even_bf16(Vec v) {
  return {even_bf16(v.a), even_bf16(v.b), even_bf16(v.c), even_bf16(v.d)};
}
inline Vec odd_bf16(Vec v) { return {odd_bf16(v.a), odd_bf16(v.b), odd_bf16(v.c), odd_bf16(v.d)}; }

/// Transposes a 4 × 4 block: neighbours, then halves of the registers change places.
inline void transpose_4x4(float32x4_t (&r)[4]) {
  float64x2_t t[4];
  for (int i = 0; i < 4; i += 2) {
    t[i] = vreinterpretq_f64_f32(vtrn1q_f32(r[i], r[i + 1]));
    t[i + 1] = vreinterpretq_f64_f32(vtrn2q_f32(r[i], r[i + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    r[i] = vreinterpretq_f32_f64(vtrn1q_f64(t[i], t[i + 2]));
    r[i + 2] = vreinterpretq_f32_f64(vtrn2q_f64(t[i], t[i + 2]));
  }
}

inline void transpose(Vec (&rows)[kLanes]) {
  float32x4_t block[4][4][4];  // block (i, j) is rows 4 i …, lanes 4 j …
  for (int i = 0; i < kLanes; ++i) {
    block[i / 4][0][i % 4] = rows[i].a;
    block[i / 4][1][i % 4] = rows[i].b;
    block[i / 4][2][i % 4] = rows[i].c;
    block[i / 4][3][i % 4] = rows[i].d;
  }
  for (auto& blocks : block) {
    for (auto& square : blocks) transpose_4x4(square);
  }
  for (int i = 0; i < kLanes; ++i) {
    rows[i] = {block[0][i / 4][i % 4], block[1][i / 4][i % 4], block[2][i / 4][i % 4],
               block[3][i / 4][i % 4]};
  }
}

inline Vec sum_each(const Vec (&rows)[kLanes]) {
  float32x4_t sums[kLanes];
  for (int i = 0; i < kLanes; ++i)
    sums[i] = vaddq_f32(vaddq_f32(rows[i].a, rows[i].c), vaddq_f32(rows[i].b, rows[i].d));
  float32x4_t out[4];
  for (int i = 0; i < 4; ++i)
    out[i] = vpaddq_f32(vpaddq_f32(sums[4 * i], sums[4 * i + 1]),
                        vpaddq_f32(sums[4 * i + 2], sums[4 * i + 3]));
  return {out[0], out[1], out[2], out[3]};
}

/// Words of four counters.
struct PhiloxWords {
  uint32x4_t a, b, c, d;
};

/// The lower and upper halves of products of 32-bit words.
struct PhiloxProduct {
  uint32x4_t low, high;

  PhiloxProduct(uint32x4_t x, std::uint32_t y) {
    const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vdup_n_u32(y)));
    const uint32x4_t second = vreinterpretq_u32_u64(vmull_high_u32(x, vdupq_n_u32(y)));
    low = vuzp1q_u32(first, second);
    high = vuzp2q_u32(first, second);
  }
};

/// A round of core/philox.hpp.
inline void philox_round(PhiloxWords& x, std::uint32_t key0, std::uint32_t key1) {
  const PhiloxProduct of_a(x.a, 0xD2511F53u), of_c(x.c, 0xCD9E8D57u);
  x.a = veorq_u32(of_c.high, veorq_u32(x.b, vdupq_n_u32(key0)));
  x.b = of_c.low;
  x.c = veorq_u32(of_a.high, veorq_u32(x.d, vdupq_n_u32(key1)));
  x.d = of_a.low;
}

inline float32x4_t upper_24_bits(uint32x4_t words) {
  return vmulq_n_f32(vcvtq_f32_u32(vshrq_n_u32(words, 8)), 0x1p-24f);
}

inline void random_fractions(std::uint64_t key, std::uint32_t counter, std::uint64_t position,
                             Vec (&out)[4]) {
  constexpr std::uint32_t kSteps[4] = {0, 1, 2, 3};
  PhiloxWords x[4];
  for (int i = 0; i < 4; ++i) {
    x[i].a = vaddq_u32(vdupq_n_u32(counter + 4 * static_cast<std::uint32_t>(i)), vld1q_u32(kSteps));
    x[i].b = vdupq_n_u32(static_cast<std::uint32_t>(position));
    x[i].c = vdupq_n_u32(static_cast<std::uint32_t>(position >> 32));
    x[i].d = vdupq_n_u32(0);
  }
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (PhiloxWords& words : x) philox_round(words, key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < 4; ++i) {
    float32x4_t counters[4] = {upper_24_bits(x[i].a), upper_24_bits(x[i].b), upper_24_bits(x[i].c),
                               upper_24_bits(x[i].d)};
    transpose_4x4(counters);
    out[i] = {counters[0], counters[1], counters[2], counters[3]};
  }
}

}  // namespace nanovllm::cpu::neon
#endif
