#pragma once
/// Times the ways to run a dense layer, each after itself, and keeps the fastest.
///
/// All functions block the host, and take device memory for the operands of the largest bucket of
/// rows and give it back. The weights that they are given have one shape, for instance those of all
/// layers, and take turns, so that they come from memory as they do in a step. Throw ShapeError
/// unless there are weights of one shape.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/tune/scratch.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {

/// Weights of one shape.
template <class T>
using Matrices = std::span<const DeviceMatrix<T>* const>;

template <class T>
void check_same_shape(const char* who, Matrices<T> weights) {
  check<ShapeError>(!weights.empty(), who, ": no weights given");
  for (const DeviceMatrix<T>* weight : weights) {
    check<ShapeError>(weight->rows() == weights[0]->rows() && weight->cols() == weights[0]->cols(),
                      who, ": all weights must have shape ", shape_string(weights[0]->view()),
                      ", got ", shape_string(weight->view()));
  }
}

/// The buckets that these numbers of rows fall into, fewest rows first.
[[nodiscard]] inline std::set<std::int64_t> buckets_of(std::span<const std::int64_t> row_counts) {
  std::set<std::int64_t> out;
  for (const std::int64_t rows : row_counts) {
    if (rows > 0) out.insert(row_bucket(rows));
  }
  return out;
}

/// For one engine, while it lives.
template <class Engine>
class DenseTuner {
 public:
  using QkvArgs = typename Engine::template QkvArgs<bf16>;
  using GatedArgs = GatedLinearArgs<bf16, DeviceMatrix<bf16>>;

  DenseTuner(Engine& engine, const Context& context) : engine_(engine), context_(context) {}

  /// For y = x · Wᵀ (+ y) in the buckets of `row_counts`. Ends within about `budget`; buckets that
  /// were not reached stay with the choice by rule. float32 is not tuned.
  template <Element T, Element Out>
  void tune_linear(Matrices<T> weights, bool accumulate, std::span<const std::int64_t> row_counts,
                   std::chrono::milliseconds budget = std::chrono::milliseconds(500)) {
    if constexpr (sizeof(T) == 2) {
      check_same_shape("tune_linear", weights);
      const std::set<std::int64_t> buckets = buckets_of(row_counts);
      const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
      if (buckets.empty() || n == 0 || k == 0) return;
      const std::int64_t most = *buckets.rbegin();
      DeviceBuffer<T> x(static_cast<std::size_t>(most * k));
      DeviceBuffer<Out> y(static_cast<std::size_t>(most * n));
      detail::fill_noise(x.data(), most * k, context_);
      detail::fill_noise(y.data(), most * n, context_);
      const Deadline deadline = std::chrono::steady_clock::now() + budget;
      for (const std::int64_t rows : buckets) {
        const auto layer = [&](int i) {
          return DenseLayer<T, Out>{.x = MatrixView<const T>(x.data(), {rows, k}),
                                    .weight = turn(weights, i)->view(),
                                    .y = MatrixView<Out>(y.data(), {rows, n}),
                                    .accumulate = accumulate};
        };
        const auto run = [&](int i, const DensePlan& plan) {
          return engine_.execute(layer(i), plan, context_);
        };
        time(layer(0), calls(rows, weights), deadline, run);
        if (is_over(deadline)) break;
      }
    }
  }

  /// For `gated_linear` of up to `max_rows` rows, with this norm ahead or without. `run` runs the
  /// ops that it is made of.
  template <class Run>
  void tune_gated(Matrices<bf16> weights, const InputNorm<bf16>& norm, std::int64_t max_rows,
                  const Run& run) {
    const std::int64_t most = rows_to_tune("tune_gated", weights, max_rows);
    if (most < 1) return;
    detail::ProductScratch scratch(*weights[0], most, context_);
    each_bucket(most, [&](std::int64_t rows) {
      const auto args = [&](int i) {
        return GatedArgs{.x = scratch.x_rows(rows),
                         .norm = norm,
                         .weight = turn(weights, i),
                         .out = scratch.out_rows(rows),
                         .normed = scratch.normed_rows(rows),
                         .gate_up = scratch.y_rows(rows)};
      };
      time(layer_of(args(0)), calls(rows, weights), Deadline::max(),
           [&](int i, const DensePlan& plan) {
             if (plan.kernel == DenseKernel::parts) return compose(args(i), run), true;
             return engine_.execute(layer_of(args(i)), plan, context_);
           });
    });
  }

  /// The same for the product of `project_qkv`, and for all of it with such heads, less the time
  /// that an op for them takes after the fastest product. Where the norm is none, the parts are
  /// all there is.
  template <class Run>
  void tune_qkv(Matrices<bf16> weights, const InputNorm<bf16>& norm, const KvHeads& kv_heads,
                std::int64_t max_rows, const Run& run) {
    const std::int64_t most = rows_to_tune("tune_qkv", weights, max_rows);
    if (most < 1 || !norm) return;
    detail::ProductScratch scratch(*weights[0], most, context_);
    constexpr std::int64_t kKeys = 64;  // nothing reads them
    const std::int64_t most_of_heads = std::min(most, kMaxFusedHeadRows);
    detail::HeadScratch heads(kv_heads, most_of_heads, kKeys, 0, context_);
    each_bucket(most, [&](std::int64_t rows) {
      const auto args = [&](int i) {
        return QkvArgs{.x = scratch.x_rows(rows),
                       .norm = norm,
                       .weight = turn(weights, i),
                       .heads = heads.of(std::min(rows, most_of_heads)),
                       .kv = heads.kv(std::min(rows, most_of_heads), 0),
                       .qkv = scratch.y_rows(rows),
                       .normed = scratch.normed_rows(rows)};
      };
      const auto run_product = [&](int i, const DensePlan& plan) {
        if (plan.kernel == DenseKernel::parts) return compose_product(args(i), run), true;
        return engine_.execute(layer_of(args(i)), plan, context_);
      };
      time(layer_of(args(0)), calls(rows, weights), Deadline::max(), run_product);
      if (engine_.suits_heads(rows, weights[0]->rows(), weights[0]->cols(), context_))
        time_heads(args, calls(rows, weights), run_product,
                   [&](int i) { run(head_args(args(i))); });
    });
  }

 private:
  template <class T>
  [[nodiscard]] static const DeviceMatrix<T>* turn(Matrices<T> weights, int i) {
    return weights[static_cast<std::size_t>(i) % weights.size()];
  }
  template <class T>
  [[nodiscard]] int calls(std::int64_t rows, Matrices<T> weights) const {
    return detail::calls_to_time(rows, weights[0]->size_bytes(), context_);
  }

  /// 0 if there is nothing to choose.
  [[nodiscard]] std::int64_t rows_to_tune(const char* who, Matrices<bf16> weights,
                                          std::int64_t max_rows) const {
    check_same_shape(who, weights);
    const bool empty = weights[0]->rows() == 0 || weights[0]->cols() == 0;
    return empty || !context_.can_overlap ? 0 : std::min(max_rows, kMaxFusedRows);
  }

  /// Calls visit(rows) for the buckets up to `most` rows, the fewest first.
  template <class Visit>
  static void each_bucket(std::int64_t most, const Visit& visit) {
    for (const std::int64_t bucket : kRowBuckets) {
      visit(std::min(bucket, most));
      if (bucket >= most) return;
    }
  }

  /// Times the ways to run the layer by run(i, way), which says whether it has enqueued anything.
  template <class T, class Out, class Run>
  void time(const DenseLayer<T, Out>& layer, int calls, Deadline deadline, const Run& run) {
    detail::time_plans(
        engine_.plans(), key_of(layer), engine_.candidates(layer, context_), calls, deadline,
        context_, [&](const DensePlan& way) { return run(0, way); },
        [&](int i, const DensePlan& way) { static_cast<void>(run(i, way)); });
  }

  /// Adds the kernel that does all of `args(i)` to the ways to run its product, of which the
  /// fastest has been found. `run_heads(i)` does what follows.
  template <class Args, class RunProduct, class RunHeads>
  void time_heads(const Args& args, int calls, const RunProduct& run_product,
                  const RunHeads& run_heads) {
    constexpr DenseKernel kAll = DenseKernel::native_heads;
    const DensePlan fastest = engine_.plan_for(args(0), context_);
    if (!engine_.execute(args(0), {kAll}, context_)) return;
    run_heads(0);  // loads its kernels
    const auto time = [&](const auto& run) {
      return detail::time_calls(context_, calls, std::numeric_limits<double>::infinity(), run);
    };
    const double product = time([&](int i) { static_cast<void>(run_product(i, fastest)); });
    const double both = time([&](int i) {
      static_cast<void>(run_product(i, fastest));
      run_heads(i);
    });
    const double all =
        time([&](int i) { static_cast<void>(engine_.execute(args(i), {kAll}, context_)); });
    engine_.plans().add(key_of(layer_of(args(0))), {kAll}, std::max(all - (both - product), 0.));
  }

  Engine& engine_;
  const Context& context_;
};

}  // namespace nanovllm::cuda
