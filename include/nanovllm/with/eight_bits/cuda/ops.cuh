#pragma once
/// Dense layers of bf16 by weights in 8-bit floats (`Fp8Weights`), on the GPU.
///
/// Up to 16 rows of x are multiplied as they are (few_rows.cuh). More rows are rounded to 8 bits
/// ahead of the product, 128 columns at a time (quantise.cuh, products.cuh, swiglu.cuh). Devices
/// whose cuBLASLt has no such products multiply 16 rows at a time, which is slow and rounds
/// nothing.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/layer_tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows_kernel.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"
#include "nanovllm/with/eight_bits/cuda/swiglu.cuh"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::cuda {

namespace detail {

/// The products of `fp8_few_rows` for an architecture's kernel of the heads.
template <int kWarps>
struct Fp8HeadProducts {
  using Block = Fp8FewRowsBlock<kWarps, 1, 1, true, WeightRows::heads>;
  using Operands = Fp8FewRowsOperands;
  static constexpr int kThreads = Block::kThreads, kColumns = Block::kColumns;
  static constexpr int kBlocksPerSm = Block::kBlocksPerSm;

  template <class LoadAhead>
  static __device__ __forceinline__ Fp8FewRowsSums<Block> run(const Operands& p, int first,
                                                              uint4* shared,
                                                              const LoadAhead& load_ahead) {
    return fp8_few_rows_products<Block>(p, first, shared, load_ahead);
  }
  [[nodiscard]] static std::size_t shared_bytes(const Operands&) {
    return static_cast<std::size_t>(Block::kSharedBytes);
  }
  [[nodiscard]] static int shared_percent(const Operands&) { return -1; }
};

}  // namespace detail

/// Whether m rows by W [n, k] take less time in one kernel than by their parts. By small weights
/// the exchange between its blocks costs more than a kernel for the heads, which begins early
/// (`cuda_fp8_linear_bench`, one H200).
[[nodiscard]] constexpr bool suits_fp8_heads(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= 4 && n * k > 10'000'000;
}

/// `project_qkv` of up to 8 rows in one kernel, where the device's architecture has one: the bits
/// of `fp8_few_rows` and `qk_norm_rope_store` in sequence. Enqueues all of the op; the next kernel
/// may start once those ahead of this one are done. False, with nothing enqueued, where
/// `Architectures` has no such kernel for the device, or for more than 8 rows, no norm of x, or a
/// head_dim that it does not take.
template <class Architectures, KvFormat Kv>
[[nodiscard]] bool fp8_project_heads(const ProjectQkvArgs<bf16, Fp8Matrix, Kv, bf16>& args,
                                     const Context& context) {
  if (!args.norm) return false;
  const Fp8Layer layer{
      .x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv};
  auto p = detail::fp8_few_rows_operands(layer);
  p.pair_rows = static_cast<std::int32_t>(args.kv.head_dim / 2);
  return Architectures::choose(context, [&](auto native) {
    using Products8 = detail::Fp8HeadProducts<8>;
    using Products4 = detail::Fp8HeadProducts<4>;
    return detail::fp8_few_rows_has_8_warps<typename Products8::Block>(p.n, context)
               ? native.template project_heads<Products8>(p, args, context)
               : native.template project_heads<Products4>(p, args, context);
  });
}

/// Enqueues the layer, which is not gated, whatever its number of rows.
template <Element Out>
void fp8_linear(const Fp8LayerOf<Out>& layer, Fp8Products& products, const Context& context) {
  const std::int64_t rows = layer.x.extent(0);
  if (rows > kMaxFp8FewRows && products.run(layer, context)) return;
  for (std::int64_t first = 0; first < rows; first += kMaxFp8FewRows) {
    fp8_few_rows(layer.rows(first, std::min(first + kMaxFp8FewRows, rows)), context);
  }
}

/// Contract: ops/linear.hpp. Allocates no device memory after the first call and does not
/// synchronise; legal during capture, if the same shape has run before.
template <Element Out, class State>
void run_op(const LinearArgs<bf16, Fp8Matrix, Out>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.y.empty()) return;
  check<ShapeError>(args.weight->cols() > 0, "linear: a weight of 8-bit floats has no columns");
  fp8_linear(
      Fp8LayerOf<Out>{
          .x = args.x, .weight = args.weight->view(), .y = args.y, .accumulate = args.accumulate},
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
    fp8_linear(
        Fp8Layer{.x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv},
        state.parts.template of<Fp8Products>(), state.context);
  }
  state.plan_start.waited();  // its kernels let the next one start after their wait
  if (!done) run_op(head_args(args), state);
}

/// Chooses how logits by 8-bit weights run, by timing. Blocks the host.
template <class W, class State>
void tune_logits(const Projection<Fp8Matrix, W>& logits, State& state) {
  if (logits.matrices.empty()) return;
  state.parts.template of<Fp8Products>().template tune<float>(logits.matrices, logits.accumulates,
                                                              logits.max_rows, state.context);
}

/// Chooses how the network's layers and its logits run, by timing. Blocks the host.
template <class A, class W, class Heads, class Head, class State>
void tune_network(const Projections<A, Fp8Matrix, W, Heads, Head>& network, State& state) {
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
  tune_logits(network.logits, state);
}

}  // namespace nanovllm::cuda
