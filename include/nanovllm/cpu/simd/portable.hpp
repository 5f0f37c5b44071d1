#pragma once
/// `Vec` in the vector extensions of g++ and clang: four quads, which every 64-bit machine has
/// registers for. See simd.hpp.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/philox.hpp"

namespace nanovllm::cpu {

/// Lanes of a Vec, whatever the instruction set.
inline constexpr int kLanes = 16;

}  // namespace nanovllm::cpu

namespace nanovllm::cpu::portable {

/// Rows × vectors of sums that a matrix kernel keeps in registers: 8 of 16 quads.
inline constexpr int kBlockRows = 2, kBlockVecs = 1;

using Quad = float __attribute__((vector_size(16)));
using QuadBits = std::uint32_t __attribute__((vector_size(16)));

struct Vec {
  Quad a, b, c, d;
};

inline QuadBits bits_of(Quad q) { return reinterpret_cast<QuadBits>(q); }
inline Quad quad_of(QuadBits bits) { return reinterpret_cast<Quad>(bits); }

inline Quad broadcast_quad(float x) { return Quad{x, x, x, x}; }
inline Vec broadcast(float x) {
  const Quad q = broadcast_quad(x);
  return {q, q, q, q};
}
inline Vec zero() { return broadcast(0.f); }

inline Quad load_quad(const float* p) {
  Quad q;
  std::memcpy(&q, p, sizeof(q));
  return q;
}
inline Quad load_quad(const bf16* p) {
  const QuadBits upper = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
  return quad_of(upper << 16);
}
inline Quad load_quad(const half* p) { return Quad{p[0], p[1], p[2], p[3]}; }
template <Element T>
inline Vec load(const T* p) {
  return {load_quad(p), load_quad(p + 4), load_quad(p + 8), load_quad(p + 12)};
}

inline Vec load(const std::int8_t* p) {
  float values[kLanes];
  for (int i = 0; i < kLanes; ++i) values[i] = p[i];
  return load(values);
}
/// As float, whose exponent has 120 more for its bias.
inline Quad load_quad(const fp8_e4m3* p) {
  const QuadBits bits = {p[0].bits, p[1].bits, p[2].bits, p[3].bits}, magnitude = bits & 0x7fu;
  const QuadBits is_nan = reinterpret_cast<QuadBits>(magnitude == 0x7fu);
  const QuadBits number = (bits & 0x80u) << 24 | magnitude << 20;
  return quad_of(number | (is_nan & 0x7fc00000u)) * broadcast_quad(0x1p112f);
}
inline Vec load(const fp8_e4m3* p) {
  return {load_quad(p), load_quad(p + 4), load_quad(p + 8), load_quad(p + 12)};
}

inline void store_quad(float* p, Quad q) { std::memcpy(p, &q, sizeof(q)); }
template <Element T>
inline void store_quad(T* p, Quad q) {
  for (int i = 0; i < 4; ++i) p[i] = T(q[i]);
}
template <Element T>
inline void store(T* p, Vec v) {
  store_quad(p, v.a);
  store_quad(p + 4, v.b);
  store_quad(p + 8, v.c);
  store_quad(p + 12, v.d);
}

inline Vec operator+(Vec x, Vec y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
inline Vec operator-(Vec x, Vec y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
inline Vec operator*(Vec x, Vec y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
inline Vec operator/(Vec x, Vec y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }

inline Quad fma(Quad x, Quad y, Quad z) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return Quad{__builtin_fmaf(x[0], y[0], z[0]), __builtin_fmaf(x[1], y[1], z[1]),
              __builtin_fmaf(x[2], y[2], z[2]), __builtin_fmaf(x[3], y[3], z[3])};
#else
  return x * y + z;
#endif
}
inline Vec fma(Vec x, Vec y, Vec z) {
  return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b), fma(x.c, y.c, z.c), fma(x.d, y.d, z.d)};
}

inline Quad select(QuadBits mask, Quad x, Quad y) {
  return quad_of((bits_of(x) & mask) | (bits_of(y) & ~mask));
}
inline QuadBits greater(Quad x, Quad y) { return reinterpret_cast<QuadBits>(x > y); }

/// x > y ? yes : no
inline Vec select_gt(Vec x, Vec y, Vec yes, Vec no) {
  return {select(greater(x.a, y.a), yes.a, no.a), select(greater(x.b, y.b), yes.b, no.b),
          select(greater(x.c, y.c), yes.c, no.c), select(greater(x.d, y.d), yes.d, no.d)};
}
inline Vec max(Vec x, Vec y) { return select_gt(x, y, x, y); }

inline std::uint32_t mask_gt(Vec x, Vec y) {
  float p[kLanes], q[kLanes];
  store(p, x);
  store(q, y);
  std::uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= std::uint32_t{p[i] > q[i]} << i;
  return mask;
}
inline std::uint32_t mask_ge(Vec x, Vec y) {
  float p[kLanes], q[kLanes];
  store(p, x);
  store(q, y);
  std::uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= std::uint32_t{p[i] >= q[i]} << i;
  return mask;
}

inline float reduce_add(Vec v) {
  const Quad sum = (v.a + v.c) + (v.b + v.d);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
inline float reduce_max(Vec v) {
  const Quad pairs = select(greater(v.a, v.b), v.a, v.b),
             others = select(greater(v.c, v.d), v.c, v.d);
  const Quad most = select(greater(pairs, others), pairs, others);
  const float low = most[0] > most[1] ? most[0] : most[1];
  const float high = most[2] > most[3] ? most[2] : most[3];
  return low > high ? low : high;
}

template <Element T>
inline Vec round_to(Vec v) {
  T rounded[kLanes];
  store(rounded, v);
  return load(rounded);
}

inline Quad scale_by_power(Quad p, Quad t) { return quad_of(bits_of(p) + (bits_of(t) << 23)); }
inline Vec scale_by_power(Vec p, Vec t) {
  return {scale_by_power(p.a, t.a), scale_by_power(p.b, t.b), scale_by_power(p.c, t.c),
          scale_by_power(p.d, t.d)};
}

inline Vec load_bits(const void* p) {
  Vec out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
inline Quad even_bf16(Quad pairs) { return quad_of(bits_of(pairs) << 16); }
inline Quad odd_bf16(Quad pairs) { return quad_of(bits_of(pairs) & 0xffff0000u); }
inline Vec even_bf16(Vec v) {
  return {even_bf16(v.a), even_bf16(v.b), even_bf16(v.c), even_bf16(v.d)};
}
inline Vec odd_bf16(Vec v) { return {odd_bf16(v.a), odd_bf16(v.b), odd_bf16(v.c), odd_bf16(v.d)}; }

inline void transpose(Vec (&rows)[kLanes]) {
  float square[kLanes][kLanes];
  for (int i = 0; i < kLanes; ++i) store(square[i], rows[i]);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) std::swap(square[i][j], square[j][i]);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = load(square[i]);
}

inline Vec sum_each(const Vec (&rows)[kLanes]) {
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = reduce_add(rows[i]);
  return load(sums);
}

inline void random_fractions(std::uint64_t key, std::uint32_t counter, std::uint64_t position,
                             Vec (&out)[4]) {
  float fractions[4][kLanes];
  for (int i = 0; i < 4 * kLanes; i += 4) {
    const std::uint32_t block = counter + static_cast<std::uint32_t>(i / 4);
    const auto words = philox4x32(key, {block, static_cast<std::uint32_t>(position),
                                        static_cast<std::uint32_t>(position >> 32), 0});
    for (int j = 0; j < 4; ++j) {
      const auto upper = static_cast<std::int32_t>(words[static_cast<std::size_t>(j)] >> 8);
      fractions[i / kLanes][i % kLanes + j] = static_cast<float>(upper) * 0x1p-24f;
    }
  }
  for (int i = 0; i < 4; ++i) out[i] = load(fractions[i]);
}

}  // namespace nanovllm::cpu::portable
