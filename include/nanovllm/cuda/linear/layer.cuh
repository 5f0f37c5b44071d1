#pragma once
/// A dense layer as all families of kernels take it, and what a choice between them is remembered
/// by.

#include <compare>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

/// A product with what stands around it: y = norm(x) · Wᵀ (+ y), or its SwiGLU where `gated`; then
/// W has the gate rows first, then the up rows.
template <class T, class Out = T>
struct DenseLayer {
  MatrixView<const T> x;       ///< [m, k]
  InputNorm<T> norm{};         ///< of x
  MatrixView<const T> weight;  ///< [n, k]
  MatrixView<Out> y;           ///< [m, n], or [m, n / 2] where `gated`
  bool accumulate = false;     ///< not `gated`
  bool gated = false;

  [[nodiscard]] ProductKind kind() const {
    return gated ? ProductKind::gated : norm ? ProductKind::normed : ProductKind::plain;
  }
};

// The layer that an op is; of `project_qkv` the product and the norm ahead.

template <class T, class Out>
[[nodiscard]] DenseLayer<T, Out> layer_of(const DenseLayer<T, Out>& layer) {
  return layer;
}
template <class T, class Out>
[[nodiscard]] DenseLayer<T, Out> layer_of(const LinearArgs<T, DeviceMatrix<T>, Out>& args) {
  return {.x = args.x, .weight = args.weight->view(), .y = args.y, .accumulate = args.accumulate};
}
template <class T>
[[nodiscard]] DenseLayer<T> layer_of(const GatedLinearArgs<T, DeviceMatrix<T>>& args) {
  return {
      .x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.out, .gated = true};
}
template <class T, class Kv>
[[nodiscard]] DenseLayer<T> layer_of(const ProjectQkvArgs<T, DeviceMatrix<T>, Kv, T>& args) {
  return {.x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv};
}

/// Bytes, at most 16, that divide the addresses of x, W and y and of all their rows.
template <class T, class Out>
[[nodiscard]] std::uint32_t alignment_of(const DenseLayer<T, Out>& layer) {
  const auto bits = reinterpret_cast<std::uintptr_t>(layer.x.data) |
                    reinterpret_cast<std::uintptr_t>(layer.weight.data) |
                    reinterpret_cast<std::uintptr_t>(layer.y.data) |
                    static_cast<std::uintptr_t>(layer.x.strides[0]) * sizeof(T) |
                    static_cast<std::uintptr_t>(layer.weight.strides[0]) * sizeof(T) |
                    static_cast<std::uintptr_t>(layer.y.strides[0]) * sizeof(Out) |
                    std::uintptr_t{16};
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// What a choice of how to run a layer is remembered by.
struct DenseKey {
  ProductKind kind;
  bool has_norm;
  std::int64_t n, k;
  std::int64_t bucket;  ///< of rows of x
  DType in, out;
  bool accumulate;
  std::uint32_t alignment;  ///< of a plain product, which cuBLASLt may run; else 0

  auto operator<=>(const DenseKey&) const = default;
};

/// float32 runs by one choice for any number of rows.
inline constexpr std::int64_t kFloat32Bucket = 64;

template <class T, class Out>
[[nodiscard]] DenseKey key_of(const DenseLayer<T, Out>& layer) {
  return {.kind = layer.kind(),
          .has_norm = bool{layer.norm},
          .n = layer.weight.extent(0),
          .k = layer.weight.extent(1),
          .bucket = sizeof(T) == 4 ? kFloat32Bucket : row_bucket(layer.x.extent(0)),
          .in = kDType<T>,
          .out = kDType<Out>,
          .accumulate = layer.accumulate,
          .alignment = layer.kind() == ProductKind::plain ? alignment_of(layer) : 0};
}

}  // namespace nanovllm::cuda
