#pragma once
/// What the kernels for matrices of integers share, and the kernel in standard C++.
///
/// A family is a struct of static members:
///   kMaxRows     rows of x that one call takes at most;
///   multiply<kBits>(rows, x, stride, panel, tile)
///                tile[r][c] for r < rows, c < 32; row r of x begins at x + r · stride, and there
///                are compiled_rows(rows) of them that may be read;
///   store        as the families of linear/ have it.
///
/// Each element of a tile is the chain, over ascending groups g of 32 columns,
///   sum = fma(dot(g), weight scale(g) · x scale(g), sum),   dot(g) = Σ code of w · code of x,
/// with one rounding in the product of the scales and one in the fma. With shifts, dot(g) is
/// fma(shift(g), Σ code of x, dot(g)). Sums of integers are exact in any order. So the result is
/// the same, bit for bit, on every instruction set and for any number of rows.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"

namespace nanovllm::cpu::detail {

/// 32 rows of an IntMatrix.
struct IntPanel {
  const std::uint8_t* data;
  const half* shifts;  ///< or null
  std::int64_t groups;
};

/// Word `word` of a group of x: four codes.
[[nodiscard]] inline std::int32_t word_of(const ActivationGroup& x, int word) {
  std::int32_t out;
  std::memcpy(&out, x.codes + 4 * word, sizeof(out));
  return out;
}

/// Eight 16-bit and four 32-bit integers, in the vector extensions of g++ and clang.
using Shorts = std::int16_t __attribute__((vector_size(16)));
using Ints = std::int32_t __attribute__((vector_size(16)));

/// Products of bytes in 16 bits: with weights of 8 bits, which are made signed, two fit,
/// 2 · 128 · 127 = 32,512; with those of 4 bits all 16 that a group has in one place,
/// 16 · 15 · 127 = 30,480.
struct PortableInt {
  static constexpr int kMaxRows = 1;

  template <int kBits>
  static void multiply(int, const ActivationGroup* x, std::int64_t, const IntPanel& panel,
                       Tile& tile) {
    using Matrix = IntMatrix<kBits>;
    float* const sum = tile.values[0];
    for (int c = 0; c < kPanelRows; ++c) sum[c] = 0.f;
    const std::uint8_t* group = panel.data;
    for (std::int64_t g = 0; g < panel.groups; ++g, ++x, group += Matrix::kGroupBytes) {
      Words words;
      for (int word = 0; word < kWords; ++word) words.set(word, *x);
      std::int32_t dot[kPanelRows];
      for (int c = 0; c < kPanelRows; c += 4) {
        const Ints sums = kBits == 8 ? dot_8_bits(words, group + 4 * c)
                                     : dot_4_bits(words, group + 4 * c) - Matrix::kBias * x->sum;
        std::memcpy(dot + c, &sums, sizeof(sums));
      }
      half scales[kPanelRows];
      std::memcpy(scales, group + Matrix::kCodeBytes, sizeof(scales));
      for (int c = 0; c < kPanelRows; ++c) {
        auto value = static_cast<float>(dot[c]);
        if (panel.shifts != nullptr) {
          value = std::fma(static_cast<float>(panel.shifts[g * kPanelRows + c]),
                           static_cast<float>(x->sum), value);
        }
        sum[c] = std::fma(value, static_cast<float>(scales[c]) * x->scale, sum[c]);
      }
    }
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    PortableLinear::store(tile, rows, cols, y, stride, accumulate);
  }

 private:
  static constexpr int kWords = static_cast<int>(kIntGroup) / 4;

  /// Codes of x: the first and third of each word, and the second and fourth, four times each.
  struct Words {
    Shorts even[kWords], odd[kWords];

    void set(int word, const ActivationGroup& x) {
      const std::int8_t* const c = x.codes + 4 * word;
      even[word] = Shorts{c[0], c[2], c[0], c[2], c[0], c[2], c[0], c[2]};
      odd[word] = Shorts{c[1], c[3], c[1], c[3], c[1], c[3], c[1], c[3]};
    }
  };

  static Shorts load(const std::uint8_t* p) {
    Shorts out;
    std::memcpy(&out, p, sizeof(out));
    return out;
  }
  static Shorts high_bytes(Shorts v) { return v >> 8 & 255; }

  /// Sums by twos.
  static Ints add_pairs(Shorts v) {
    const Ints both = reinterpret_cast<Ints>(v);
    return (both >> 16) + (both << 16 >> 16);
  }

  /// Σ code of w · code of x for four outputs.
  static Ints dot_8_bits(const Words& x, const std::uint8_t* codes) {
    Ints sum = {};
    for (int word = 0; word < kWords; ++word, codes += 4 * kPanelRows) {
      const Shorts w = load(codes);
      sum += add_pairs(((w & 255) - 128) * x.even[word] + (high_bytes(w) - 128) * x.odd[word]);
    }
    return sum;
  }

  /// The same for four bits, whose codes have 8 added.
  static Ints dot_4_bits(const Words& x, const std::uint8_t* codes) {
    Shorts sum = {};
    for (int word = 0; word < kWords; word += 2, codes += 4 * kPanelRows) {
      const Shorts w = load(codes), high = high_bytes(w);
      sum += (w & 15) * x.even[word] + (high & 15) * x.odd[word];
      sum += (w >> 4 & 15) * x.even[word + 1] + (high >> 4) * x.odd[word + 1];
    }
    return add_pairs(sum);
  }
};

}  // namespace nanovllm::cpu::detail
