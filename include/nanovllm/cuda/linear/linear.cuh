#pragma once
/// Dense layer on the GPU: own kernels for few rows and for some tens, cuBLASLt for the rest.
///
/// Which of them, and which algorithm of cuBLASLt, is chosen once for each shape of the weights,
/// types and bucket of rows (tuner.cuh): by time at start-up where `LinearEngine::tune` was
/// called, else by rule at first use.
///
/// Rounding. Sums are in float32, and y is rounded once; but where cuBLASLt adds to a y of 16 bits
/// (13.1 on Hopper), it rounds the product before it adds, and then the sum.
///
/// Batch invariance. float32: every number of rows runs the same algorithm, without a split of K;
/// a row's result depends neither on the number of rows nor on its place. 16 bits: rows of one
/// bucket agree, and so do all numbers of rows that run on the same kernel for few rows; otherwise
/// the order of summation may change from bucket to bucket, within the rounding of the result.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/blas.cuh"
#include "nanovllm/cuda/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/linear.hpp"

namespace nanovllm::cuda {

/// What dense layers of one device share: the cuBLASLt handle, its workspace, and the choice of
/// algorithms. Serves one stream at a time and one host thread at a time; graphs captured with it
/// keep using its workspace.
class LinearEngine {
 public:
  /// On the current device.
  LinearEngine() : workspace_(kBlasWorkspaceBytes) {}

  /// The op: see `cuda::linear`.
  template <Element T, Element Out>
  void run(const LinearArgs<T, DeviceMatrix<T>, Out>& args, const Context& context) {
    const LinearPlan plan = plan_for(args, context);
    if (!execute(args, plan, context)) run_fallback(args, context);
  }

  /// Times that cuBLASLt was asked for algorithms, and descriptions of tensors that were made: a
  /// shape that has run before adds to neither.
  [[nodiscard]] std::int64_t num_heuristics() const { return num_heuristics_; }
  [[nodiscard]] std::int64_t num_tensor_maps() const { return maps_.num_encoded(); }

  /// Times the ways to run y = x · Wᵀ (+ y) for the buckets of `row_counts`, fewest rows first,
  /// and keeps the fastest. `weights` are all matrices of one shape, for instance of all layers:
  /// they take turns, so that weights come from memory as they do in a step. Ends within about
  /// `budget`; buckets that were not reached stay with the choice by rule. float32 is not tuned.
  ///
  /// Blocks the host. Takes device memory for x and y of the largest bucket, and gives it back.
  /// Throws ShapeError unless there are weights and all have one shape.
  template <Element T, Element Out>
  void tune(std::span<const DeviceMatrix<T>* const> weights, bool accumulate,
            std::span<const std::int64_t> row_counts, const Context& context,
            std::chrono::milliseconds budget = std::chrono::milliseconds(500)) {
    if constexpr (sizeof(T) == 2) {
      check_weights<T>(weights);
      std::set<std::int64_t> buckets;
      for (const std::int64_t rows : row_counts) {
        if (rows > 0) buckets.insert(row_bucket(rows));
      }
      const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
      if (buckets.empty() || n == 0 || k == 0) return;
      const std::int64_t most = *buckets.rbegin();
      DeviceBuffer<T> x(static_cast<std::size_t>(most * k));
      DeviceBuffer<Out> y(static_cast<std::size_t>(most * n));
      detail::fill_noise(x.data(), most * k, context);
      detail::fill_noise(y.data(), most * n, context);
      const auto deadline = std::chrono::steady_clock::now() + budget;
      for (const std::int64_t rows : buckets) {
        tune_bucket<T, Out>(weights,
                            {.x = MatrixView<T>(x.data(), {rows, k}),
                             .weight = weights[0],
                             .y = MatrixView<Out>(y.data(), {rows, n}),
                             .accumulate = accumulate},
                            deadline, context);
        if (std::chrono::steady_clock::now() > deadline) break;
      }
    }
  }

  /// The choice in force for these operands; makes it by rule when there is none yet.
  template <Element T, Element Out>
  [[nodiscard]] LinearPlan plan_for(const LinearArgs<T, DeviceMatrix<T>, Out>& args,
                                    const Context& context) {
    const LinearKey key = key_of(args);
    if (const LinearPlan* const plan = choices_.find(key)) return *plan;
    const LinearPlan plan = plan_by_rule(args, key.bucket, context);
    choices_.choose(key, plan);
    return plan;
  }

  /// The ways to run these operands that were close when they were timed, the one in force first;
  /// none where nothing was timed. Of them `choose` puts one in force.
  template <Element T, Element Out>
  [[nodiscard]] std::vector<LinearPlan> close_plans(
      const LinearArgs<T, DeviceMatrix<T>, Out>& args) const {
    return choices_.close_plans(key_of(args));
  }
  template <Element T, Element Out>
  void choose(const LinearArgs<T, DeviceMatrix<T>, Out>& args, const LinearPlan& plan) {
    choices_.choose(key_of(args), plan);
  }

 private:
  /// float32 runs the algorithm for this many rows whatever their number.
  static constexpr std::int64_t kFloat32Bucket = 64;

  /// Where the kernels of `mid_m/` and `wide_m/` are ways to run a layer. They are not compiled for
  /// logits.
  template <class T, class Out>
  static constexpr bool kHasRings = std::same_as<T, bf16>&& std::same_as<Out, bf16>;

  template <Element T, Element Out>
  static LinearKey key_of(const LinearArgs<T, DeviceMatrix<T>, Out>& args) {
    const typename BlasProduct::Shape shape = shape_of(args);
    return {.n = shape.n,
            .k = shape.k,
            .bucket = sizeof(T) == 4 ? kFloat32Bucket : row_bucket(shape.m),
            .in = shape.in,
            .out = shape.out,
            .accumulate = shape.accumulate,
            .alignment = shape.alignment};
  }

  template <Element T, Element Out>
  static BlasProduct::Shape shape_of(const LinearArgs<T, DeviceMatrix<T>, Out>& args) {
    const std::int64_t k = args.weight->cols();
    const auto in = static_cast<std::int64_t>(sizeof(T)),
               out = static_cast<std::int64_t>(sizeof(Out));
    const auto bits =
        reinterpret_cast<std::uintptr_t>(args.x.data) |
        reinterpret_cast<std::uintptr_t>(args.weight->data()) |
        reinterpret_cast<std::uintptr_t>(args.y.data) |
        static_cast<std::uintptr_t>(args.x.strides[0] * in | k * in | args.y.strides[0] * out | 16);
    return {.m = args.x.extent(0),
            .n = args.weight->rows(),
            .k = k,
            .x_stride = args.x.strides[0],
            .y_stride = args.y.strides[0],
            .in = kCudaDataType<T>,
            .out = kCudaDataType<Out>,
            .accumulate = args.accumulate,
            .alignment = static_cast<std::uint32_t>(bits & (~bits + 1))};
  }

  template <Element T, Element Out>
  static BlasProduct product(const LinearArgs<T, DeviceMatrix<T>, Out>& args) {
    return BlasProduct(shape_of(args));
  }

  /// Runs a number of rows that the algorithm of its bucket does not do, always by the same
  /// algorithm: eager and captured steps agree, and cuBLASLt is asked once.
  template <Element T, Element Out>
  void run_fallback(const LinearArgs<T, DeviceMatrix<T>, Out>& args, const Context& context) {
    const BlasProduct::Shape shape = shape_of(args);
    const auto found = fallbacks_.find(shape);
    if (found != fallbacks_.end() && execute(args, {.algorithm = found->second}, context)) return;
    ++num_heuristics_;
    for (const BlasAlgorithm& algorithm :
         product(args).heuristics(handle_, 8, kBlasWorkspaceBytes, true)) {
      if (!execute(args, {.algorithm = algorithm}, context)) continue;
      fallbacks_.insert_or_assign(shape, algorithm);
      return;
    }
    throw CudaError(concat("linear: cuBLASLt has no algorithm for x ", shape_string(args.x),
                           ", weight [", args.weight->rows(), ", ", args.weight->cols(), "]"));
  }

  /// Up to `count` algorithms for the shape of `args` with `rows` rows.
  template <Element T, Element Out>
  std::vector<BlasAlgorithm> heuristics(const LinearArgs<T, DeviceMatrix<T>, Out>& args,
                                        std::int64_t rows, int count) {
    typename BlasProduct::Shape shape = shape_of(args);
    shape.m = rows;
    ++num_heuristics_;
    return BlasProduct(shape).heuristics(handle_, count, kBlasWorkspaceBytes, sizeof(T) == 2);
  }

  template <Element T, Element Out>
  LinearPlan plan_by_rule(const LinearArgs<T, DeviceMatrix<T>, Out>& args, std::int64_t bucket,
                          const Context& context) {
    if (bucket <= kSmallMRowsByRule && small_m_linear_takes(args.x, {}, args.weight->view()))
      return {.kernel = LinearKernel::small_m,
              .size = default_small_m_tiles(args.weight->rows(), context.num_sms)};
    const auto found = heuristics(args, bucket, 1);
    return found.empty() ? LinearPlan{} : LinearPlan{.algorithm = found[0]};
  }

  /// Enqueues the layer as `plan` says. False, with nothing enqueued, when the plan does not fit.
  template <Element T, Element Out>
  [[nodiscard]] bool execute(const LinearArgs<T, DeviceMatrix<T>, Out>& args,
                             const LinearPlan& plan, const Context& context) {
    if constexpr (sizeof(T) == 2) {
      const MatrixView<const T> weight = args.weight->view();
      switch (plan.kernel) {
        case LinearKernel::blas: break;
        case LinearKernel::small_m:
          small_m_linear(args.x, {}, weight, args.y, args.accumulate, plan.size, context, true);
          return true;
        case LinearKernel::mid_m:
          if constexpr (kHasRings<T, Out>)
            return mid_m_linear(
                MidMLayer<T, Out>{
                    .x = args.x, .weight = weight, .y = args.y, .accumulate = args.accumulate},
                plan.size, maps_, context);
          break;
        case LinearKernel::wide_m:
          if constexpr (kHasRings<T, Out>)
            return wide_m_linear(
                WideMLayer<T>{
                    .x = args.x, .weight = weight, .y = args.y, .accumulate = args.accumulate},
                plan.size, maps_, context);
          break;
      }
    }
    return product(args).run(handle_, plan.algorithm, args.x.data, args.weight->data(), args.y.data,
                             workspace_.data(), kBlasWorkspaceBytes, context.stream);
  }

  template <Element T>
  static void check_weights(std::span<const DeviceMatrix<T>* const> weights) {
    check<ShapeError>(!weights.empty(), "LinearEngine::tune: no weights given");
    for (const DeviceMatrix<T>* weight : weights) {
      check<ShapeError>(
          weight->rows() == weights[0]->rows() && weight->cols() == weights[0]->cols(),
          "LinearEngine::tune: all weights must have shape ", shape_string(weights[0]->view()),
          ", got ", shape_string(weight->view()));
    }
  }

  /// The ways that `tune` compares.
  template <Element T, Element Out>
  std::vector<LinearPlan> candidates(const LinearArgs<T, DeviceMatrix<T>, Out>& args,
                                     const Context& context) {
    const std::int64_t rows = args.x.extent(0);
    std::vector<LinearPlan> out;
    const MatrixView<const T> weight = args.weight->view();
    const std::int64_t n = weight.extent(0), k = weight.extent(1);
    const bool suits_few = !kHasRings<T, Out> || suits_small_m(rows, n, k);
    for (const int tiles : kSmallMTiles) {
      if (suits_few && small_m_linear_takes(args.x, {}, weight))
        out.push_back({.kernel = LinearKernel::small_m, .size = tiles});
    }
    if constexpr (kHasRings<T, Out>) {
      for (int form = 0; form < kMidMForms.size(ProductKind::plain); ++form) {
        if (suits_mid_m(rows, n, k)) out.push_back({.kernel = LinearKernel::mid_m, .size = form});
      }
      for (int form = 0; form < kWideMForms.size(ProductKind::plain); ++form) {
        if (suits_wide_m_rows(rows)) out.push_back({.kernel = LinearKernel::wide_m, .size = form});
      }
    }
    for (const auto& algorithm : heuristics(args, rows, rows <= 256 ? 8 : 4))
      out.push_back({.algorithm = algorithm});
    return out;
  }

  template <Element T, Element Out>
  void tune_bucket(std::span<const DeviceMatrix<T>* const> weights,
                   LinearArgs<T, DeviceMatrix<T>, Out> args,
                   std::chrono::steady_clock::time_point deadline, const Context& context) {
    // Enough calls to pass through twice the L2 cache; compute-bound ones need no such care.
    const auto bytes = static_cast<std::size_t>(weights[0]->size_bytes());
    const int calls =
        args.x.extent(0) > 256
            ? 2
            : static_cast<int>(std::clamp<std::size_t>(2 * context.l2_bytes / bytes, 2, 32));
    const auto turn = [&](int i) {
      args.weight = weights[static_cast<std::size_t>(i) % weights.size()];
    };
    double best = std::numeric_limits<double>::infinity();
    const LinearKey key = key_of(args);
    choices_.restart(key);
    for (const LinearPlan& plan : candidates(args, context)) {
      turn(0);
      if (!execute(args, plan, context)) continue;  // also loads its module, ahead of the capture
      const double ms = detail::time_calls(context, calls, 2 * best, [&](int i) {
        turn(i);
        static_cast<void>(execute(args, plan, context));
      });
      choices_.add(key, plan, ms);
      best = std::min(best, ms);
      if (std::chrono::steady_clock::now() > deadline) return;
    }
  }

  BlasHandle handle_;
  DeviceBuffer<std::byte> workspace_;
  TunedPlans<LinearKey, LinearPlan> choices_;
  std::map<BlasProduct::Shape, BlasAlgorithm> fallbacks_;
  TensorMaps maps_;
  std::int64_t num_heuristics_ = 0;
};

/// Contract: ops/linear.hpp. `Out` is T or float; rows of x and y may have any stride and
/// alignment, but x and y must not overlap. Fast with 16-byte aligned rows.
///
/// Allocates no device memory and does not synchronise; legal during capture, if the same shape has
/// run before (cuBLASLt loads its kernels at first use).
template <Element T, Element Out>
void linear(const LinearArgs<T, DeviceMatrix<T>, Out>& args, LinearEngine& engine,
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
  linear(args, state.linear, state.context);
}

}  // namespace nanovllm::cuda
