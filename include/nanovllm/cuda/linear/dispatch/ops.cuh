#pragma once
/// The ops that are dense layers: `linear`, `gated_linear` and `project_qkv`.

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {

/// Contract: ops/linear.hpp. `Out` is T or float; rows of x and y may have any stride and
/// alignment, but x and y must not overlap. Fast with 16-byte aligned rows.
///
/// Allocates no device memory and does not synchronise; legal during capture, if the same shape has
/// run before (cuBLASLt loads its kernels at first use).
template <Element T, Element Out, class Engine>
void linear(const LinearArgs<T, DeviceMatrix<T>, Out>& args, Engine& engine,
            const Context& context) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.y.empty()) return;
  if (args.weight->cols() == 0) {  // an empty sum
    if (args.accumulate) return;
    check_cuda(
        cudaMemset2DAsync(args.y.data, static_cast<std::size_t>(args.y.strides[0]) * sizeof(Out), 0,
                          static_cast<std::size_t>(args.y.extent(1)) * sizeof(Out),
                          static_cast<std::size_t>(args.y.extent(0)), context.stream),
        "cudaMemset2DAsync");
    return;
  }
  engine.run(args, context);
}

template <Element T, Element Out, class State>
void run_op(const LinearArgs<T, DeviceMatrix<T>, Out>& args, State& state) {
  linear(args, state.dense, state.context);
}

/// Contract: ops/gated_linear.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const GatedLinearArgs<T, DeviceMatrix<T>, T>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    if (state.dense.run_fused(layer_of(args), state.context)) return;
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

/// Contract: ops/project_qkv.hpp. Allocates no device memory and does not synchronise.
template <Element T, KvFormat Kv, class State>
requires(std::same_as<T, Kv> ||
         ScaledKvFormat<Kv>) void run_op(const ProjectQkvArgs<T, DeviceMatrix<T>, Kv, T>& args,
                                         State& state) {
  check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
  validate(args);
  if (args.qkv.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    const DenseKernel done = state.dense.run(args, state.context);
    if (done != DenseKernel::parts) {
      state.plan_start.waited();  // all of them let the next kernel start after their wait
      if (done != DenseKernel::native_heads) run_op(head_args(args), state);
      return;
    }
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

}  // namespace nanovllm::cuda
