#pragma once
/// The ops `linear_sample` and `linear` with results in float, by the kernels of this folder where
/// they were found to be faster than `linear` and `sample`.
///
/// Which it is, is chosen for each shape of the weights and bucket of rows, by time at start-up
/// (`LinearSampleEngine::tune`). Where the kernel that draws was chosen, the one that stores logits
/// runs `linear`, so that a row's token does not depend on whether others of its step want more than
/// a token. Where that one is slower than what runs `linear` without it, that stays, if both give the
/// same bits: every logit of the bucket's rows is compared.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/linear.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/linear_sample/linear_sample.cuh"
#include "nanovllm/cuda/linear_sample/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/linear_sample.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cuda {

namespace detail {

/// Adds up a hash of every element and its place: equal bits have equal sums.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    hash_bits_kernel(const float* p, std::int64_t size, unsigned long long* sum) {
  grid_dependency_wait();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += stride) {
    auto h = static_cast<unsigned long long>(i) << 32 | __float_as_uint(p[i]);
    h = (h ^ h >> 31) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    mine += h ^ h >> 32;
  }
  atomicAdd(sum, mine);
}

}  // namespace detail

/// The choices of one device. Serves one host thread and one stream at a time.
class LinearSampleEngine {
 public:
  using Matrix = DeviceMatrix<bf16>;

  /// Draws in one kernel, where one was chosen. False, with nothing enqueued: run the parts.
  [[nodiscard]] bool run(const LinearSampleArgs<bf16, Matrix>& args, const Context& context) {
    return plan_of(args.x, *args.weight).draws &&
           linear_sample(layer_of(args), *workspace_, maps_, context);
  }

  /// The logits of the same kernel, where it was chosen. False, with nothing enqueued, else.
  [[nodiscard]] bool run(const FloatLinearArgs<bf16, Matrix>& args, const Context& context) {
    return !args.accumulate && plan_of(args.x, *args.weight).stores &&
           linear_sample(layer_of(args), *workspace_, maps_, context);
  }

  /// What was chosen for a bucket of rows.
  struct Plan {
    bool draws = false;   ///< in one kernel
    bool stores = false;  ///< `linear`, too, by the same products
  };
  [[nodiscard]] Plan plan_of(MatrixView<const bf16> x, const Matrix& weight) const {
    const auto found = plans_.find(key_of(x, weight));
    return found == plans_.end() ? Plan{} : found->second;
  }
  /// Puts a plan in force for the bucket of these operands' rows.
  void choose(MatrixView<const bf16> x, const Matrix& weight, Plan plan, const Context& context) {
    if (workspace_ == nullptr) workspace_ = std::make_unique<LinearSampleWorkspace>(context);
    plans_.insert_or_assign(key_of(x, weight), plan);
  }

  /// Times both ways for up to `max_rows` rows and draws in one kernel for each bucket where that
  /// saves at least kLeastGain. `run_part` runs an op by what has been chosen for it. Blocks the
  /// host; takes device memory and gives it back, but for the workspace.
  template <class Run>
  void tune(const Matrix& weight, std::int64_t max_rows, const Context& context,
            const Run& run_part) {
    const std::int64_t vocab = weight.rows(), k = weight.cols();
    const std::int64_t most = std::min(max_rows, kMaxLinearSampleRows);
    if (most < 1 || !fits_linear_sample(most, vocab, k) || !context.is_hopper() ||
        !context.can_overlap)
      return;
    Operands operands(weight, most, context);
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t rows = std::min(bucket, most);
      tune_rows(operands, rows, context, run_part);
      if (rows == most) return;
    }
  }

 private:
  /// Rows and columns of W, bucket of rows of x.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  /// What one kernel must at least save, as a part of the two ops' time.
  static constexpr double kLeastGain = 0.01;

  /// What is timed: noise, and rows that are drawn.
  struct Operands {
    const Matrix& weight;
    DeviceBuffer<bf16> x;
    DeviceBuffer<float> logits;
    DeviceBuffer<SamplingRow> rows;
    DeviceBuffer<std::int32_t> starts;
    DeviceBuffer<TokenId> tokens;
    DeviceBuffer<float> logprobs;
    DeviceBuffer<unsigned long long> hash{1};

    Operands(const Matrix& of, std::int64_t most, const Context& context)
        : weight(of),
          x(static_cast<std::size_t>(most * of.cols())),
          logits(static_cast<std::size_t>(most * of.rows())),
          rows(static_cast<std::size_t>(most)),
          starts(static_cast<std::size_t>(most + 1)),
          tokens(static_cast<std::size_t>(most)),
          logprobs(static_cast<std::size_t>(most)) {
      detail::fill_noise(x.data(), most * of.cols(), context);
      const std::vector<SamplingRow> settings(static_cast<std::size_t>(most));
      check_cuda(
          cudaMemcpy(rows.data(), settings.data(), rows.size_bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
      check_cuda(cudaMemset(starts.data(), 0, starts.size_bytes()), "cudaMemset");
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

    [[nodiscard]] LinearSampleArgs<bf16, Matrix> args(std::int64_t m) {
      LinearSampleArgs<bf16, Matrix> out{.x = MatrixView<const bf16>(x.data(), {m, weight.cols()}),
                                         .weight = &weight};
      out.sample.logits = {logits.data(), {m, weight.rows()}};
      out.sample.batch.rows = {rows.data(), {m}};
      out.sample.batch.banned.starts = {starts.data(), {m + 1}};
      out.sample.tokens = {tokens.data(), {m}};
      out.sample.logprobs = {logprobs.data(), {m}};
      out.sample.top_tokens = {nullptr, {m, 0}};
      out.sample.top_logprobs = {nullptr, {m, 0}};
      out.sample.plain = true;
      return out;
    }
  };

  /// Of the logits, once `run` is done, of a kernel that stores them.
  template <class Run>
  [[nodiscard]] static unsigned long long hash_after(Operands& operands,
                                                     const LinearSampleArgs<bf16, Matrix>& args,
                                                     const Context& context, const Run& run) {
    check_cuda(cudaMemsetAsync(operands.hash.data(), 0, sizeof(unsigned long long), context.stream),
               "cudaMemsetAsync");
    run();
    const MatrixView<float>& logits = args.sample.logits;
    launch(detail::hash_bits_kernel<256>, {.grid = dim3(1024), .block = dim3(256)}, context,
           logits.data, logits.extent(0) * logits.extent(1), operands.hash.data());
    unsigned long long out = 0;
    check_cuda(cudaMemcpyAsync(&out, operands.hash.data(), sizeof out, cudaMemcpyDeviceToHost,
                               context.stream),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
    return out;
  }

  [[nodiscard]] static Key key_of(MatrixView<const bf16> x, const Matrix& weight) {
    return {weight.rows(), weight.cols(), row_bucket(x.extent(0))};
  }

  [[nodiscard]] static LinearSampleLayer layer_of(const LinearSampleArgs<bf16, Matrix>& args) {
    return {.x = args.x,
            .weight = args.weight->view(),
            .rows = args.sample.batch.rows,
            .tokens = args.sample.tokens};
  }
  [[nodiscard]] static LinearSampleLayer layer_of(const FloatLinearArgs<bf16, Matrix>& args) {
    return {.x = args.x, .weight = args.weight->view(), .logits = args.y};
  }

  template <class Run>
  void tune_rows(Operands& operands, std::int64_t rows, const Context& context,
                 const Run& run_part) {
    const LinearSampleArgs<bf16, Matrix> args = operands.args(rows);
    const FloatLinearArgs<bf16, Matrix> linear_args{
        .x = args.x, .weight = args.weight, .y = args.sample.logits};
    // Weights beyond L2 come from memory as they do in a step; smaller ones are not worth it.
    constexpr int kCalls = 2;
    constexpr double kAnyTime = std::numeric_limits<double>::infinity();
    compose(args, run_part);  // loads its kernels, ahead of the capture
    const double most_ms =
        (1 - kLeastGain) *
        detail::time_calls(context, kCalls, kAnyTime, [&](int) { compose(args, run_part); });
    const double linear_ms =
        detail::time_calls(context, kCalls, kAnyTime, [&](int) { run_part(linear_args); });
    const unsigned long long linear_hash =
        hash_after(operands, args, context, [&] { run_part(linear_args); });
    if (workspace_ == nullptr) workspace_ = std::make_unique<LinearSampleWorkspace>(context);
    const auto run_once = [&](const auto& layer) {
      return linear_sample(layer, *workspace_, maps_, context);
    };
    const auto time = [&](const auto& layer) {
      if (!run_once(layer)) return kAnyTime;
      return detail::time_calls(context, kCalls, 2 * most_ms,
                                [&](int) { static_cast<void>(run_once(layer)); });
    };
    if (time(layer_of(args)) >= most_ms) return;
    const bool stores = time(layer_of(linear_args)) <= kMostStoreTime * linear_ms;
    if (!stores && linear_hash != hash_after(operands, args, context, [&] {
                     static_cast<void>(run_once(layer_of(linear_args)));
                   }))
      return;
    plans_.insert_or_assign(key_of(args.x, *args.weight), Plan{.draws = true, .stores = stores});
  }

  /// What the kernel that stores logits may take, as a part of what `linear` takes without it.
  static constexpr double kMostStoreTime = 1.02;

  std::map<Key, Plan> plans_;
  std::unique_ptr<LinearSampleWorkspace> workspace_;
  TensorMaps maps_;
};

/// Contract: ops/linear_sample.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const LinearSampleArgs<T, DeviceMatrix<T>>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "linear_sample: no weight given");
  validate(args);
  if (args.x.extent(0) == 0) return;
  if constexpr (std::is_same_v<T, bf16>) {
    if (state.linear_sample.run(args, state.context)) return;
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

/// Contract: ops/linear.hpp; logits, by the kernel that gives the bits which `linear_sample` draws
/// from.
template <class State>
void run_op(const LinearArgs<bf16, DeviceMatrix<bf16>, float>& args, State& state) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (!args.y.empty() && state.linear_sample.run(args, state.context)) return;
  linear(args, state.linear, state.context);
}

}  // namespace nanovllm::cuda
