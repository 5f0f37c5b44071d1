#pragma once
/// Launcher of `linear_sample/kernel.cuh`: logits and the plain draw from them, or logits alone.
///
/// It allocates nothing on the device and does not synchronise; it is legal during graph capture.
/// Weights are read before the kernel ahead has ended.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear_sample/kernel.cuh"
#include "nanovllm/cuda/linear_sample/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"

namespace nanovllm::cuda {

/// Owner of the memory that the blocks of `linear_sample` meet in: 136 KB on 132 multiprocessors.
/// Calls that share one must not overlap. What a call leaves in it is as it was before.
class LinearSampleWorkspace {
 public:
  /// For the current device, the context's.
  explicit LinearSampleWorkspace(const Context& context)
      : entries_(static_cast<std::size_t>(kMaxLinearSampleRows * context.num_sms)),
        bounds_(kMaxLinearSampleRows),
        counts_(kMaxLinearSampleRows + 1) {
    fill_linear_sample_bounds();
    check_cuda(cudaMemset(counts_.data(), 0, counts_.size_bytes()), "cudaMemset");
    check_cuda(cudaMemset(entries_.data(), 0, entries_.size_bytes()), "cudaMemset");  // read ahead
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  [[nodiscard]] LinearSampleScratch scratch() {
    return {.bounds = bounds_.data(),
            .counts = counts_.data(),
            .entries = entries_.data(),
            .ticket = counts_.data() + kMaxLinearSampleRows};
  }

 private:
  void fill_linear_sample_bounds() {
    const std::vector<std::uint32_t> none(kMaxLinearSampleRows, kPlusInfKey);
    check_cuda(
        cudaMemcpy(bounds_.data(), none.data(), bounds_.size_bytes(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }

  DeviceBuffer<float4> entries_;
  DeviceBuffer<std::uint32_t> bounds_;
  DeviceBuffer<unsigned> counts_;  // and the ticket
};

/// What `linear_sample` works on. With `logits` it stores them and draws nothing; else it draws.
struct LinearSampleLayer {
  MatrixView<const bf16> x;              ///< [m, k]
  MatrixView<const bf16> weight;         ///< [vocab, k]
  MatrixView<float> logits{};            ///< [m, vocab], or nothing
  VectorView<const SamplingRow> rows{};  ///< [m], all plain
  VectorView<TokenId> tokens{};          ///< [m]
};

namespace detail {

template <class Traits>
void launch_linear_sample(const LinearSampleLayer& layer, LinearSampleParams p, TensorMaps& maps,
                          const Context& context) {
  const std::int64_t m = layer.x.extent(0), k = layer.x.extent(1);
  const CUtensorMap w_map =
      maps.get<bf16, 2>(layer.weight.data, {k, p.vocab}, {k}, {kTmaColumns, Traits::kTokens});
  const CUtensorMap x_map = maps.get<bf16, 2>(
      layer.x.data, {k, m}, {m == 1 ? k : layer.x.strides[0]}, {kTmaColumns, Traits::kColumns});
  p.tiles = static_cast<std::int32_t>(ceil_div(p.vocab, Traits::kTokens));
  const int blocks = std::min(context.num_sms, p.tiles);
  launch(linear_sample_kernel<Traits>,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(Traits::kThreads),
          .shared_bytes = linear_sample_shared_bytes<Traits>()},
         context, w_map, x_map, p);
}

/// The same in the form `form`, looked for from kForm on.
template <int kForm = 0>
void launch_linear_sample_form(const LinearSampleLayer& layer, const LinearSampleParams& p,
                               int form, TensorMaps& maps, const Context& context) {
  if constexpr (kForm < kNumLinearSampleForms) {
    if (form != kForm) return launch_linear_sample_form<kForm + 1>(layer, p, form, maps, context);
    constexpr LinearSampleBlock b = kLinearSampleBlocks[kForm];
    if (layer.logits.data != nullptr) {
      launch_linear_sample<LinearSampleTraits<b.columns, b.stages, true>>(layer, p, maps, context);
    } else {
      launch_linear_sample<LinearSampleTraits<b.columns, b.stages, false>>(layer, p, maps, context);
    }
  }
}

}  // namespace detail

/// Enqueues the layer. False, with nothing enqueued, when the kernels do not take these operands.
/// `maps` keeps the descriptions of x and W for later calls.
[[nodiscard]] inline bool linear_sample(const LinearSampleLayer& layer,
                                        LinearSampleWorkspace& workspace, TensorMaps& maps,
                                        const Context& context) {
  const std::int64_t m = layer.x.extent(0), vocab = layer.weight.extent(0),
                     k = layer.weight.extent(1);
  if (!context.is_hopper() || !fits_linear_sample(m, vocab, k) ||
      !is_vector_aligned(layer.weight.data) ||
      !(m == 1 ? is_vector_aligned(layer.x.data) : has_aligned_rows(layer.x)))
    return false;
  const LinearSampleParams p{
      .logits = layer.logits.data,
      .logits_stride = layer.logits.data != nullptr ? layer.logits.strides[0] : 0,
      .settings = layer.rows.data,
      .tokens = layer.tokens.data,
      .scratch = workspace.scratch(),
      .rows = static_cast<std::int32_t>(m),
      .vocab = static_cast<std::int32_t>(vocab),
      .panels = static_cast<std::int32_t>(ceil_div(k, std::int64_t{kTmaColumns})),
      .tiles = 0};
  detail::launch_linear_sample_form(layer, p, linear_sample_form(m), maps, context);
  return true;
}

}  // namespace nanovllm::cuda
