#pragma once
/// The ops that are a dense layer and its neighbours: `gated_linear` and `project_qkv`, by a kernel
/// that norms its input itself where that was found to be faster, else by the ops that they are
/// made of. What follows the product of `project_qkv` is in that kernel too, or one of its own.
///
/// Which it is, is chosen for each shape of the weights and bucket of rows, by time at start-up
/// (`FusedEngine::tune_gated`, `tune_qkv`); what was not timed runs by its parts.

#include <algorithm>
#include <cstddef>
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
#include "nanovllm/cuda/linear/small_m/heads.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/linear/tuning_scratch.cuh"
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

/// What runs a fused layer: its parts one by one, a family of kernels, or one that does all of
/// `project_qkv`.
enum class FusedKernel : std::uint8_t { parts, small_m, mid_m, wide_m, small_m_heads };

/// One way to run a fused layer.
struct FusedPlan {
  FusedKernel kernel = FusedKernel::parts;
  int variant = 0;  ///< of the family: tiles of a block of small_m, a form of mid_m or wide_m
};

/// The choices of one device. Serves one host thread at a time.
class FusedEngine {
 public:
  using Matrices = std::span<const DeviceMatrix<bf16>* const>;
  using GatedArgs = GatedLinearArgs<bf16, DeviceMatrix<bf16>>;
  using QkvArgs = ProjectQkvArgs<bf16, DeviceMatrix<bf16>>;

  /// What `choose` and the like know an op by.
  [[nodiscard]] static FusedLayer layer_of(const GatedArgs& args) {
    return {.x = args.x,
            .norm = args.norm,
            .weight = args.weight->view(),
            .y = args.out,
            .gated = true};
  }
  [[nodiscard]] static FusedLayer layer_of(const QkvArgs& args) {
    return {.x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv};
  }

  /// Runs the layer in one kernel, where one was chosen. False, with nothing enqueued: run the
  /// parts.
  [[nodiscard]] bool run(const FusedLayer& layer, const Context& context) {
    return execute(layer, plan_for(layer), context);
  }

  /// Runs `project_qkv`, or its product with the norm norm, in one kernel, where one was chosen,
  /// and says which: `small_m_heads` did all, `parts` enqueued nothing.
  [[nodiscard]] FusedKernel run(const QkvArgs& args, const Context& context) {
    if (!args.norm) return FusedKernel::parts;
    const FusedPlan plan = plan_for(layer_of(args));
    return execute(args, plan, context) ? plan.kernel : FusedKernel::parts;
  }

  /// Times the ways to run `gated_linear` by `weights`, all of one shape, for up to `max_rows`
  /// rows, with this norm ahead or without, and keeps the fastest for each bucket. `run` runs the
  /// op by its parts. Blocks the host; takes device memory and gives it back.
  template <class Run>
  void tune_gated(Matrices weights, const InputNorm<bf16>& norm, std::int64_t max_rows,
                  const Context& context, const Run& run) {
    const std::int64_t most = rows_to_tune(weights, max_rows, context);
    if (most < 1) return;
    detail::ProductScratch scratch(*weights[0], most, context);
    each_bucket(weights, most, context, [&](std::int64_t rows, int calls, const auto& weight) {
      const auto args = [&](int i) {
        return GatedArgs{.x = scratch.x_rows(rows),
                         .norm = norm,
                         .weight = weight(i),
                         .out = scratch.out_rows(rows),
                         .normed = scratch.normed_rows(rows),
                         .gate_up = scratch.y_rows(rows)};
      };
      const FusedLayer layer = layer_of(args(0));
      time_plans(
          layer, candidates(layer), calls, context, [&](int i) { compose(args(i), run); },
          [&](int i, FusedPlan plan) { return execute(layer_of(args(i)), plan, context); });
    });
  }

  /// The same for the product of `project_qkv`, and for all of it with such heads, less the time
  /// that an op for them takes behind the fastest product. Where the norm is none, the parts are
  /// all there is.
  template <class Run>
  void tune_qkv(Matrices weights, const InputNorm<bf16>& norm, const KvHeads& kv_heads,
                std::int64_t max_rows, const Context& context, const Run& run) {
    const std::int64_t most = rows_to_tune(weights, max_rows, context);
    if (most < 1 || !norm) return;
    detail::ProductScratch scratch(*weights[0], most, context);
    constexpr std::int64_t kKeys = 64;  // nothing reads them
    const std::int64_t most_of_heads = std::min(most, kMaxSmallMHeadRows);
    detail::HeadScratch heads(kv_heads, most_of_heads, kKeys, 0, context);
    each_bucket(weights, most, context, [&](std::int64_t rows, int calls, const auto& weight) {
      const auto args = [&](int i) {
        return QkvArgs{.x = scratch.x_rows(rows),
                       .norm = norm,
                       .weight = weight(i),
                       .heads = heads.of(std::min(rows, most_of_heads)),
                       .kv = heads.kv(std::min(rows, most_of_heads), 0),
                       .qkv = scratch.y_rows(rows),
                       .normed = scratch.normed_rows(rows)};
      };
      const auto parts = [&](int i) { compose_product(args(i), run); };
      const FusedLayer product = layer_of(args(0));
      time_plans(product, candidates(product), calls, context, parts,
                 [&](int i, FusedPlan plan) { return execute(layer_of(args(i)), plan, context); });
      if (suits_small_m_heads(rows, weights[0]->rows(), weights[0]->cols()))
        time_heads(args, calls, context, parts, [&](int i) { run(head_args(args(i))); });
    });
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
  static constexpr std::int64_t kMostRows = std::max({kMaxSmallMRows, kMaxMidMRows, kMaxWideMRows});

  [[nodiscard]] static Key key_of(const FusedLayer& layer) {
    return {layer.gated, bool{layer.norm}, layer.weight.extent(0), layer.weight.extent(1),
            row_bucket(layer.x.extent(0))};
  }

  /// The families' ways to run a layer of this shape; `execute` says whether one takes it.
  [[nodiscard]] static std::vector<FusedPlan> candidates(const FusedLayer& layer) {
    std::vector<FusedPlan> out;
    const std::int64_t m = layer.x.extent(0), n = layer.weight.extent(0),
                       k = layer.weight.extent(1);
    if (m <= kMaxSmallMRows && suits_small_m(m, n, k)) {
      for (const int tiles : kSmallMTiles) {
        if (tiles >= kMinSmallMFusedTiles) out.push_back({FusedKernel::small_m, tiles});
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
      case FusedKernel::parts:
      case FusedKernel::small_m_heads: break;
      case FusedKernel::small_m: {
        if (gated && small_m_gated_linear_takes(x, norm, weight)) {
          small_m_gated_linear(x, norm, weight, y, plan.variant, context, true);
          return true;
        }
        if (!gated && small_m_linear_takes(x, norm, weight)) {
          small_m_linear(x, norm, weight, y, false, plan.variant, context, true);
          return true;
        }
        break;
      }
      case FusedKernel::mid_m:
        return mid_m_linear(
            MidMLayer<bf16, bf16>{.x = x, .norm = norm, .weight = weight, .y = y, .gated = gated},
            plan.variant, maps_, context);
      case FusedKernel::wide_m:
        return wide_m_linear(
            WideMLayer<bf16>{.x = x, .norm = norm, .weight = weight, .y = y, .gated = gated},
            plan.variant, maps_, context);
    }
    return false;
  }

  /// The same for all of `project_qkv`, or for its product where the plan does no more.
  [[nodiscard]] bool execute(const QkvArgs& args, FusedPlan plan, const Context& context) {
    if (plan.kernel == FusedKernel::small_m_heads) return small_m_project_qkv(args, context);
    return execute(layer_of(args), plan, context);
  }

  /// 0 where there is nothing to choose.
  [[nodiscard]] static std::int64_t rows_to_tune(Matrices weights, std::int64_t max_rows,
                                                 const Context& context) {
    check<ShapeError>(!weights.empty(), "FusedEngine: no weights to tune for");
    const bool empty = weights[0]->rows() == 0 || weights[0]->cols() == 0;
    return empty || !context.can_overlap ? 0 : std::min(max_rows, kMostRows);
  }

  /// Calls visit(rows, calls, weight) for the buckets up to `most` rows, the fewest first:
  /// weight(i) are the weights in turn, and `calls` of them are more than L2 holds.
  template <class Visit>
  static void each_bucket(Matrices weights, std::int64_t most, const Context& context,
                          const Visit& visit) {
    const int calls = static_cast<int>(std::clamp<std::size_t>(
        2 * context.l2_bytes / static_cast<std::size_t>(weights[0]->size_bytes()), 2, 32));
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t rows = std::min(bucket, most);
      visit(rows, calls,
            [&](int i) { return weights[static_cast<std::size_t>(i) % weights.size()]; });
      if (rows == most) return;
    }
  }

  /// Times `parts(i)` and, of `plans`, each that `run(i, plan)` says it has enqueued; keeps the
  /// fastest for layers like this one.
  template <class Parts, class Run>
  void time_plans(const FusedLayer& layer, const std::vector<FusedPlan>& plans, int calls,
                  const Context& context, const Parts& parts, const Run& run) {
    const Key key = key_of(layer);
    choices_.restart(key);
    parts(0);  // loads its kernels, ahead of the capture
    double best =
        detail::time_calls(context, calls, std::numeric_limits<double>::infinity(), parts);
    choices_.add(key, {}, best);
    for (const FusedPlan& plan : plans) {
      if (!run(0, plan)) continue;
      const double ms = detail::time_calls(context, calls, 2 * best,
                                           [&](int i) { static_cast<void>(run(i, plan)); });
      choices_.add(key, plan, ms);
      best = std::min(best, ms);
    }
  }

  /// Adds the kernel that does all of `args(i)` to the ways to run its product, of which the
  /// fastest has been found: `parts(i)`, if no kernel. `run_heads(i)` does what follows.
  template <class Args, class Parts, class RunHeads>
  void time_heads(const Args& args, int calls, const Context& context, const Parts& parts,
                  const RunHeads& run_heads) {
    constexpr FusedPlan kPlan{FusedKernel::small_m_heads};
    const FusedLayer layer = layer_of(args(0));
    const FusedPlan fastest = plan_for(layer);
    const auto run_product = [&](int i) {
      if (!execute(layer_of(args(i)), fastest, context)) parts(i);
    };
    if (!execute(args(0), kPlan, context)) return;
    run_heads(0);  // loads its kernels
    const auto time = [&](const auto& run) {
      return detail::time_calls(context, calls, std::numeric_limits<double>::infinity(), run);
    };
    const double product = time(run_product);
    const double both = time([&](int i) {
      run_product(i);
      run_heads(i);
    });
    const double all = time([&](int i) { static_cast<void>(execute(args(i), kPlan, context)); });
    choices_.add(key_of(layer), kPlan, std::max(all - (both - product), 0.));
  }

  TunedPlans<Key, FusedPlan> choices_;
  TensorMaps maps_;
};

/// Contract: ops/gated_linear.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const GatedLinearArgs<T, DeviceMatrix<T>, T>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    if (state.fused.run(FusedEngine::layer_of(args), state.context)) return;
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

/// Contract: ops/project_qkv.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const ProjectQkvArgs<T, DeviceMatrix<T>, T, T>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "project_qkv: no weight given");
  validate(args);
  if (args.qkv.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    const FusedKernel done = state.fused.run(args, state.context);
    if (done != FusedKernel::parts) {
      // Its kernel let the next one start behind its wait, as a step's first norm must.
      state.plan_is_visible = true;
      if (done != FusedKernel::small_m_heads) run_op(head_args(args), state);
      return;
    }
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

}  // namespace nanovllm::cuda
