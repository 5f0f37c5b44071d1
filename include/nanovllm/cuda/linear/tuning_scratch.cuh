#pragma once
/// Operands of dense layers and of what follows them, for timing.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/kv_view.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda::detail {

/// Operands of a product by `weight`, with what stands around it, on up to `most` rows.
struct ProductScratch {
  std::int64_t n, k;
  DeviceBuffer<bf16> x, normed, y, out;

  ProductScratch(const DeviceMatrix<bf16>& weight, std::int64_t most, const Context& context)
      : n(weight.rows()),
        k(weight.cols()),
        x(static_cast<std::size_t>(most * k)),
        normed(static_cast<std::size_t>(most * k)),
        y(static_cast<std::size_t>(most * n)),
        out(static_cast<std::size_t>(most * n)) {
    fill_noise(x.data(), most * k, context);
  }
  [[nodiscard]] MatrixView<const bf16> x_rows(std::int64_t rows) const {
    return {x.data(), {rows, k}};
  }
  [[nodiscard]] MatrixView<bf16> normed_rows(std::int64_t rows) {
    return {normed.data(), {rows, k}};
  }
  [[nodiscard]] MatrixView<bf16> y_rows(std::int64_t rows) { return {y.data(), {rows, n}}; }
  [[nodiscard]] MatrixView<bf16> out_rows(std::int64_t rows) { return {out.data(), {rows, n / 2}}; }
};

/// What `project_qkv` is given beside the product: each of up to `most_rows` rows has a position and a
/// slot of its own, in a cache of one block.
class HeadScratch {
 public:
  HeadScratch(const KvHeads& heads, std::int64_t most_rows, const Context& context)
      : heads_(heads),
        most_(most_rows),
        norm_(static_cast<std::size_t>(heads.head_dim)),
        cache_(static_cast<std::size_t>(2 * heads.num_kv_heads * most_rows * heads.head_dim)),
        cos_sin_(static_cast<std::size_t>(most_rows * heads.head_dim)),
        positions_(static_cast<std::size_t>(most_rows)),
        slots_(static_cast<std::size_t>(most_rows)) {
    fill_noise(norm_.data(), heads.head_dim, context);
    fill_noise(cos_sin_.data(), most_rows * heads.head_dim, context);
    std::vector<std::int32_t> positions;
    std::vector<Slot> slots;
    for (std::int64_t i = 0; i < most_rows; ++i) {
      positions.push_back(static_cast<std::int32_t>(i));
      slots.push_back(Slot{i});
    }
    upload(positions, positions_, context);
    upload(slots, slots_, context);
  }

  /// Of the first `rows` rows.
  [[nodiscard]] QkNormRope<bf16> of(std::int64_t rows) const {
    const VectorView<const bf16> weight(norm_.data(), {heads_.head_dim});
    return {.q_norm = weight,
            .k_norm = weight,
            .positions = {positions_.data(), {rows}},
            .cos_sin = {cos_sin_.data(), {most_, heads_.head_dim}},
            .slots = {slots_.data(), {rows}}};
  }
  [[nodiscard]] KvView<bf16> kv() {
    return {cache_.data(), 1, most_, heads_.num_kv_heads, heads_.head_dim};
  }

 private:
  /// Pageable memory is read before the call returns.
  template <class T>
  static void upload(const std::vector<T>& from, DeviceBuffer<T>& to, const Context& context) {
    if (from.empty()) return;
    check(cudaMemcpyAsync(to.data(), from.data(), to.size_bytes(), cudaMemcpyHostToDevice,
                          context.stream),
          "cudaMemcpyAsync");
  }

  KvHeads heads_;
  std::int64_t most_;
  DeviceBuffer<bf16> norm_, cache_;
  DeviceBuffer<float> cos_sin_;
  DeviceBuffer<std::int32_t> positions_;
  DeviceBuffer<Slot> slots_;
};

}  // namespace nanovllm::cuda::detail
