#pragma once
/// The ops that are a dense layer and its neighbours: `gated_linear` and `project_qkv`, by a kernel
/// that norms its input itself where that was found to be faster, else by the ops that they are
/// made of.
///
/// Which it is, is chosen for each shape of the weights and bucket of rows, by time at start-up
/// (`FusedEngine::tune_gated`, `tune_normed`); what was not timed runs by its parts.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/fused.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

/// A product with what stands around it: y = norm(x) · Wᵀ, or its SwiGLU. No norm where
/// `norm.weight.data` is null.
struct FusedLayer {
  MatrixView<const bf16> x;  ///< [m, k]
  InputNorm<bf16> norm;
  MatrixView<const bf16> weight;  ///< [n, k]; gates, then ups where `gated`
  MatrixView<bf16> y;             ///< [m, n], or [m, n / 2] where `gated`
  bool gated = false;
};

/// What runs a fused layer: its parts one by one, or a family of kernels.
enum class FusedKernel : std::uint8_t { parts, small_m, mid_m, wide_m };

/// One way to run a fused layer.
struct FusedPlan {
  FusedKernel kernel = FusedKernel::parts;
  int variant = 0;  ///< of the family: tiles of a block of small_m, a form of mid_m or wide_m
};

/// The choices of one device. Serves one host thread at a time.
class FusedEngine {
 public:
  using Matrices = std::span<const DeviceMatrix<bf16>* const>;

  /// Runs the layer in one kernel, where one was chosen. False, with nothing enqueued: run the
  /// parts.
  [[nodiscard]] bool run(const FusedLayer& layer, const Context& context) {
    return execute(layer, plan_for(layer), context);
  }

  /// Times the ways to run `gated_linear` by `weights`, all of one shape, for up to `max_rows` rows,
  /// with this norm ahead or without, and keeps the fastest for each bucket. `run` runs the op by
  /// its parts. Blocks the host; takes device memory and gives it back.
  template <class Run>
  void tune_gated(Matrices weights, const InputNorm<bf16>& norm, std::int64_t max_rows,
                  const Context& context, const Run& run) {
    tune(true, weights, norm, max_rows, context, run);
  }

  /// The same for the product of `project_qkv`.
  template <class Run>
  void tune_normed(Matrices weights, const InputNorm<bf16>& norm, std::int64_t max_rows,
                   const Context& context, const Run& run) {
    if (norm) tune(false, weights, norm, max_rows, context, run);
  }

  /// The way in force for the layer; by its parts where nothing was timed.
  [[nodiscard]] FusedPlan plan_for(const FusedLayer& layer) const {
    const FusedPlan* const plan = choices_.find(key_of(layer));
    return plan == nullptr ? FusedPlan{} : *plan;
  }

  /// As LinearEngine's.
  [[nodiscard]] std::vector<FusedPlan> close_plans(const FusedLayer& layer) const {
    return choices_.close_plans(key_of(layer));
  }
  void choose(const FusedLayer& layer, FusedPlan plan) { choices_.choose(key_of(layer), plan); }

 private:
  /// Gated, normed, rows and columns of W, bucket of rows of x.
  using Key = std::tuple<bool, bool, std::int64_t, std::int64_t, std::int64_t>;

  /// Most rows of x that a family takes.
  static constexpr std::int64_t kMostRows =
      std::max({kMaxSmallMFusedRows, kMaxMidMRows, kMaxWideMRows});

  [[nodiscard]] static Key key_of(const FusedLayer& layer) {
    return {layer.gated, bool{layer.norm}, layer.weight.extent(0), layer.weight.extent(1),
            row_bucket(layer.x.extent(0))};
  }

  /// The families' ways to run a layer of this shape; `execute` says whether one takes it.
  [[nodiscard]] static std::vector<FusedPlan> candidates(const FusedLayer& layer) {
    std::vector<FusedPlan> out;
    const std::int64_t m = layer.x.extent(0), n = layer.weight.extent(0),
                       k = layer.weight.extent(1);
    if (m <= kMaxSmallMFusedRows && suits_small_m(m, n, k)) {
      for (const int tiles : kSmallMTiles) {
        if (tiles > 1) out.push_back({FusedKernel::small_m, tiles});
      }
    }
    const ProductKind kind = layer.gated ? ProductKind::gated : ProductKind::normed;
    if (suits_mid_m(m, n, k)) {
      for (int form = 0; form < kMidMForms.size(kind); ++form)
        out.push_back({FusedKernel::mid_m, form});
    }
    for (int form = 0; form < kWideMForms.size(kind); ++form) {
      if (suits_wide_m_rows(m)) out.push_back({FusedKernel::wide_m, form});
    }
    return out;
  }

  /// Enqueues the layer as `plan` says. False, with nothing enqueued, when the plan does not fit.
  [[nodiscard]] bool execute(const FusedLayer& layer, FusedPlan plan, const Context& context) {
    const auto& [x, norm, weight, y, gated] = layer;
    switch (plan.kernel) {
      case FusedKernel::parts: break;
      case FusedKernel::small_m: {
        const SmallMNorm ahead{norm.weight, norm.eps};
        if (gated && small_m_gated_linear_takes(x, ahead, weight)) {
          small_m_gated_linear(x, ahead, weight, y, plan.variant, context, true);
          return true;
        }
        if (!gated && small_m_linear_takes(x, ahead, weight)) {
          small_m_linear(x, ahead, weight, y, false, plan.variant, context, true);
          return true;
        }
        break;
      }
      case FusedKernel::mid_m:
        return mid_m_linear(
            MidMLayer<bf16, bf16>{
                .x = x, .norm = {norm.weight, norm.eps}, .weight = weight, .y = y, .gated = gated},
            plan.variant, maps_, context);
      case FusedKernel::wide_m:
        return wide_m_linear(
            WideMLayer<bf16>{.x = x, .norm = norm, .weight = weight, .y = y, .gated = gated},
            plan.variant, maps_, context);
    }
    return false;
  }

  template <class Run>
  void tune(bool gated, Matrices weights, const InputNorm<bf16>& norm, std::int64_t max_rows,
            const Context& context, const Run& run) {
    nanovllm::check<ShapeError>(!weights.empty(), "FusedEngine::tune: no weights given");
    const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
    const std::int64_t most = std::min(max_rows, kMostRows);
    if (most < 1 || n == 0 || k == 0 || !context.can_overlap) return;
    DeviceBuffer<bf16> x(static_cast<std::size_t>(most * k)),
        normed(static_cast<std::size_t>(most * k)), y(static_cast<std::size_t>(most * n)),
        out(static_cast<std::size_t>(most * n));
    detail::fill_noise(x.data(), most * k, context);
    const int calls = static_cast<int>(std::clamp<std::size_t>(
        2 * context.l2_bytes / static_cast<std::size_t>(weights[0]->size_bytes()), 2, 32));
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t rows = std::min(bucket, most);
      const MatrixView<const bf16> input(x.data(), {rows, k});
      const MatrixView<bf16> wide(y.data(), {rows, n}), half(out.data(), {rows, n / 2});
      const auto weight = [&](int i) {
        return weights[static_cast<std::size_t>(i) % weights.size()];
      };
      const auto parts = [&](int i) {
        if (gated) {
          compose(GatedLinearArgs<bf16, DeviceMatrix<bf16>>{.x = input,
                                                            .norm = norm,
                                                            .weight = weight(i),
                                                            .out = half,
                                                            .normed = {normed.data(), {rows, k}},
                                                            .gate_up = wide},
                  run);
          return;
        }
        run(RmsNormArgs<bf16>{
            .x = input, .weight = norm.weight, .eps = norm.eps, .out = {normed.data(), {rows, k}}});
        run(LinearArgs<bf16, DeviceMatrix<bf16>>{
            .x = MatrixView<const bf16>(normed.data(), {rows, k}), .weight = weight(i), .y = wide});
      };
      const auto layer = [&](int i) {
        return FusedLayer{.x = input,
                          .norm = norm,
                          .weight = weight(i)->view(),
                          .y = gated ? half : wide,
                          .gated = gated};
      };
      parts(0);  // loads its kernels, ahead of the capture
      double best =
          detail::time_calls(context, calls, std::numeric_limits<double>::infinity(), parts);
      const Key key = key_of(layer(0));
      choices_.restart(key);
      choices_.add(key, {}, best);
      for (const FusedPlan& plan : candidates(layer(0))) {
        if (!execute(layer(0), plan, context)) continue;
        const double ms = detail::time_calls(context, calls, 2 * best, [&](int i) {
          static_cast<void>(execute(layer(i), plan, context));
        });
        choices_.add(key, plan, ms);
        best = std::min(best, ms);
      }
      if (rows == most) return;
    }
  }

  Choices<Key, FusedPlan> choices_;
  TensorMaps maps_;
};

/// Contract: ops/gated_linear.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const GatedLinearArgs<T, DeviceMatrix<T>, T>& args, State& state) {
  nanovllm::check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    const FusedLayer layer{.x = args.x,
                           .norm = args.norm,
                           .weight = args.weight->view(),
                           .y = args.out,
                           .gated = true};
    if (state.fused.run(layer, state.context)) return;
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

/// Contract: ops/project_qkv.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const ProjectQkvArgs<T, DeviceMatrix<T>, T, T>& args, State& state) {
  nanovllm::check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
  validate(args);
  if (args.qkv.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    const FusedLayer layer{
        .x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv};
    if (args.norm && state.fused.run(layer, state.context)) {
      // Its kernel let the next one start behind its wait, as a step's first norm must.
      state.plan_is_visible = true;
      run_op(head_args(args), state);
      return;
    }
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

}  // namespace nanovllm::cuda
