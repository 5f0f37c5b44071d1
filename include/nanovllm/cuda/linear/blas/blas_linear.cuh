#pragma once
/// Dense layers by cuBLASLt: which algorithms it has for one, and runs by them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/blas/blas.cuh"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"

namespace nanovllm::cuda {

/// The handle of one device and its workspace. Serves one stream at a time and one host thread at a
/// time; graphs captured with it keep using its workspace. Layers have neither a norm nor SwiGLU.
class BlasLinear {
 public:
  /// On the current device.
  BlasLinear() : workspace_(kBlasWorkspaceBytes) {}

  /// Enqueues the layer. False, with nothing enqueued, when `algorithm` does not do it.
  template <class T, class Out>
  [[nodiscard]] bool run(const DenseLayer<T, Out>& layer, const BlasAlgorithm& algorithm,
                         const Context& context) {
    return BlasProduct(shape_of(layer))
        .run(handle_, algorithm, layer.x.data, layer.weight.data, layer.y.data, workspace_.data(),
             kBlasWorkspaceBytes, context.stream);
  }

  /// Enqueues a layer whose bucket has no algorithm for it, always by the same one: eager and
  /// captured steps agree, and cuBLASLt is asked once. Throws CudaError when it has none.
  template <class T, class Out>
  void run_any(const DenseLayer<T, Out>& layer, const Context& context) {
    const BlasProduct::Shape shape = shape_of(layer);
    const auto found = found_.find(shape);
    if (found != found_.end() && run(layer, found->second, context)) return;
    for (const BlasAlgorithm& algorithm : ask(shape, 8, true)) {
      if (!run(layer, algorithm, context)) continue;
      found_.insert_or_assign(shape, algorithm);
      return;
    }
    throw CudaError(concat("linear: cuBLASLt has no algorithm for x ", shape_string(layer.x),
                           ", weight ", shape_string(layer.weight)));
  }

  /// Up to `count` algorithms for the layer with `rows` rows, those first that cuBLASLt thinks
  /// fast. Without `split_k` none that adds up parts of K.
  template <class T, class Out>
  [[nodiscard]] std::vector<BlasAlgorithm> algorithms(const DenseLayer<T, Out>& layer,
                                                      std::int64_t rows, int count, bool split_k) {
    BlasProduct::Shape shape = shape_of(layer);
    shape.m = rows;
    return ask(shape, count, split_k);
  }

  /// Times that cuBLASLt was asked.
  [[nodiscard]] std::int64_t num_heuristics() const { return num_heuristics_; }

 private:
  template <class T, class Out>
  [[nodiscard]] static BlasProduct::Shape shape_of(const DenseLayer<T, Out>& layer) {
    return {.m = layer.x.extent(0),
            .n = layer.weight.extent(0),
            .k = layer.weight.extent(1),
            .x_stride = layer.x.strides[0],
            .y_stride = layer.y.strides[0],
            .in = kCudaDataType<T>,
            .out = kCudaDataType<Out>,
            .accumulate = layer.accumulate,
            .alignment = alignment_of(layer)};
  }

  [[nodiscard]] std::vector<BlasAlgorithm> ask(const BlasProduct::Shape& shape, int count,
                                               bool split_k) {
    ++num_heuristics_;
    return BlasProduct(shape).heuristics(handle_, count, kBlasWorkspaceBytes, split_k);
  }

  BlasHandle handle_;
  DeviceBuffer<std::byte> workspace_;
  std::map<BlasProduct::Shape, BlasAlgorithm> found_;
  std::int64_t num_heuristics_ = 0;
};

}  // namespace nanovllm::cuda
