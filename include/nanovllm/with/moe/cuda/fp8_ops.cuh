#pragma once
/// A mixture of experts on CUDA with weights in 8-bit floats (`Fp8Weights`).
///
/// Activations are multiplied as they are, in bfloat16, and the sums of 128 columns by their scale
/// (grouped.cuh). Only where experts have many rows and a kernel of the device's architecture
/// multiplies are activations rounded, too (hopper/rounded.cuh).

#include <algorithm>
#include <cstdint>
#include <span>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/moe/cuda/ops.cuh"
#include "nanovllm/with/moe/ops.hpp"

namespace nanovllm::cuda {
[[nodiscard]] inline StackedWeights<fp8_e4m3> stacked_weights(
    std::span<const Expert<Fp8Matrix>> experts, Fp8Matrix Expert<Fp8Matrix>::*matrix) {
  const Fp8View first = (experts[0].*matrix).view();
  return {.data = first.data,
          .rows = first.rows,
          .cols = first.cols,
          .row_stride = first.stride,
          .expert_stride = detail::expert_stride(
              experts, [&](const auto& expert) { return (expert.*matrix).view().data; }),
          .scales = first.scales,
          .scale_stride = first.scale_stride,
          .expert_scales = detail::expert_stride(
              experts, [&](const auto& expert) { return (expert.*matrix).view().scales; }),
          .has_blocks = std::ranges::all_of(experts, [&](const auto& expert) {
            return (expert.*matrix).view().blocks != nullptr;
          })};
}

/// Contract: with/moe/ops.hpp. `in` and `width` are multiples of 8. A row's result depends
/// on that row and on which kernel multiplies, which follows from the number of rows.
template <class State>
void run_op(const ExpertMlpArgs<bf16, Fp8Matrix>& args, State& state) {
  expert_mlp<typename State::Architectures>(args, state);
}

}  // namespace nanovllm::cuda
