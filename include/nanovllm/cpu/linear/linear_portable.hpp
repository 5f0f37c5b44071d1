#pragma once
/// Linear kernels in standard C++.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"

namespace nanovllm::cpu::detail {

/// Sixteen columns of a tile, from `column` on.
template <int kRows, class T>
void portable_multiply(const float* x, const Panel<T>& panel, int column, Tile& tile) {
  constexpr int kLanes = 16, kPerWord = PackedMatrix<T>::kPerWord;
  float sum[kRows][kLanes] = {};
  const T* weights = panel.data + column * kPerWord;
  for (std::int64_t word = 0; word < panel.words; ++word, weights += kPanelRows * kPerWord) {
    for (int step = 0; step < kPerWord; ++step, x += kRows) {
      float w[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) w[lane] = weights[lane * kPerWord + step];
      for (int r = 0; r < kRows; ++r) {
        for (int lane = 0; lane < kLanes; ++lane) sum[r][lane] += x[r] * w[lane];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) tile.values[r][column + lane] = sum[r][lane];
  }
}

struct PortableLinear {
  using Operand = float;
  static constexpr int kMaxRows = 2;

  template <class T>
  static void multiply(int rows, const float* x, const Panel<T>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      portable_multiply<kRows>(x, panel, 0, tile);
      portable_multiply<kRows>(x, panel, 16, tile);
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    store_columns(tile, rows, 0, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail
