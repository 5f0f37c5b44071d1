#pragma once
/// Operands of one product, for tests that run it by the kernels of every family.

#include <cstddef>
#include <cstdint>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/hopper/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"

namespace nanovllm::test {

/// Plain last: where y is poison, it can add to what the others have written.
inline constexpr cuda::ProductKind kProductKinds[] = {
    cuda::ProductKind::gated, cuda::ProductKind::normed, cuda::ProductKind::plain};

/// x [m, k], W [2 · n, k] of which what is not gated takes half, the weights of a norm, and y [m, n].
struct Product {
  std::int64_t m, n, k;
  GpuArray<bf16> x, weight, norm, y;

  Product(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in)
      : m(m_in),
        n(n_in),
        k(k_in),
        x(GpuArray<bf16>::random(static_cast<std::size_t>(m * k), 1)),
        weight(GpuArray<bf16>::random(static_cast<std::size_t>(2 * n * k), 2, -.1, .1)),
        norm(GpuArray<bf16>::random(static_cast<std::size_t>(k), 3, .5, 1.5)),
        y(static_cast<std::size_t>(m * n)) {}

  [[nodiscard]] MatrixView<const bf16> rows() { return {x.data(), {m, k}}; }
  [[nodiscard]] MatrixView<const bf16> matrix(bool gated) {
    return {weight.data(), {gated ? 2 * n : n, k}};
  }
  [[nodiscard]] InputNorm<bf16> ahead(bool wanted) {
    return {wanted ? VectorView<const bf16>(norm.data(), {k}) : VectorView<const bf16>{}, 1e-6f};
  }
  [[nodiscard]] MatrixView<bf16> out() { return {y.data(), {m, n}}; }

  /// The product with what is wanted around it.
  [[nodiscard]] cuda::DenseLayer<bf16> layer(bool gated, bool normed, bool accumulate = false) {
    return {.x = rows(),
            .norm = ahead(normed),
            .weight = matrix(gated),
            .y = out(),
            .accumulate = accumulate,
            .gated = gated};
  }
  [[nodiscard]] cuda::DenseLayer<bf16> layer(cuda::ProductKind kind, bool accumulate) {
    return layer(kind == cuda::ProductKind::gated, kind != cuda::ProductKind::plain, accumulate);
  }
};

}  // namespace nanovllm::test
