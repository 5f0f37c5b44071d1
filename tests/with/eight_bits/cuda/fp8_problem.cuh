#pragma once
/// Operands of dense layers by weights in 8-bit floats, on the device and in double precision.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"

namespace nanovllm::test {

template <class T>
std::vector<T> from_device(const T* data, std::size_t count) {
  std::vector<T> out(count);
  if (count > 0)
    REQUIRE(cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
  return out;
}

/// What a matrix holds.
struct Fp8Content {
  std::int64_t rows, cols, stride, scale_stride, num_groups;
  bool has_blocks;
  std::vector<fp8_e4m3> data;
  std::vector<float> scales, blocks;

  explicit Fp8Content(const cuda::Fp8Matrix& matrix) {
    const cuda::Fp8View view = matrix.view();
    rows = view.rows, cols = view.cols, stride = view.stride, scale_stride = view.scale_stride;
    num_groups = view.num_groups(), has_blocks = view.blocks != nullptr;
    data = from_device(view.data, static_cast<std::size_t>(rows * stride));
    scales = from_device(view.scales, static_cast<std::size_t>(num_groups * scale_stride));
    if (has_blocks)
      blocks = from_device(view.blocks,
                           static_cast<std::size_t>(ceil_div(rows, 128) * align_up(num_groups, 4)));
  }
  [[nodiscard]] float scale(std::int64_t i, std::int64_t j) const {
    return scales[static_cast<std::size_t>(j / 128 * scale_stride + i)];
  }
  [[nodiscard]] float block_scale(std::int64_t i, std::int64_t j) const {
    return blocks[static_cast<std::size_t>(i / 128 * align_up(num_groups, 4) + j / 128)];
  }
  [[nodiscard]] float stored(std::int64_t i, std::int64_t j) const {
    return data[static_cast<std::size_t>(i * stride + j)];
  }
  [[nodiscard]] double value(std::int64_t i, std::int64_t j) const {
    return static_cast<double>(stored(i, j)) * scale(i, j);
  }
};

/// Rows of a checkpoint that have every number of 8 bits, with a scale of each row and 128 columns,
/// or of each 128 rows.
struct StoredRows {
  std::int64_t rows, cols, row_block;
  std::vector<fp8_e4m3> data;

  StoredRows(std::int64_t rows_in, std::int64_t cols_in, std::int64_t row_block_in)
      : rows(rows_in), cols(cols_in), row_block(row_block_in) {
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      fp8_e4m3 x;
      x.bits = static_cast<std::uint8_t>(i * 37 + i / cols * 11);
      if ((x.bits & 0x7f) == 0x7f) x.bits = 0x55;
      data.push_back(x);
    }
  }
  [[nodiscard]] Fp8Rows view(std::int64_t first = 0) const {
    return {.data = data.data() + first * cols,
            .rows = rows - first,
            .columns = cols,
            .stride = cols,
            .group_columns = 128,
            .scale = [block = row_block, first](std::int64_t i, std::int64_t j) {
              return std::ldexp(1.f + static_cast<float>((first + i) / block % 7) / 8,
                                static_cast<int>(j / 128 % 5) - 12);
            }};
  }
};

/// x [m, k], W [n or 2 n, k], w [k] and y [m, n]. Rows of x are 8 elements apart, NaN between and
/// after them, unless `placement` says otherwise.
struct Fp8Problem {
  std::int64_t m, n, k;
  bool has_norm, gated, accumulate;
  GpuMatrix<bf16> x, norm, y;
  cuda::Fp8Matrix weight;
  Fp8Content content;
  std::vector<double> old;

  Fp8Problem(const Gpu& gpu, std::int64_t m_in, std::int64_t n_in, std::int64_t k_in, bool norm_in,
             bool gated_in, bool add = false, Placement placement = {8, 0},
             Placement y_placement = {8, 0})
      : m(m_in),
        n(n_in),
        k(k_in),
        has_norm(norm_in),
        gated(gated_in),
        accumulate(add),
        x(GpuMatrix<bf16>::random(m, k, 1, placement)),
        norm(GpuMatrix<bf16>::random(1, k, 3, {}, 0.25, 2)),
        y(add ? GpuMatrix<bf16>::random(m, n, 4, y_placement) : GpuMatrix<bf16>(m, n, y_placement)),
        weight(made(gpu, gated ? 2 * n : n, k)),
        content(weight) {
    for (std::int64_t i = 0; i < m * n; ++i) old.push_back(add ? y.value(i / n, i % n) : 0);
  }

  [[nodiscard]] InputNorm<bf16> ahead() {
    return {has_norm ? VectorView<const bf16>(norm.row(0).data, {k}) : VectorView<const bf16>{},
            1e-6f};
  }
  [[nodiscard]] MatrixView<const bf16> x_rows(std::int64_t begin, std::int64_t end) {
    const auto rows = x.view().slice(begin, end);
    return {rows.data, rows.extents, rows.strides};
  }
  [[nodiscard]] cuda::Fp8Layer layer(std::int64_t begin, std::int64_t end) {
    return {.x = x_rows(begin, end),
            .norm = ahead(),
            .weight = weight.view(),
            .y = y.view().slice(begin, end),
            .accumulate = accumulate,
            .gated = gated};
  }

  std::vector<bf16> result() {
    y.download();
    REQUIRE(y.surroundings_intact());
    std::vector<bf16> out;
    for (std::int64_t i = 0; i < m * n; ++i) out.push_back(y(i / n, i % n));
    return out;
  }

  /// Row i of the products' left side, and what each element of it is away from that at the most.
  struct Row {
    std::vector<double> values, error;
  };
  [[nodiscard]] Row row(std::int64_t i, bool rounds_to_8_bits) const {
    Row out;
    double square = 0;
    for (std::int64_t c = 0; c < k; ++c) square += x.value(i, c) * x.value(i, c);
    const double inverse = has_norm ? 1 / std::sqrt(square / double(k) + 1e-6) : 1;
    for (std::int64_t c = 0; c < k; ++c) {
      const double v = x.value(i, c) * (has_norm ? inverse * norm.value(0, c) : 1);
      out.values.push_back(v);
      out.error.push_back(has_norm ? 2 * kUnit<bf16> * std::abs(v) : 0);
    }
    if (!rounds_to_8_bits) return out;
    for (std::int64_t begin = 0; begin < k; begin += 128) {
      const std::int64_t end = std::min(begin + 128, k);
      double largest = 0;
      for (std::int64_t c = begin; c < end; ++c)
        largest = std::max(largest, std::abs(out.values[std::size_t(c)]));
      for (std::int64_t c = begin; c < end; ++c) {
        const double v = std::abs(out.values[std::size_t(c)]);
        out.error[std::size_t(c)] += std::max(v / 16, largest / 448 / 1024);
      }
    }
    return out;
  }

  /// The largest error of y as a part of its bound: six standard deviations of what is rounded in x
  /// and of the sums in float32, of which products of 8-bit floats keep 13 bits.
  double worst(bool rounds_to_8_bits) {
    const std::vector<bf16> got = result();
    Worst out;
    for (std::int64_t i = 0; i < m; ++i) {
      const Row a = row(i, rounds_to_8_bits);
      const auto sum = [&](std::int64_t j) {
        double total = 0, variance = 0, size = 0;
        for (std::int64_t c = 0; c < k; ++c) {
          const double w = content.value(j, c), term = a.values[std::size_t(c)] * w;
          const double error = a.error[std::size_t(c)] * w;
          total += term, variance += error * error / 3, size += std::abs(term);
        }
        const double bits = rounds_to_8_bits ? 0x1p-13 : 8 * 0x1p-24 * std::sqrt(k + 1.);
        return std::pair{total, 6 * std::sqrt(variance) + bits * size};
      };
      for (std::int64_t j = 0; j < n; ++j) {
        const auto [g, g_error] = sum(j);
        const std::size_t at = static_cast<std::size_t>(i * n + j);
        double expected = g + old[at];
        double bound = g_error + (accumulate ? kUnit<bf16> * std::abs(g) : 0);
        if (gated) {
          const auto [u, u_error] = sum(n + j);
          const double silu = g / (1 + std::exp(-g));  // whose slope is at most 1.1
          expected = silu * u;
          bound = 1.1 * g_error * (std::abs(u) + u_error) + std::abs(silu) * u_error;
          // Of a gate and an up in 16 bits.
          if (rounds_to_8_bits) bound += 3 * kUnit<bf16> * std::abs(expected);
        }
        bound += 1.5 * kUnit<bf16> * std::abs(expected) + 1e-6;
        out.add(double(float(got[at])), expected, bound);
      }
    }
    return out.ratio();
  }

 private:
  static cuda::Fp8Matrix made(const Gpu& gpu, std::int64_t rows, std::int64_t cols) {
    auto values = GpuMatrix<bf16>::random(rows, cols, 2, {}, -0.25, 0.25);
    // Some small ones, which are subnormal numbers in 8 bits.
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = i % 3; j < cols; j += 3)
        values(i, j) = bf16(static_cast<float>(values.value(i, j)) * 0x1p-9f);
    cuda::Fp8Matrix out(rows, cols);
    out.set_rows(0, MatrixView<const bf16>(&values(0, 0), {rows, cols}), gpu.context);
    gpu.sync();
    return out;
  }
};

}  // namespace nanovllm::test
