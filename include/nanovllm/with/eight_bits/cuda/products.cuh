#pragma once
/// Products of more than a few rows by 8-bit weights: activations are rounded to 8 bits, too
/// (quantise.cuh), and cuBLASLt multiplies both with their scales.
///
///   y[m, n] = Σ_g sx[m, g] · sw[n, g] · Σ_k∈g qx[m, k] · qw[n, k]   (+ y[m, n])
///
/// g are groups of 128 columns, whose sums are in float32. cuBLASLt rounds the product to y's
/// type before it adds y. It has such products on Hopper, since version 12.9. Its kernels want a
/// multiple of 8 rows. Another number is rounded up, with the product in scratch memory; where that
/// is too small for all rows, only the last ones are.
/// Measured: fp8_linear_bench, cuda_fp8_h200.json, needed: 51.7 us for 256 rows of 8B's gate_up
/// with norm, rounding and SwiGLU, 996 TFLOP/s; the kernel for the last rows not by itself.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/blas/blas.cuh"
#include "nanovllm/cuda/linear/dispatch/tuned_plans.hpp"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"

namespace nanovllm::cuda {

namespace detail {

/// y = from, or y + from. Grid: rows.
template <Element T>
__global__ void __launch_bounds__(256)
    move_rows_kernel(const MatrixView<const T> from, const MatrixView<T> y, bool accumulate) {
  grid_dependency_wait();
  grid_dependency_launch();
  const std::int64_t row = blockIdx.x;
  for (std::int64_t j = threadIdx.x; j < y.extent(1); j += blockDim.x) {
    const float value = to_float(*from.at(row, j));
    T& to = *y.at(row, j);
    to = from_float<T>(accumulate ? to_float(to) + value : value);
  }
}

}  // namespace detail

/// What products of one device share: cuBLASLt's handle, the rounded activations, the choices.
/// Serves one stream and one host thread at a time.
class Fp8Products {
 public:
  /// On the current device.
  Fp8Products()
      : workspace_(kBlasWorkspaceBytes),
        activations_(kActivationBytes),
        scales_(kActivationBytes / kFp8Group),
        ragged_(kRaggedBytes) {
    // Numbers, so that what is timed takes the power of numbers.
    check_cuda(cudaMemset(activations_.data(), 0x35, activations_.size_bytes()), "cudaMemset");
    check_cuda(cudaMemset(scales_.data(), 0x3f, scales_.size_bytes()), "cudaMemset");
    check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // ahead of other streams
  }

  /// Whether the device and this cuBLASLt have such products.
  [[nodiscard]] static bool is_available(const Context& context) {
    return BlasProduct::kHasScaling && context.compute_capability == 90;
  }

  /// Enqueues the layer, which is not gated and has no empty operand. False, with nothing enqueued,
  /// where cuBLASLt does not do it.
  template <Element Out>
  [[nodiscard]] bool run(const Fp8LayerOf<Out>& layer, const Context& context) {
    const std::int64_t rows = layer.x.extent(0);
    const std::int64_t most = most_rows(layer.weight);
    const bool has_scratch = kRowMultiple * layer.weight.rows <= kMostRagged<Out>;
    if (most < kRowMultiple || !has_scratch || !plan_for(layer, context)) return false;
    const std::int64_t chunk = align_up(ceil_div(rows, ceil_div(rows, most)), kRowMultiple);
    for (std::int64_t first = 0; first < rows; first += chunk)
      run_rows(layer.rows(first, std::min(first + chunk, rows)), context);
    return true;
  }

  /// Enqueues the rounding of the layer's x, or of its norm; the result is valid until the next
  /// call. None, with nothing enqueued, where there is no room for so many rows.
  [[nodiscard]] std::optional<Fp8Activations> round(const Fp8Layer& layer, const Context& context) {
    const std::int64_t rows = layer.x.extent(0);
    if (rows > most_rows(layer.weight)) return {};
    const Fp8Activations x = activations_of(layer.weight, rows);
    quantise_rows(layer.x, layer.norm, x, context);
    return x;
  }

  /// Chooses by timing for up to `max_rows` rows; rows that were not reached within about half a
  /// second stay with the choice by rule. Blocks the host.
  template <Element Out = bf16>
  void tune(std::span<const Fp8Matrix* const> weights, bool accumulates, std::int64_t max_rows,
            const Context& context) {
    const Fp8View first = weights[0]->view();
    if (first.rows == 0 || first.cols == 0 || max_rows <= kMaxFp8FewRows) return;
    const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    max_rows = std::min(align_up(max_rows, kRowMultiple), most_rows(first));
    if (max_rows == 0) return;
    DeviceBuffer<Out> y(static_cast<std::size_t>(max_rows * first.rows));
    detail::fill_noise(y.data(), static_cast<std::int64_t>(y.size()), context);
    for (const std::int64_t bucket : kRowBuckets) {
      if (bucket <= kMaxFp8FewRows) continue;
      const std::int64_t rows = std::min(bucket, max_rows);
      const auto layer = [&](int i) {
        const Fp8View weight = weights[static_cast<std::size_t>(i) % weights.size()]->view();
        return Fp8LayerOf<Out>{.x = {nullptr, {rows, weight.cols}},
                               .weight = weight,
                               .y = {y.data(), {rows, weight.rows}},
                               .accumulate = accumulates};
      };
      const auto run_way = [&](int i, const Plan& way) {
        return multiply(layer(i), activations_of(layer(i).weight, rows), way, context);
      };
      detail::time_plans(
          plans_, key_of(layer(0)), candidates(layer(0), bucket, 4),
          detail::calls_to_time(rows, weights[0]->size_bytes(), context), deadline, context,
          [&](const Plan& way) { return run_way(0, way); },
          [&](int i, const Plan& way) { static_cast<void>(run_way(i, way)); });
      if (bucket >= max_rows || is_over(deadline)) return;
    }
  }

 private:
  static constexpr std::size_t kActivationBytes = std::size_t{64} << 20;
  static constexpr std::size_t kRaggedBytes = std::size_t{32} << 20;
  template <Element Out>
  static constexpr auto kMostRagged = static_cast<std::int64_t>(kRaggedBytes / sizeof(Out));
  static constexpr std::int64_t kRowMultiple = 8;
  /// Rows from which scales of blocks are faster as a rule; with fewer, those of rows.
  static constexpr std::int64_t kBlockRows = 192;

  struct Key {
    std::int64_t n, k, bucket;
    cudaDataType_t out;
    bool accumulate;
    std::uint32_t alignment;  ///< of y
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    BlasScaling scaling = BlasScaling::rows;
    BlasAlgorithm algorithm{};
  };

  [[nodiscard]] static std::int64_t most_rows(const Fp8View& weight) {
    return align_down(static_cast<std::int64_t>(kActivationBytes) / weight.stride, kRowMultiple);
  }
  template <Element Out>
  [[nodiscard]] static std::uint32_t alignment_of(const Fp8LayerOf<Out>& layer) {
    const auto bits = reinterpret_cast<std::uintptr_t>(layer.y.data) |
                      static_cast<std::uintptr_t>(layer.y.strides[0]) * sizeof(Out) |
                      std::uintptr_t{16};
    return static_cast<std::uint32_t>(bits & (~bits + 1));
  }
  template <Element Out>
  [[nodiscard]] static Key key_of(const Fp8LayerOf<Out>& layer) {
    return {layer.weight.rows,  layer.weight.stride, row_bucket(layer.x.extent(0)),
            kCudaDataType<Out>, layer.accumulate,    alignment_of(layer)};
  }

  /// The memory of `rows` rounded rows of x.
  [[nodiscard]] Fp8Activations activations_of(const Fp8View& weight, std::int64_t rows) {
    return {.data = activations_.data(),
            .scales = scales_.data(),
            .stride = weight.stride,
            .scale_stride = align_up(rows, kRowMultiple)};
  }

  template <Element Out>
  [[nodiscard]] BlasProduct product_of(const Fp8LayerOf<Out>& layer, std::int64_t rows,
                                       BlasScaling scaling) {
    const Fp8View& weight = layer.weight;
    return BlasProduct({.m = align_up(rows, kRowMultiple),
                        .n = weight.rows,
                        .k = weight.stride,
                        .x_stride = weight.stride,
                        .y_stride = layer.y.strides[0],
                        .in = CUDA_R_8F_E4M3,
                        .out = kCudaDataType<Out>,
                        .accumulate = layer.accumulate,
                        .alignment = alignment_of(layer),
                        .scaling = scaling},
                       {.x = scales_.data(),
                        .weight = scaling == BlasScaling::blocks ? weight.blocks : weight.scales});
  }

  /// Enqueues the product of rounded rows. False, with nothing enqueued, where `plan` does not fit.
  template <Element Out>
  [[nodiscard]] bool multiply(const Fp8LayerOf<Out>& layer, const Fp8Activations& x,
                              const Plan& plan, const Context& context) {
    if (plan.scaling == BlasScaling::blocks && layer.weight.blocks == nullptr) return false;
    return product_of(layer, layer.x.extent(0), plan.scaling)
        .run(handle_, plan.algorithm, x.data, layer.weight.data, layer.y.data, workspace_.data(),
             kBlasWorkspaceBytes, context.stream);
  }

  /// Up to `count` ways of each kind of scales, for so many rows; those first that are fast as a
  /// rule.
  template <Element Out>
  [[nodiscard]] std::vector<Plan> candidates(const Fp8LayerOf<Out>& layer, std::int64_t rows,
                                             int count) {
    std::vector<Plan> out;
    if constexpr (BlasProduct::kHasScaling) {
      const bool has_blocks = layer.weight.blocks != nullptr;
      const bool blocks_first = has_blocks && rows >= kBlockRows;
      for (const bool by_blocks : {blocks_first, !blocks_first}) {
        if (by_blocks && !has_blocks) continue;
        const BlasScaling scaling = by_blocks ? BlasScaling::blocks : BlasScaling::rows;
        const auto found =
            product_of(layer, rows, scaling).heuristics(handle_, count, kBlasWorkspaceBytes, true);
        for (const BlasAlgorithm& algorithm : found) out.push_back({scaling, algorithm});
      }
    }
    return out;
  }

  /// The way in force, by rule where there is none yet; none where cuBLASLt has none.
  template <Element Out>
  [[nodiscard]] std::optional<Plan> plan_for(const Fp8LayerOf<Out>& layer, const Context& context) {
    const Key key = key_of(layer);
    if (const Plan* const plan = plans_.find(key)) return *plan;
    if (!is_available(context)) return {};
    const auto found = candidates(layer, key.bucket, 1);
    if (found.empty()) return {};
    plans_.choose(key, found[0]);
    return found[0];
  }

  /// No more rows than the memory of the rounded ones has room for.
  template <Element Out>
  void run_rows(const Fp8LayerOf<Out>& layer, const Context& context) {
    const std::int64_t rows = layer.x.extent(0), n = layer.weight.rows;
    const std::int64_t padded = align_up(rows, kRowMultiple);
    if (padded == rows) return run_whole(layer, rows, context);
    if (padded * n > kMostRagged<Out>) {
      const std::int64_t most = align_down(rows, kRowMultiple);
      run_whole(layer.rows(0, most), most, context);
      return run_rows(layer.rows(most, rows), context);
    }
    Fp8LayerOf<Out> scratch = layer;
    scratch.y = {reinterpret_cast<Out*>(ragged_.data()), {rows, n}};
    scratch.accumulate = false;
    run_whole(scratch, rows, context);
    launch(detail::move_rows_kernel<Out>,
           {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(256)}, context,
           MatrixView<const Out>(scratch.y.data, {rows, n}), layer.y, layer.accumulate);
  }

  template <Element Out>
  void run_whole(const Fp8LayerOf<Out>& layer, std::int64_t rows, const Context& context) {
    const Fp8Activations x = activations_of(layer.weight, rows);
    quantise_rows(layer.x, layer.norm, x, context);
    const std::optional<Plan> plan = plan_for(layer, context);
    if (plan && multiply(layer, x, *plan, context)) return;
    for (const Plan& other : candidates(layer, align_up(rows, kRowMultiple), 8)) {
      if (!multiply(layer, x, other, context)) continue;
      plans_.choose(key_of(layer), other);
      return;
    }
    throw CudaError(concat("linear: cuBLASLt has no algorithm for ", rows,
                           " rows of 8-bit floats, weight [", layer.weight.rows, ", ",
                           layer.weight.cols, "]"));
  }

  BlasHandle handle_;
  DeviceBuffer<std::byte> workspace_;
  DeviceBuffer<fp8_e4m3> activations_;
  DeviceBuffer<float> scales_;
  DeviceBuffer<std::byte> ragged_;  // whole elements of any type
  TunedPlans<Key, Plan> plans_;
};

}  // namespace nanovllm::cuda
