#pragma once
/// Scratch memory of `expert_mlp`: the plan, and what lies between the products.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"
#include "nanovllm/with/moe/ops.hpp"

namespace nanovllm::cuda {

/// What all layers with experts of one rank share; it grows to the largest of them.
class ExpertWorkspace {
 public:
  /// Pairs of a token and a slot that are multiplied at a time: 8,192 tokens of eight. The results
  /// of all are kept, 256 MiB in bfloat16 for 2,048 columns.
  static constexpr std::int64_t kMaxPairs = std::int64_t{1} << 16;

  /// Tokens that are multiplied at a time.
  [[nodiscard]] static constexpr std::int64_t max_tokens(std::int64_t experts_per_token) {
    return std::max<std::int64_t>(1, kMaxPairs / experts_per_token);
  }

  /// Makes room for `sizes`, with `element_bytes` of an activation. Allocates where there is too
  /// little, which must not be during a capture.
  void reserve(const ExpertMlpSizes& sizes, std::size_t element_bytes) {
    const auto pairs = static_cast<std::size_t>(
        std::min(sizes.max_rows, max_tokens(sizes.experts_per_token)) * sizes.experts_per_token);
    grow(pairs_, pairs);
    grow(tiles_, pairs);
    grow(num_tiles_, std::size_t{1});
    grow(hidden_, pairs * whole_groups(sizes.width) * element_bytes);
    grow(results_, pairs * whole_groups(sizes.in) * element_bytes);
  }

  [[nodiscard]] TensorMaps& maps() { return maps_; }
  [[nodiscard]] ExpertPlan plan() { return {pairs_.data(), tiles_.data(), num_tiles_.data()}; }
  /// [pairs, width] and [pairs, in].
  template <class T>
  [[nodiscard]] T* hidden() {
    return reinterpret_cast<T*>(hidden_.data());
  }
  template <class T>
  [[nodiscard]] T* results() {
    return reinterpret_cast<T*>(results_.data());
  }

  /// Rows in 8-bit floats in the same memory: `hidden`, and x [tokens, in] until `results` are
  /// written.
  [[nodiscard]] Fp8Activations rounded_hidden(std::int64_t pairs, std::int64_t width) {
    return rounded(hidden_, pairs, width);
  }
  [[nodiscard]] Fp8Activations rounded_x(std::int64_t tokens, std::int64_t in) {
    return rounded(results_, tokens, in);
  }

 private:
  [[nodiscard]] static std::size_t whole_groups(std::int64_t columns) {
    return static_cast<std::size_t>(align_up(columns, kFp8Group));
  }
  /// Elements, then scales: less than two bytes an element of whole groups.
  [[nodiscard]] static Fp8Activations rounded(DeviceBuffer<std::byte>& buffer, std::int64_t rows,
                                              std::int64_t columns) {
    const std::int64_t stride = align_up(columns, kFp8Group);
    return {.data = reinterpret_cast<fp8_e4m3*>(buffer.data()),
            .scales = reinterpret_cast<float*>(buffer.data() + rows * stride),
            .stride = stride,
            .scale_stride = align_up(rows, std::int64_t{4})};
  }
  template <class T>
  static void grow(DeviceBuffer<T>& buffer, std::size_t size) {
    if (buffer.size() >= size) return;
    buffer = DeviceBuffer<T>();
    buffer = DeviceBuffer<T>(size);
  }

  DeviceBuffer<std::int32_t> pairs_, num_tiles_;
  DeviceBuffer<ExpertTile> tiles_;
  DeviceBuffer<std::byte> hidden_, results_;
  TensorMaps maps_;
};

}  // namespace nanovllm::cuda
