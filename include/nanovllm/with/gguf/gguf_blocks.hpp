#pragma once
/// The formats of blocks in GGUF files, and the values of their elements.
///
/// | format | elements | stored | value |
/// |---|---|---|---|
/// | Q8_0 | 32 | f16 d; 32 × i8 q | d · q |
/// | Q4_0 | 32 | f16 d; 16 bytes: element i in the low, i + 16 in the high bits | d · (q − 8) |
/// | Q4_1 | 32 | f16 d; f16 m; the same 16 bytes | d · q + m |
/// | Q5_0 | 32 | f16 d; 4 bytes of fifth bits; the same 16 bytes | d · (q − 16) |
/// | Q5_1 | 32 | f16 d; f16 m; the same 4 and 16 bytes | d · q + m |
/// | Q4_K | 256 | f16 d, dmin; scales s and minima m of 6 bits for each 32; q | d·s·q − dmin·m |
/// | Q5_K | 256 | the same, with the fifth bits of q ahead of the other four | d·s·q − dmin·m |
/// | Q6_K | 256 | q in 4 bits and 2 bits; i8 scales s for each 16; f16 d | d · s · (q − 32) |
/// | IQ4_NL | 32 | f16 d; 16 bytes as those of Q4_0 | d · t[q], of a table t |
/// | IQ4_XS | 256 | f16 d; scales s of 6 bits for each 32; q | d · (s − 32) · t[q] |
///
/// All products are exact in float32, so a value is rounded once at the most: by the sum.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/with/gguf/gguf_types.hpp"

namespace nanovllm {

namespace detail {

void dequantise_q8_0(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q4_0(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q4_1(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q5_0(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q5_1(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q4_k(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q5_k(const std::byte* blocks, std::size_t count, float* out);
void dequantise_q6_k(const std::byte* blocks, std::size_t count, float* out);
void dequantise_iq4_nl(const std::byte* blocks, std::size_t count, float* out);
void dequantise_iq4_xs(const std::byte* blocks, std::size_t count, float* out);

void read_q8_0(const std::byte* block, std::int8_t* codes);
void read_q4_0(const std::byte* block, std::int8_t* codes);
void read_q4_1(const std::byte* block, std::int8_t* codes);
void read_q5_0(const std::byte* block, std::int8_t* codes);
void read_q5_1(const std::byte* block, std::int8_t* codes);
void read_q4_k(const std::byte* block, std::int8_t* codes);
void read_q5_k(const std::byte* block, std::int8_t* codes);
void read_iq4_nl(const std::byte* block, std::int8_t* codes);
void read_iq4_xs(const std::byte* block, std::int8_t* codes);
BlockIntegers::Scale scale_of_block(const std::byte* block, std::uint32_t);
BlockIntegers::Scale scale_q4_1(const std::byte* block, std::uint32_t);
BlockIntegers::Scale scale_q5_1(const std::byte* block, std::uint32_t);
BlockIntegers::Scale scale_q4_k(const std::byte* block, std::uint32_t index);
BlockIntegers::Scale scale_q5_k(const std::byte* block, std::uint32_t index);
BlockIntegers::Scale scale_iq4_xs(const std::byte* block, std::uint32_t index);

inline constexpr BlockIntegers kIntegersQ8_0{8, 32, false, read_q8_0, scale_of_block};
inline constexpr BlockIntegers kIntegersQ4_0{4, 32, false, read_q4_0, scale_of_block};
inline constexpr BlockIntegers kIntegersQ4_1{4, 32, true, read_q4_1, scale_q4_1};
inline constexpr BlockIntegers kIntegersQ5_0{5, 32, false, read_q5_0, scale_of_block};
inline constexpr BlockIntegers kIntegersQ5_1{5, 32, true, read_q5_1, scale_q5_1};
inline constexpr BlockIntegers kIntegersQ4_K{4, 32, true, read_q4_k, scale_q4_k};
inline constexpr BlockIntegers kIntegersQ5_K{5, 32, true, read_q5_k, scale_q5_k};
inline constexpr BlockIntegers kIntegersIq4Nl{8, 32, false, read_iq4_nl, scale_of_block};
inline constexpr BlockIntegers kIntegersIq4Xs{8, 32, false, read_iq4_xs, scale_iq4_xs};

}  // namespace detail

inline constexpr BlockFormat kGgufQ8_0{"Q8_0", 32, 34, detail::dequantise_q8_0,
                                       &detail::kIntegersQ8_0};
inline constexpr BlockFormat kGgufQ4_0{"Q4_0", 32, 18, detail::dequantise_q4_0,
                                       &detail::kIntegersQ4_0};
inline constexpr BlockFormat kGgufQ4_1{"Q4_1", 32, 20, detail::dequantise_q4_1,
                                       &detail::kIntegersQ4_1};
inline constexpr BlockFormat kGgufQ5_0{"Q5_0", 32, 22, detail::dequantise_q5_0,
                                       &detail::kIntegersQ5_0};
inline constexpr BlockFormat kGgufQ5_1{"Q5_1", 32, 24, detail::dequantise_q5_1,
                                       &detail::kIntegersQ5_1};
inline constexpr BlockFormat kGgufQ4_K{"Q4_K", 256, 144, detail::dequantise_q4_k,
                                       &detail::kIntegersQ4_K};
inline constexpr BlockFormat kGgufQ5_K{"Q5_K", 256, 176, detail::dequantise_q5_k,
                                       &detail::kIntegersQ5_K};
/// Its scales are for 16 elements, fewer than integers are multiplied by.
inline constexpr BlockFormat kGgufQ6_K{"Q6_K", 256, 210, detail::dequantise_q6_k};
/// Their integers are the table's, of 8 bits.
inline constexpr BlockFormat kGgufIq4Nl{"IQ4_NL", 32, 18, detail::dequantise_iq4_nl,
                                        &detail::kIntegersIq4Nl};
inline constexpr BlockFormat kGgufIq4Xs{"IQ4_XS", 256, 136, detail::dequantise_iq4_xs,
                                        &detail::kIntegersIq4Xs};

/// The format of the blocks of a type, or null.
[[nodiscard]] const BlockFormat* find_gguf_blocks(const GgufTensorType& type);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <array>
#include <cstring>

#include "nanovllm/core/dtype.hpp"

namespace nanovllm {

namespace detail {

/// Blocks as they lie in the file; no member needs more alignment than a byte.
using Bytes = const std::uint8_t*;

[[nodiscard]] inline float half_at(Bytes bytes) {
  half value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// Factor and subtrahend of the 32 elements with one scale.
struct ScaleAndMin {
  float scale, min;
};

/// Those of all eight in a block of Q4_K or Q5_K: after d and dmin, in twelve bytes.
[[nodiscard]] inline std::array<ScaleAndMin, 8> scales_at(Bytes block) {
  const float d = half_at(block), d_min = half_at(block + 2);
  const Bytes b = block + 4;
  std::array<ScaleAndMin, 8> out;
  for (int j = 0; j < 8; ++j) {
    // The last four have their low bits in the last four bytes, and their high bits in those of the
    // first four.
    const int scale = j < 4 ? b[j] & 63 : (b[j + 4] & 15) | (b[j - 4] >> 6) << 4;
    const int min = j < 4 ? b[j + 4] & 63 : b[j + 4] >> 4 | (b[j] >> 6) << 4;
    out[static_cast<std::size_t>(j)] = {d * static_cast<float>(scale),
                                        d_min * static_cast<float>(min)};
  }
  return out;
}

NANOVLLM_INLINE void dequantise_q8_0(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ8_0.bytes, out += 32) {
    const float d = half_at(block);
    for (int i = 0; i < 32; ++i)
      out[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
  }
}

NANOVLLM_INLINE void dequantise_q4_0(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ4_0.bytes, out += 32) {
    const float d = half_at(block);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
      out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
    }
  }
}

/// The 32 numbers of 4 bits at `q`, and of 5 where `fifth` has their fifth bits, less `zero`.
template <class Out, class Make>
inline void read_nibbles(Bytes q, Bytes fifth, int zero, Out* out, const Make& make) {
  std::uint32_t bits = 0;
  if (fifth != nullptr) std::memcpy(&bits, fifth, sizeof bits);
  for (int i = 0; i < 16; ++i) {
    out[i] = make(((q[i] & 15) | static_cast<int>(bits >> i & 1) << 4) - zero);
    out[i + 16] = make((q[i] >> 4 | static_cast<int>(bits >> (i + 16) & 1) << 4) - zero);
  }
}

inline void read_codes(Bytes q, Bytes fifth, std::int8_t* codes) {
  read_nibbles(q, fifth, fifth != nullptr ? 16 : 8, codes,
               [](int code) { return static_cast<std::int8_t>(code); });
}

NANOVLLM_INLINE void dequantise_q4_1(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ4_1.bytes, out += 32) {
    const float d = half_at(block), m = half_at(block + 2);
    read_nibbles(block + 4, nullptr, 0, out,
                 [&](int code) { return d * static_cast<float>(code) + m; });
  }
}

NANOVLLM_INLINE void dequantise_q5_0(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ5_0.bytes, out += 32) {
    const float d = half_at(block);
    read_nibbles(block + 6, block + 2, 16, out,
                 [&](int code) { return d * static_cast<float>(code); });
  }
}

NANOVLLM_INLINE void dequantise_q5_1(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ5_1.bytes, out += 32) {
    const float d = half_at(block), m = half_at(block + 2);
    read_nibbles(block + 8, block + 4, 0, out,
                 [&](int code) { return d * static_cast<float>(code) + m; });
  }
}

NANOVLLM_INLINE void dequantise_q4_k(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ4_K.bytes) {
    const std::array<ScaleAndMin, 8> scales = scales_at(block);
    Bytes q = block + 16;
    for (std::size_t j = 0; j < 8; j += 2, q += 32, out += 64) {
      for (int i = 0; i < 32; ++i) {
        out[i] = scales[j].scale * static_cast<float>(q[i] & 15) - scales[j].min;
        out[i + 32] = scales[j + 1].scale * static_cast<float>(q[i] >> 4) - scales[j + 1].min;
      }
    }
  }
}

NANOVLLM_INLINE void dequantise_q5_k(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ5_K.bytes) {
    const std::array<ScaleAndMin, 8> scales = scales_at(block);
    const Bytes fifth = block + 16;  // bit j of byte i is that of element i of sub-block j
    Bytes q = block + 48;
    for (std::size_t j = 0; j < 8; j += 2, q += 32, out += 64) {
      for (int i = 0; i < 32; ++i) {
        const int low = (q[i] & 15) | (fifth[i] >> j & 1) << 4;
        const int high = q[i] >> 4 | (fifth[i] >> (j + 1) & 1) << 4;
        out[i] = scales[j].scale * static_cast<float>(low) - scales[j].min;
        out[i + 32] = scales[j + 1].scale * static_cast<float>(high) - scales[j + 1].min;
      }
    }
  }
}

NANOVLLM_INLINE void read_q8_0(const std::byte* block, std::int8_t* codes) {
  std::memcpy(codes, block + 2, 32);
}

NANOVLLM_INLINE void read_q4_0(const std::byte* block, std::int8_t* codes) {
  const Bytes q = reinterpret_cast<Bytes>(block) + 2;
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<std::int8_t>((q[i] & 15) - 8);
    codes[i + 16] = static_cast<std::int8_t>((q[i] >> 4) - 8);
  }
}

NANOVLLM_INLINE void read_q4_1(const std::byte* block, std::int8_t* codes) {
  const auto bytes = reinterpret_cast<Bytes>(block);
  read_codes(bytes + 4, nullptr, codes);
}

NANOVLLM_INLINE void read_q5_0(const std::byte* block, std::int8_t* codes) {
  const auto bytes = reinterpret_cast<Bytes>(block);
  read_codes(bytes + 6, bytes + 2, codes);
}

NANOVLLM_INLINE void read_q5_1(const std::byte* block, std::int8_t* codes) {
  const auto bytes = reinterpret_cast<Bytes>(block);
  read_codes(bytes + 8, bytes + 4, codes);
}

NANOVLLM_INLINE void read_q4_k(const std::byte* block, std::int8_t* codes) {
  Bytes q = reinterpret_cast<Bytes>(block) + 16;
  for (int j = 0; j < 8; j += 2, q += 32, codes += 64) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<std::int8_t>((q[i] & 15) - 8);
      codes[i + 32] = static_cast<std::int8_t>((q[i] >> 4) - 8);
    }
  }
}

NANOVLLM_INLINE void read_q5_k(const std::byte* block, std::int8_t* codes) {
  const Bytes fifth = reinterpret_cast<Bytes>(block) + 16;
  Bytes q = reinterpret_cast<Bytes>(block) + 48;
  for (int j = 0; j < 8; j += 2, q += 32, codes += 64) {
    for (int i = 0; i < 32; ++i) {
      const int low = (q[i] & 15) | (fifth[i] >> j & 1) << 4;
      const int high = q[i] >> 4 | (fifth[i] >> (j + 1) & 1) << 4;
      codes[i] = static_cast<std::int8_t>(low - 16);
      codes[i + 32] = static_cast<std::int8_t>(high - 16);
    }
  }
}

NANOVLLM_INLINE BlockIntegers::Scale scale_of_block(const std::byte* block, std::uint32_t) {
  return {half_at(reinterpret_cast<Bytes>(block)), 0.f};
}

NANOVLLM_INLINE BlockIntegers::Scale scale_q4_1(const std::byte* block, std::uint32_t) {
  const auto bytes = reinterpret_cast<Bytes>(block);
  const float d = half_at(bytes);
  return {d, 8 * d + half_at(bytes + 2)};
}

NANOVLLM_INLINE BlockIntegers::Scale scale_q5_1(const std::byte* block, std::uint32_t) {
  const auto bytes = reinterpret_cast<Bytes>(block);
  const float d = half_at(bytes);
  return {d, 16 * d + half_at(bytes + 2)};
}

NANOVLLM_INLINE BlockIntegers::Scale scale_q4_k(const std::byte* block, std::uint32_t index) {
  const ScaleAndMin of = scales_at(reinterpret_cast<Bytes>(block))[index];
  return {of.scale, 8 * of.scale - of.min};
}

NANOVLLM_INLINE BlockIntegers::Scale scale_q5_k(const std::byte* block, std::uint32_t index) {
  const ScaleAndMin of = scales_at(reinterpret_cast<Bytes>(block))[index];
  return {of.scale, 16 * of.scale - of.min};
}

NANOVLLM_INLINE void dequantise_q6_k(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufQ6_K.bytes) {
    const float d = half_at(block + 208);
    for (int part = 0; part < 2; ++part, out += 128) {
      const Bytes low = block + 64 * part, high = block + 128 + 32 * part;
      const Bytes scales = block + 192 + 8 * part;
      for (int k = 0; k < 4; ++k) {  // 32 elements
        for (int i = 0; i < 32; ++i) {
          const int four = low[32 * (k & 1) + i] >> (k < 2 ? 0 : 4) & 15;
          const int q = (four | (high[i] >> (2 * k) & 3) << 4) - 32;
          const float scale =
              d * static_cast<float>(static_cast<std::int8_t>(scales[2 * k + i / 16]));
          out[32 * k + i] = scale * static_cast<float>(q);
        }
      }
    }
  }
}

/// Source: llama.cpp, kvalues_iq4nl.
inline constexpr std::array<std::int8_t, 16> kIq4Table = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                          1,    13,   25,  38,  53,  69,  89,  113};

template <class Out, class Make>
inline void read_iq4(Bytes q, Out* out, const Make& make) {
  read_nibbles(q, nullptr, 0, out,
               [&](int code) { return make(kIq4Table[static_cast<std::size_t>(code)]); });
}

NANOVLLM_INLINE void dequantise_iq4_nl(const std::byte* blocks, std::size_t count, float* out) {
  auto block = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, block += kGgufIq4Nl.bytes, out += 32) {
    const float d = half_at(block);
    read_iq4(block + 2, out, [&](std::int8_t value) { return d * static_cast<float>(value); });
  }
}

NANOVLLM_INLINE void dequantise_iq4_xs(const std::byte* blocks, std::size_t count, float* out) {
  for (; count > 0; --count, blocks += kGgufIq4Xs.bytes) {
    for (std::uint32_t j = 0; j < 8; ++j, out += 32) {
      const float d = scale_iq4_xs(blocks, j).scale;
      read_iq4(reinterpret_cast<Bytes>(blocks) + 8 + 16 * j, out,
               [&](std::int8_t value) { return d * static_cast<float>(value); });
    }
  }
}

NANOVLLM_INLINE void read_iq4_nl(const std::byte* block, std::int8_t* codes) {
  read_iq4(reinterpret_cast<Bytes>(block) + 2, codes, [](std::int8_t value) { return value; });
}

NANOVLLM_INLINE void read_iq4_xs(const std::byte* block, std::int8_t* codes) {
  for (int j = 0; j < 8; ++j)
    read_iq4(reinterpret_cast<Bytes>(block) + 8 + 16 * j, codes + 32 * j,
             [](std::int8_t value) { return value; });
}

/// After d, two bytes have the high two bits of the eight scales, and four their low four bits.
NANOVLLM_INLINE BlockIntegers::Scale scale_iq4_xs(const std::byte* block, std::uint32_t index) {
  const auto b = reinterpret_cast<Bytes>(block);
  const int low = b[4 + index / 2] >> (index % 2 * 4) & 15;
  const int high = b[2 + index / 4] >> (index % 4 * 2) & 3;
  return {half_at(b) * static_cast<float>((low | high << 4) - 32), 0.f};
}

}  // namespace detail

NANOVLLM_INLINE const BlockFormat* find_gguf_blocks(const GgufTensorType& type) {
  for (const BlockFormat* format : {&kGgufQ8_0, &kGgufQ4_0, &kGgufQ4_1, &kGgufQ5_0, &kGgufQ5_1,
                                    &kGgufQ4_K, &kGgufQ5_K, &kGgufQ6_K, &kGgufIq4Nl, &kGgufIq4Xs}) {
    if (format->name == type.name) return format;
  }
  return nullptr;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
