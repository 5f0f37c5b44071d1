#pragma once
/// Dense layers of bf16 by weights in 8-bit floats (`Fp8Weights`), on the GPU.
///
/// Up to 16 rows of x are multiplied as they are (few_rows.cuh). More rows are rounded to 8 bits
/// ahead of the product, 128 columns at a time (quantise.cuh, products.cuh, swiglu.cuh). Devices
/// whose cuBLASLt has no such products multiply 16 rows at a time, which is slow and rounds
/// nothing.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/projections.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/ops/silu_mul.hpp"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/heads.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"
#include "nanovllm/with/eight_bits/cuda/swiglu.cuh"
#include "nanovllm/with/eight_bits/fp8_weight.hpp"

namespace nanovllm::cuda {

/// Enqueues the layer, which is not gated, whatever its number of rows.
inline void fp8_linear(const Fp8Layer& layer, Fp8Products& products, const Context& context) {
  const std::int64_t rows = layer.x.extent(0);
  if (rows > kMaxFp8FewRows && products.run(layer, context)) return;
  for (std::int64_t first = 0; first < rows; first += kMaxFp8FewRows) {
    fp8_few_rows(layer.rows(first, std::min(first + kMaxFp8FewRows, rows)), context);
  }
}

/// Contract: ops/linear.hpp. Allocates no device memory after the first call and does not
/// synchronise; legal during capture, if the same shape has run before.
template <class State>
void run_op(const LinearArgs<bf16, Fp8Matrix, bf16>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.y.empty()) return;
  check<ShapeError>(args.weight->cols() > 0, "linear: a weight of 8-bit floats has no columns");
  fp8_linear(
      {.x = args.x, .weight = args.weight->view(), .y = args.y, .accumulate = args.accumulate},
      state.parts.template of<Fp8Products>(), state.context);
}

/// Enqueues a gated layer by its parts; `gate_up` is for the gates and ups.
template <class State>
void fp8_gated_parts(const Fp8Layer& layer, MatrixView<bf16> gate_up, State& state) {
  Fp8Layer product = layer;
  product.y = gate_up, product.gated = false;
  fp8_linear(product, state.parts.template of<Fp8Products>(), state.context);
  run_op(SiluMulArgs<bf16>{.gate_up = gate_up, .out = layer.y}, state);
}

/// Contract: ops/gated_linear.hpp.
template <class State>
void run_op(const GatedLinearArgs<bf16, Fp8Matrix, bf16>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  const Fp8Layer layer{
      .x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.out, .gated = true};
  if (args.x.extent(0) <= kMaxFp8FewRows) return fp8_few_rows(layer, state.context);
  if (state.parts.template of<Fp8Swiglu<typename State::Architectures>>().run(
          layer, state.parts.template of<Fp8Products>(), state.context))
    return;
  fp8_gated_parts(layer, args.gate_up, state);
}

/// Contract: ops/project_qkv.hpp.
template <KvFormat Kv, class State>
void run_op(const ProjectQkvArgs<bf16, Fp8Matrix, Kv, bf16>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
  validate(args);
  if (args.qkv.empty()) return;
  const bool done = suits_fp8_heads(args.x.extent(0), args.weight->rows(), args.weight->cols()) &&
                    fp8_project_heads<typename State::Architectures>(args, state.context);
  if (!done) {
    fp8_linear({.x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv},
               state.parts.template of<Fp8Products>(), state.context);
  }
  state.plan_start.waited();  // its kernels let the next one start after their wait
  if (!done) run_op(head_args(args), state);
}

/// Chooses how the network's layers and its logits run, by timing. Blocks the host.
template <class A, class W, class Heads, class State>
void tune_network(const Projections<A, Fp8Matrix, W, Heads, DeviceMatrix<W>>& network,
                  State& state) {
  Fp8Products& products = state.parts.template of<Fp8Products>();
  for (const auto& one : network.list) {
    products.tune(one.matrices, one.accumulates, one.max_rows, state.context);
    if (one.role != ProjectionRole::gate_up) continue;
    state.parts.template of<Fp8Swiglu<typename State::Architectures>>().tune(
        one.matrices, one.norm, one.max_rows, products, state.context,
        [&](const Fp8Layer& layer, MatrixView<bf16> gate_up) {
          fp8_gated_parts(layer, gate_up, state);
          return true;
        });
  }
  const auto& logits = network.logits;
  if (logits.matrices.empty()) return;
  DenseTuner(state.dense, state.context)
      .template tune_linear<W, float>(logits.matrices, logits.accumulates,
                                      rows_up_to(logits.max_rows));
}

}  // namespace nanovllm::cuda
