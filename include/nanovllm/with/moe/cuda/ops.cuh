#pragma once
/// A mixture of experts on CUDA: the router (plan.cuh), and the MLPs that it chooses, with weights
/// of an element type. fp8_ops.cuh has those of 8-bit floats.
///
/// `expert_mlp` runs four kernels: which tokens each expert gets (plan.cuh), the products by gates
/// and ups with SwiGLU after (grouped.cuh), those by the down projections, and the sum over each
/// token's experts. Up to four tokens take two kernels, and one token by 8-bit floats two others
/// (few.cuh). The host does not learn how tokens were routed, so that a step can be captured as a
/// graph: grids have room for the most tiles that there may be, and blocks without one end at once.
/// Experts with many rows, of bfloat16 or by 8-bit floats, are multiplied by kernels of the
/// device's architecture. float32, and rows that are not 16-byte aligned, have slow products: a
/// warp an output, which reads a row of W. A lane takes every 32nd column, then lanes are added up,
/// all in float32.
///
/// Gates and ups are not rounded; h and y are rounded to T. A row's result depends on that row and
/// on which kernel multiplies, which follows from the number of rows: in batch-invariant mode it is
/// always the same one.
/// Measured: not by itself; 307 us for a layer's experts of 256 tokens with the sum (experts_bench,
/// cuda_moe_h200.json). The slow products were not timed.

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/architecture.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "nanovllm/with/moe/cuda/combine.cuh"
#include "nanovllm/with/moe/cuda/few.cuh"
#include "nanovllm/with/moe/cuda/grouped.cuh"
#include "nanovllm/with/moe/cuda/hopper/experts.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"
#include "nanovllm/with/moe/cuda/workspace.cuh"
#include "nanovllm/with/moe/ops.hpp"

namespace nanovllm::cuda {

namespace detail {

inline constexpr int kAnyProductWarps = 8;

/// Grid: columns of y by eight, pairs.
template <class T, bool kGated>
__global__ void __launch_bounds__(32 * kAnyProductWarps)
    any_expert_product_kernel(MatrixView<const T> x, MatrixView<const std::int32_t> ids,
                              LocalExperts local, const T* weight, std::int64_t expert_stride,
                              int divisor, MatrixView<T> y) {
  grid_dependency_launch();
  grid_dependency_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = blockIdx.x * kAnyProductWarps + threadIdx.x / 32;
  const std::int64_t n = y.extent(1), k = x.extent(1), slots = ids.extent(1);
  if (column >= n) return;
  for (std::int64_t pair = blockIdx.y; pair < y.extent(0); pair += gridDim.y) {
    const std::int32_t id =
        *static_cast<const volatile std::int32_t*>(ids.at(pair / slots, pair % slots));
    if (!local.contains(id)) continue;
    const std::int64_t expert = local.index_of(id);
    const volatile auto* const row = x.at(pair / divisor);
    const T* const gate = weight + expert * expert_stride + column * k;
    float sum = 0.f, up = 0.f;
    for (std::int64_t j = lane; j < k; j += 32) {
      const float v = to_float<T>(const_cast<const T&>(row[j]));
      sum = __fmaf_rn(v, to_float<T>(gate[j]), sum);
      if constexpr (kGated) up = __fmaf_rn(v, to_float<T>(gate[n * k + j]), up);
    }
    sum = warp_sum(sum);
    if constexpr (kGated) sum = silu<T>(sum) * warp_sum(up);
    if (lane == 0) *y.at(pair, column) = from_float<T>(sum);
  }
}

}  // namespace detail

/// Enqueues y[p] = the product of row p / divisor of x by W of expert ids[p], for pairs p whose
/// expert is here. Other rows of y stay as they are.
template <bool kGated, Element T>
void any_expert_product(const MatrixView<const T>& x, const MatrixView<const std::int32_t>& ids,
                        const LocalExperts& local, const T* weight, std::int64_t expert_stride,
                        int divisor, const MatrixView<T>& y, const Context& context) {
  constexpr std::int64_t kMostRows = 65535;  // of a grid
  launch(detail::any_expert_product_kernel<T, kGated>,
         {.grid = dim3(
              static_cast<unsigned>(ceil_div(y.extent(1), std::int64_t{detail::kAnyProductWarps})),
              static_cast<unsigned>(std::min(y.extent(0), kMostRows))),
          .block = 32 * detail::kAnyProductWarps},
         context, x, ids, local, weight, expert_stride, divisor, y);
}

/// Matrices of one kind of all experts, as the grouped products take them: that of expert e is
/// `expert_stride` elements after that of e - 1.
template <class W>
struct StackedWeights {
  const W* data;
  std::int64_t rows, cols;
  std::int64_t row_stride, expert_stride;
  const float* scales = nullptr;
  std::int64_t scale_stride = 0, expert_scales = 0;
  bool has_blocks = false;  ///< see GroupedOperands
};

namespace detail {

/// The distance from a pointer of one expert to that of the next. Throws ShapeError where it is not
/// the same for all.
template <class Matrix, class Pointer>
[[nodiscard]] std::int64_t expert_stride(std::span<const Expert<Matrix>> experts,
                                         const Pointer& pointer_of) {
  const auto* const first = pointer_of(experts[0]);
  const std::int64_t stride = experts.size() > 1 ? pointer_of(experts[1]) - first : 0;
  for (std::size_t e = 1; e < experts.size(); ++e) {
    check<ShapeError>(
        stride > 0 && pointer_of(experts[e]) == first + static_cast<std::int64_t>(e) * stride,
        "expert_mlp: experts must be made together, by make_experts");
  }
  return stride;
}

}  // namespace detail

template <class T>
[[nodiscard]] StackedWeights<T> stacked_weights(std::span<const Expert<DeviceMatrix<T>>> experts,
                                                DeviceMatrix<T> Expert<DeviceMatrix<T>>::*matrix) {
  const DeviceMatrix<T>& first = experts[0].*matrix;
  return {.data = first.data(),
          .rows = first.rows(),
          .cols = first.cols(),
          .row_stride = first.cols(),
          .expert_stride = detail::expert_stride(
              experts, [&](const auto& expert) { return (expert.*matrix).data(); })};
}

namespace detail {

/// One of the two products of a step: x [·, in] by the stacked weights to y [pairs, n].
template <class T, class W>
[[nodiscard]] GroupedOperands<T, W> grouped_operands(const MatrixView<const T>& x,
                                                     const StackedWeights<W>& weights,
                                                     const MatrixView<T>& y, std::int64_t divisor,
                                                     const MatrixView<const std::int32_t>& ids,
                                                     const LocalExperts& local,
                                                     const ExpertPlan& plan, bool plan_is_ready) {
  return {.x = x.data,
          .weight = weights.data,
          .y = y.data,
          .x_stride = x.strides[0],
          .y_stride = y.strides[0],
          .weight_stride = weights.row_stride,
          .expert_stride = weights.expert_stride,
          .divisor = static_cast<std::int32_t>(divisor),
          .n = static_cast<std::int32_t>(y.extent(1)),
          .k = static_cast<std::int32_t>(x.extent(1)),
          .row_blocks = 0,
          .ids = ids,
          .local = local,
          .plan = plan,
          .plan_is_ready = plan_is_ready,
          .scales = weights.scales,
          .scale_stride = weights.scale_stride,
          .expert_scales = weights.expert_scales,
          .has_blocks = weights.has_blocks};
}

/// Both products of a step: x by gates and ups to `hidden` [pairs, width], and that by the down
/// projections. Experts are chosen by `ids`, [tokens, slots].
template <class T, class W>
struct ExpertProducts {
  StackedWeights<W> gate_up, down;
  MatrixView<const T> x;
  MatrixView<const std::int32_t> ids;
  LocalExperts local;
  MatrixView<T> hidden;

  [[nodiscard]] GroupedOperands<T, W> by_gate_up(const ExpertPlan& plan = {}) const {
    return grouped_operands(x, gate_up, hidden, ids.extent(1), ids, local, plan, false);
  }
  [[nodiscard]] GroupedOperands<T, W> by_down(const MatrixView<T>& y,
                                              const ExpertPlan& plan = {}) const {
    return grouped_operands(MatrixView<const T>(hidden), down, y, 1, ids, local, plan, true);
  }
};

/// Enqueues the experts of a few tokens, with their sums.
template <class T, class W>
void run_few_experts(const ExpertProducts<T, W>& products, const MatrixView<const float>& weights,
                     const MatrixView<T>& out, bool accumulate, const Context& context) {
  const auto by_gate_up = products.by_gate_up(), by_down = products.by_down(out);
  if constexpr (std::same_as<W, fp8_e4m3>) {
    if (out.extent(0) == 1) {
      one_token_gated(by_gate_up, context);
      return one_token_down(by_down, weights, accumulate, context);
    }
  }
  few_experts_gated(by_gate_up, context);
  few_experts_down(by_down, weights, accumulate, context);
}

/// Enqueues the products of tiles of `tokens` pairs by the kernels of the device's architecture,
/// one of `Architectures`, which has some for them. Rows of activations by 8-bit floats are rounded
/// first, as dense layers round them, and so are those in between.
template <class Architectures, class W>
void run_native_experts(const ExpertProducts<bf16, W>& products, const MatrixView<bf16>& results,
                        int tokens, std::int64_t max_tiles, ExpertWorkspace& workspace,
                        const Context& context) {
  const auto multiply = [&](auto gated, const auto& p) {
    const auto run = [&](auto native) {
      return ExpertProductOf<decltype(native)>::template run<gated>(
          p, tokens, products.local.count, max_tiles, workspace.maps(), context);
    };
    check(Architectures::choose(context, run),
          "expert_mlp: the device's architecture has no kernel for tiles of ", tokens,
          " rows, which it asked for");
  };
  const ExpertPlan plan = workspace.plan();
  const auto by_gate_up = products.by_gate_up(plan);
  const auto by_down = products.by_down(results, plan);
  if constexpr (std::same_as<W, fp8_e4m3>) {
    const auto x = workspace.rounded_x(products.x.extent(0), products.x.extent(1));
    const auto hidden = workspace.rounded_hidden(results.extent(0), products.hidden.extent(1));
    quantise_rows(products.x, {}, x, context);
    plan_experts(products.ids, products.local, tokens, plan, context);
    multiply(std::true_type{}, RoundedExpertOperands{by_gate_up, x, hidden});
    multiply(std::false_type{}, RoundedExpertOperands{by_down, hidden});
  } else {
    plan_experts(products.ids, products.local, tokens, plan, context);
    multiply(std::true_type{}, by_gate_up);
    multiply(std::false_type{}, by_down);
  }
}

/// Enqueues the products of tiles of pairs, by a plan. Pairs are spread over `all` experts.
template <class Architectures, class T, class W>
void run_planned_experts(const ExpertProducts<T, W>& products, const MatrixView<T>& results,
                         std::int64_t all, ExpertWorkspace& workspace, const Context& context) {
  const std::int64_t pairs = results.extent(0), experts = products.local.count;
  if constexpr (std::same_as<T, bf16>) {
    const int tokens = Architectures::choose(context, [&](auto native) {
      return ExpertProductOf<decltype(native)>::template tile_rows<W>(products.x.extent(0), pairs,
                                                                      all);
    });
    if (tokens > 0) {
      return run_native_experts<Architectures>(
          products, results, tokens, max_expert_tiles(pairs, experts, tokens), workspace, context);
    }
  }
  const int tokens = grouped_tokens(pairs, all);
  const std::int64_t max_tiles = max_expert_tiles(pairs, experts, tokens);
  const ExpertPlan plan = workspace.plan();
  plan_experts(products.ids, products.local, tokens, plan, context);
  grouped_product<true>(products.by_gate_up(plan), tokens, max_tiles, context);
  grouped_product<false>(products.by_down(results, plan), tokens, max_tiles, context);
}

/// Enqueues the slow products, which take any rows.
template <class T, class W>
void run_any_experts(const ExpertProducts<T, W>& products, const MatrixView<T>& results,
                     const Context& context) {
  if constexpr (std::same_as<W, T>) {
    const auto& [gate_up, down, x, ids, local, hidden] = products;
    any_expert_product<true>(x, ids, local, gate_up.data, gate_up.expert_stride,
                             static_cast<int>(ids.extent(1)), hidden, context);
    any_expert_product<false>(MatrixView<const T>(hidden), ids, local, down.data,
                              down.expert_stride, 1, results, context);
  } else {
    throw ShapeError(concat(
        "expert_mlp: experts of 8-bit floats need aligned rows of a multiple of 8 elements, got ",
        results.extent(1), " -> ", products.hidden.extent(1)));
  }
}

/// Enqueues the experts of up to as many tokens as the workspace has room for.
template <class Architectures, class T, class Matrix>
void expert_mlp_tokens(const ExpertMlpArgs<T, Matrix>& args, ExpertWorkspace& workspace,
                       const Context& context) {
  const std::int64_t n = args.x.extent(0), in = args.x.extent(1), k = args.ids.extent(1);
  const std::int64_t width = args.experts[0].down.cols(), pairs = n * k;
  const LocalExperts local{static_cast<std::int32_t>(args.first_expert),
                           static_cast<std::int32_t>(args.experts.size())};
  const auto gate_up = stacked_weights(args.experts, &Expert<Matrix>::gate_up);
  const auto down = stacked_weights(args.experts, &Expert<Matrix>::down);
  const MatrixView<T> hidden(workspace.hidden<T>(), {pairs, width});
  const MatrixView<T> results(workspace.results<T>(), {pairs, in});
  using W = std::remove_cvref_t<decltype(*gate_up.data)>;
  const ExpertProducts<T, W> products{gate_up, down, args.x, args.ids, local, hidden};
  const bool whole =
      sizeof(T) == 2 && has_whole_rows(args.x) && has_whole_rows(hidden) && has_whole_rows(results);
  if constexpr (sizeof(T) == 2) {
    if (whole && n <= kFewExpertTokens && k <= kFewExpertSlots && has_whole_rows(args.out))
      return run_few_experts(products, args.weights, args.out, args.accumulate, context);
    if (whole)
      run_planned_experts<Architectures>(products, results, args.all_experts(), workspace, context);
  }
  if (!whole) run_any_experts(products, results, context);
  combine_experts(MatrixView<const T>(results), args.weights, args.ids, local, args.has_part(),
                  args.out, args.accumulate, context);
}

}  // namespace detail

/// Contract: with/moe/ops.hpp. Allocates no device memory after the first call of such
/// sizes, or after `reserve_op`, and does not synchronise; legal during capture.
template <class Architectures, class T, class Matrix, class State>
void expert_mlp(const ExpertMlpArgs<T, Matrix>& args, State& state) {
  validate(args);
  const std::int64_t n = args.x.extent(0), k = args.ids.extent(1);
  if (args.out.empty()) return;
  ExpertWorkspace& workspace = state.parts.template of<ExpertWorkspace>();
  workspace.reserve({.max_rows = n,
                     .experts_per_token = k,
                     .in = args.x.extent(1),
                     .width = args.experts[0].down.cols()},
                    sizeof(T));
  const std::int64_t most = ExpertWorkspace::max_tokens(k);
  for (std::int64_t first = 0; first < n; first += most) {
    const std::int64_t end = std::min(first + most, n);
    ExpertMlpArgs<T, Matrix> some = args;
    some.x = args.x.slice(first, end);
    some.ids = args.ids.slice(first, end);
    some.weights = args.weights.slice(first, end);
    some.out = args.out.slice(first, end);
    detail::expert_mlp_tokens<Architectures>(some, workspace, state.context);
  }
}

template <Element T, class State>
void run_op(const ExpertMlpArgs<T, DeviceMatrix<T>>& args, State& state) {
  expert_mlp<typename State::Architectures>(args, state);
}
/// The same by one kernel for any number of rows: a row's result depends on that row alone, bit for
/// bit.
template <Element T, class State>
void run_op_in_order(const ExpertMlpArgs<T, DeviceMatrix<T>>& args, State& state) {
  expert_mlp<Architectures<OtherDevices>>(args, state);
}

/// Allocates the scratch memory of `expert_mlp`.
template <Element T, class State>
void reserve_op(const ReserveExpertMlpArgs<T>& args, State& state) {
  state.parts.template of<ExpertWorkspace>().reserve(args.sizes, sizeof(T));
}

}  // namespace nanovllm::cuda
