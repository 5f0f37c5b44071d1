#pragma once
/// Operands of dense layers and of what follows them, for timing.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
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

/// Operands of `project_qkv` and attention in addition to the product: each of up to `most_rows`
/// rows is the last of `keys` tokens of a sequence that has blocks of its own, in each of several
/// caches.
class HeadScratch {
 public:
  /// `keys` are whole blocks. The caches of all rows are at least `bytes` together.
  HeadScratch(const KvHeads& heads, std::int64_t most_rows, std::int64_t keys, std::size_t bytes,
              const Context& context)
      : heads_(heads),
        keys_(keys),
        norm_(static_cast<std::size_t>(heads.head_dim)),
        cache_(std::max(static_cast<std::size_t>(cache_size(most_rows)), bytes / sizeof(bf16))),
        cos_sin_(static_cast<std::size_t>(keys * heads.head_dim)),
        positions_(static_cast<std::size_t>(most_rows)),
        lens_(static_cast<std::size_t>(most_rows)),
        slots_(static_cast<std::size_t>(most_rows)),
        tables_(static_cast<std::size_t>(most_rows * blocks())) {
    fill_noise(norm_.data(), heads.head_dim, context);
    fill_noise(cos_sin_.data(), keys * heads.head_dim, context);
    fill_noise(cache_.data(), static_cast<std::int64_t>(cache_.size()), context);
    const auto rows = static_cast<std::size_t>(most_rows);
    std::vector<Slot> slots;
    for (std::int64_t i = 0; i < most_rows; ++i) slots.push_back(Slot{(i + 1) * keys - 1});
    std::vector<BlockId> tables(tables_.size());
    std::iota(tables.begin(), tables.end(), BlockId{0});
    upload(std::vector<std::int32_t>(rows, static_cast<std::int32_t>(keys - 1)), positions_,
           context);
    upload(std::vector<std::int32_t>(rows, static_cast<std::int32_t>(keys)), lens_, context);
    upload(slots, slots_, context);
    upload(tables, tables_, context);
  }

  // Of the first `rows` rows.

  [[nodiscard]] QkNormRope<bf16> of(std::int64_t rows) const {
    const VectorView<const bf16> weight(norm_.data(), {heads_.head_dim});
    return {.q_norm = weight,
            .k_norm = weight,
            .positions = {positions_.data(), {rows}},
            .cos_sin = {cos_sin_.data(), {keys_, heads_.head_dim}},
            .slots = {slots_.data(), {rows}}};
  }
  /// Call `i`'s cache: alternating, so that keys come from memory as they do in a step.
  [[nodiscard]] KvView<bf16> kv(std::int64_t rows, std::size_t i) {
    const auto size = static_cast<std::size_t>(cache_size(rows));
    return {cache_.data() + i % (cache_.size() / size) * size, rows * blocks(), kBlockSize,
            heads_.num_kv_heads, heads_.head_dim};
  }
  [[nodiscard]] VectorView<const std::int32_t> kv_lens(std::int64_t rows) const {
    return {lens_.data(), {rows}};
  }
  [[nodiscard]] MatrixView<const BlockId> block_tables(std::int64_t rows) const {
    return {tables_.data(), {rows, blocks()}};
  }

 private:
  static constexpr std::int64_t kBlockSize = 64;

  [[nodiscard]] std::int64_t blocks() const { return keys_ / kBlockSize; }
  [[nodiscard]] std::int64_t cache_size(std::int64_t rows) const {
    return rows * keys_ * 2 * heads_.num_kv_heads * heads_.head_dim;
  }

  /// Pageable memory is read before the call returns.
  template <class T>
  static void upload(const std::vector<T>& from, DeviceBuffer<T>& to, const Context& context) {
    if (from.empty()) return;
    check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.size_bytes(), cudaMemcpyHostToDevice,
                               context.stream),
               "cudaMemcpyAsync");
  }

  KvHeads heads_;
  std::int64_t keys_;
  DeviceBuffer<bf16> norm_, cache_;
  DeviceBuffer<float> cos_sin_;
  DeviceBuffer<std::int32_t> positions_, lens_;
  DeviceBuffer<Slot> slots_;
  DeviceBuffer<BlockId> tables_;
};

}  // namespace nanovllm::cuda::detail
