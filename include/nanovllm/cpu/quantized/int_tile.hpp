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

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/linear/linear_portable.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/quantized/int_matrix.hpp"
#include "nanovllm/cpu/quantized/quantise.hpp"

namespace nanovllm::cpu::detail {

/// 32 rows of an IntMatrix.
struct IntPanel {
  const std::uint8_t* data;
  const half* shifts;  ///< or null
  std::int64_t groups;
};

/// Numbers in [0, count), each of which one caller gets.
class IndexQueue {
 public:
  explicit IndexQueue(std::int64_t count) : count_(count) {}

  /// Calls `body(index)` until none is left.
  template <class Body>
  void drain(const Body& body) {
    for (std::int64_t index = claim(); index < count_; index = claim()) body(index);
  }

 private:
  std::int64_t claim() { return unclaimed_.fetch_add(1, std::memory_order_relaxed); }

  std::int64_t count_;
  std::atomic<std::int64_t> unclaimed_{0};
};

/// Word `word` of a group of x: four codes.
[[nodiscard]] inline std::int32_t word_of(const ActivationGroup& x, int word) {
  std::int32_t out;
  std::memcpy(&out, x.codes + 4 * word, sizeof(out));
  return out;
}

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
      std::int32_t dot[kPanelRows];
      for (std::int32_t& d : dot) d = -Matrix::kBias * x->sum;
      for (int word = 0; word < kIntGroup / 4; ++word) add_word<kBits>(*x, group, word, dot);
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
  /// dot[c] += four products of row c.
  template <int kBits>
  static void add_word(const ActivationGroup& x, const std::uint8_t* group, int word,
                       std::int32_t* dot) {
    const int shift = kBits == 4 && word % 2 == 1 ? 4 : 0, mask = kBits == 4 ? 15 : 255;
    const std::uint8_t* const weights = group + (kBits == 4 ? word / 2 : word) * 4 * kPanelRows;
    for (int c = 0; c < kPanelRows; ++c) {
      for (int j = 0; j < 4; ++j)
        dot[c] += (weights[4 * c + j] >> shift & mask) * x.codes[4 * word + j];
    }
  }
};

}  // namespace nanovllm::cpu::detail
