#pragma once
/// Dense layers of 16 bits whose results do not depend on the number of rows:
/// `batch_invariant_linear` says what the order of summation is, and for every number of rows the
/// fastest kernel is taken that keeps it.
///
/// What keeps it is found out, not assumed. Products of cuBLASLt without a split of K mostly add in
/// the same order (16 columns after 16 columns into one float32 register), and are faster on many
/// rows. `tune` lets an algorithm take part only after it has given the bits of
/// `batch_invariant_linear` on operands made for that purpose: the second half of the columns takes
/// back what the first half gave, so that the exact result is 0, and what is left is the rounding
/// of every single addition. Another order gives another result in nearly every output. Only then
/// is it timed. So two engines may run different kernels, by the stopwatch's choice, and give the
/// same bits.
/// Measured: not by itself; 2.8 s for the start-up of 0.6B, which compares bits by two of its
/// kernels (engine_bench, cuda_batch_invariant_0_6b.json). The one for other K was not timed.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/blas/blas_linear.cuh"
#include "nanovllm/cuda/linear/dispatch/tuned_plans.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/with/batch_invariant/hopper/linear.cuh"
#include "nanovllm/with/batch_invariant/hopper/tuning.hpp"

namespace nanovllm::cuda {

/// One way to run a dense layer in the one order.
struct BatchInvariantPlan {
  bool is_blas = false;
  BatchInvariantBlock block{};  ///< unless is_blas
  BlasAlgorithm algorithm{};    ///< if is_blas
};

namespace detail {

/// Fills a matrix of `cols` columns: the second half of a row is the first, moved by five columns
/// and times `sign`. The product of such a matrix of sign 1 and one of sign -1 is exactly 0.
template <Element T>
__global__ void __launch_bounds__(256)
    fill_probe_kernel(T* p, std::int64_t size, std::int64_t cols, float sign, std::uint32_t seed) {
  grid_dependency_wait();
  const std::int64_t half = cols / 2;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += stride) {
    const std::int64_t row = i / cols, column = i % cols;
    const bool is_second = column >= half && column < 2 * half;
    const std::int64_t source = is_second ? (column - half + 5) % half : column;
    std::uint32_t h = static_cast<std::uint32_t>(row * cols + source) * 0x9e3779b1u + seed;
    h = (h ^ h >> 15) * 0x85ebca77u;
    h = (h ^ h >> 13) * 0xc2b2ae3du;
    const float x = static_cast<float>(h >> 16) * 0x1p-15f - 1.f;
    const bool is_odd_one_out = column >= 2 * half;
    p[i] = from_float<T>(is_odd_one_out ? 0.f : is_second ? sign * x : x);
  }
}

template <Element T>
void fill_probe(T* p, std::int64_t rows, std::int64_t cols, float sign, std::uint32_t seed,
                const Context& context) {
  launch(fill_probe_kernel<T>, {.grid = dim3(1024), .block = dim3(256)}, context, p, rows * cols,
         cols, sign, seed);
}

/// A thread an output, columns in order: for a K that is no multiple of 8, whose rows neither the
/// copy engine nor vectors can read. Slow, and the same for any number of rows.
template <class T, class Out>
__global__ void __launch_bounds__(256)
    batch_invariant_scalar_linear_kernel(const MatrixView<const T> x,
                                         const MatrixView<const T> weight, const MatrixView<Out> y,
                                         bool accumulate) {
  grid_dependency_wait();
  grid_dependency_launch();
  const std::int64_t row = blockIdx.x * std::int64_t{8} + threadIdx.x % 8;
  const std::int64_t token = blockIdx.y * std::int64_t{32} + threadIdx.x / 8;
  if (row >= weight.extent(0) || token >= x.extent(0)) return;
  const T *const a = x.at(token), *const b = weight.at(row);
  float sum = 0.f;
  for (std::int64_t k = 0; k < x.extent(1); ++k)
    sum = __fmaf_rn(to_float(a[k]), to_float(b[k]), sum);
  Out& out = *y.at(token, row);
  const Out product = from_float<Out>(sum);
  out = accumulate ? from_float<Out>(__fadd_rn(to_float(out), to_float(product))) : product;
}

/// Counts the elements that differ in their bits.
template <class Bits>
__global__ void __launch_bounds__(256)
    count_differences_kernel(const Bits* a, const Bits* b, std::int64_t size, int* count) {
  grid_dependency_wait();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  int mine = 0;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += stride)
    mine += a[i] != b[i] ? 1 : 0;
  if (mine > 0) atomicAdd(count, mine);
}

}  // namespace detail

/// What dense layers of one device share. Serves one stream at a time and one host thread at a
/// time; graphs captured with it keep using its workspace.
class BatchInvariantLinear {
 public:
  /// On the current device.
  BatchInvariantLinear() : differences_(1) {}

  /// The op, on operands that are not empty. Which order it is follows from K alone: for multiples
  /// of 8 that of `batch_invariant_linear`, which needs rows that are 16-byte aligned and throws
  /// ShapeError for others.
  template <MmaElement T, Element Out>
  void run(const LinearArgs<T, DeviceMatrix<T>, Out>& args, const Context& context) {
    const DenseLayer<T, Out> layer = layer_of(args);
    const auto& weight = layer.weight;
    if (weight.extent(1) % 8 != 0) {
      const dim3 grid(static_cast<unsigned>(ceil_div(weight.extent(0), std::int64_t{8})),
                      static_cast<unsigned>(ceil_div(args.x.extent(0), std::int64_t{32})));
      return launch(detail::batch_invariant_scalar_linear_kernel<T, Out>,
                    {.grid = grid, .block = dim3(256)}, context, args.x, weight, args.y,
                    args.accumulate);
    }
    check<ShapeError>(
        batch_invariant_linear_takes(args.x, weight),
        "linear: in one order for any number of rows, 16-bit operands must have rows that are "
        "16-byte aligned, got x ",
        shape_string(args.x), " and weight ", shape_string(weight));
    if (execute(layer, plan_for(args, context), context)) return;
    static_cast<void>(execute(layer, {.block = rule(layer, context)}, context));
  }

  /// The choice in force for these operands.
  template <class Op>
  [[nodiscard]] BatchInvariantPlan plan_for(const Op& op, const Context& context) const {
    const auto layer = layer_of(op);
    const BatchInvariantPlan* const plan = plans_.find(key_of(layer));
    return plan != nullptr ? *plan : BatchInvariantPlan{.block = rule(layer, context)};
  }

  /// Finds the fastest way that keeps the order, for the buckets of `row_counts`, fewest rows
  /// first. `weights` are all matrices of one shape; they take turns, so that weights come from
  /// memory as they do in a step. Times for about `budget`; many rows that were not reached get the
  /// first algorithm that keeps the order, few the choice by rule.
  ///
  /// Blocks the host. Takes device memory for operands of the largest bucket and one more matrix,
  /// and gives it back. Throws ShapeError when there are no weights or their shapes differ.
  template <MmaElement T, Element Out>
  void tune(Matrices<T> weights, bool accumulate, std::span<const std::int64_t> row_counts,
            const Context& context,
            std::chrono::milliseconds budget = std::chrono::milliseconds(800)) {
    check_same_shape("tune", weights);
    const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
    const std::set<std::int64_t> buckets = buckets_of(row_counts);
    if (buckets.empty() || n == 0 || k == 0 || k % 8 != 0) return;
    Tuning<T, Out> tuning(weights, accumulate, *buckets.rbegin(), context);
    const Deadline deadline = std::chrono::steady_clock::now() + budget;
    for (const std::int64_t rows : buckets) tune_bucket(tuning, rows, deadline, context);
  }

  /// Elements of y in which `plan` differs from the reference on operands that show every addition,
  /// among the first and the last 128 of `rows` rows of x by a W [n, k]; -1 when cuBLASLt does not
  /// run it. For tests and measurements.
  template <MmaElement T, Element Out>
  [[nodiscard]] int count_differences(const BatchInvariantPlan& plan, std::int64_t rows,
                                      std::int64_t n, std::int64_t k, const Context& context) {
    const DeviceMatrix<T> weight(n, k);
    const DeviceMatrix<T>* const weights[] = {&weight};
    Tuning<T, Out> tuning(weights, false, rows, context);
    return count_differences(tuning, plan, rows, context);
  }

  /// The algorithms of cuBLASLt that may keep the order, of rows that lie after each other.
  template <MmaElement T, Element Out>
  [[nodiscard]] std::vector<BatchInvariantPlan> blas_candidates(std::int64_t rows, std::int64_t n,
                                                                std::int64_t k) {
    const DenseLayer<T, Out> layer{.x = MatrixView<const T>(nullptr, {rows, k}),
                                   .weight = MatrixView<const T>(nullptr, {n, k}),
                                   .y = MatrixView<Out>(nullptr, {rows, n})};
    std::vector<BatchInvariantPlan> out;
    for (const BlasAlgorithm& algorithm : blas_.algorithms(layer, rows, kBlasCandidates, false))
      out.push_back({.is_blas = true, .algorithm = algorithm});
    return out;
  }

  /// How many of the buckets' choices are cuBLASLt's, and how many there are.
  struct Tally {
    std::int64_t blas = 0;
    std::int64_t all = 0;
  };
  [[nodiscard]] Tally tally() const {
    Tally out;
    plans_.for_each([&](const BatchInvariantPlan& plan) {
      ++out.all;
      out.blas += plan.is_blas ? 1 : 0;
    });
    return out;
  }

 private:
  static constexpr int kBlasCandidates = 8;
  static constexpr std::int64_t kMinBlasRows = 33;  ///< fewer are bound by reading the weights
  static constexpr std::int64_t kProbeRows = 128;   ///< at either end of y that are compared

  /// Operands that `tune` works on.
  template <class T, class Out>
  struct Tuning {
    Matrices<T> weights;
    bool accumulate;
    DeviceMatrix<T> probe;  ///< a W whose exact products with x are 0
    DeviceBuffer<T> x;
    DeviceBuffer<Out> y, expected;

    Tuning(Matrices<T> weights_in, bool accumulate_in, std::int64_t most, const Context& context)
        : weights(weights_in),
          accumulate(accumulate_in),
          probe(weights[0]->rows(), weights[0]->cols()),
          x(static_cast<std::size_t>(most * probe.cols())),
          y(static_cast<std::size_t>(most * probe.rows())),
          expected(static_cast<std::size_t>(kProbeRows * probe.rows())) {
      detail::fill_probe(x.data(), most, probe.cols(), -1.f, 1, context);
      detail::fill_probe(probe.data(), probe.rows(), probe.cols(), 1.f, 2, context);
      detail::fill_noise(y.data(), most * probe.rows(), context);
    }

    [[nodiscard]] DenseLayer<T, Out> layer(const DeviceMatrix<T>& weight, std::int64_t rows,
                                           bool adds) {
      return {.x = MatrixView<const T>(x.data(), {rows, probe.cols()}),
              .weight = weight.view(),
              .y = MatrixView<Out>(y.data(), {rows, probe.rows()}),
              .accumulate = adds};
    }
    /// By the weights in turn.
    [[nodiscard]] DenseLayer<T, Out> turn(std::int64_t rows, int i) {
      return layer(*weights[static_cast<std::size_t>(i) % weights.size()], rows, accumulate);
    }
  };

  template <class T, class Out>
  static BatchInvariantBlock rule(const DenseLayer<T, Out>& layer, const Context& context) {
    return default_batch_invariant_block(layer.x.extent(0), layer.weight.extent(0),
                                         context.num_sms);
  }

  /// Enqueues the layer as `plan` says. False, with nothing enqueued, when cuBLASLt does not do it.
  template <class T, class Out>
  [[nodiscard]] bool execute(const DenseLayer<T, Out>& layer, const BatchInvariantPlan& plan,
                             const Context& context) {
    if (plan.is_blas) return blas_.run(layer, plan.algorithm, context);
    batch_invariant_linear(layer.x, layer.weight, layer.y, layer.accumulate, plan.block, maps_,
                           context);
    return true;
  }

  template <class T, class Out>
  [[nodiscard]] int count_differences(Tuning<T, Out>& tuning, const BatchInvariantPlan& plan,
                                      std::int64_t rows, const Context& context) {
    using Bits = std::conditional_t<sizeof(Out) == 2, std::uint16_t, std::uint32_t>;
    const DenseLayer<T, Out> layer = tuning.layer(tuning.probe, rows, false);
    detail::fill_noise(tuning.y.data(), rows * tuning.probe.rows(), context);
    if (!execute(layer, plan, context)) return -1;
    check_cuda(cudaMemsetAsync(differences_.data(), 0, sizeof(int), context.stream),
               "cudaMemsetAsync");
    const auto compare = [&](std::int64_t first, std::int64_t count) {
      auto part = layer;
      part.x = layer.x.slice(first, first + count);
      part.y = MatrixView<Out>(tuning.expected.data(), {count, tuning.probe.rows()});
      static_cast<void>(execute(part, {.block = kBatchInvariantReference}, context));
      launch(detail::count_differences_kernel<Bits>, {.grid = dim3(256), .block = dim3(256)},
             context, reinterpret_cast<const Bits*>(layer.y.at(first)),
             reinterpret_cast<const Bits*>(part.y.data), count * tuning.probe.rows(),
             differences_.data());
    };
    const std::int64_t count = std::min(rows, kProbeRows);
    compare(0, count);
    if (rows > count) compare(rows - count, count);
    int out = 0;
    check_cuda(cudaMemcpyAsync(&out, differences_.data(), sizeof out, cudaMemcpyDeviceToHost,
                               context.stream),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
    return out;
  }

  /// Whether `plan` keeps the order for the most and for the fewest rows of a bucket.
  template <class T, class Out>
  [[nodiscard]] bool keeps_order(Tuning<T, Out>& tuning, const BatchInvariantPlan& plan,
                                 std::int64_t rows, const Context& context) {
    if (!plan.is_blas && plan.block == kBatchInvariantReference) return true;
    const auto* const bucket =
        std::lower_bound(std::begin(kRowBuckets), std::end(kRowBuckets), rows);
    const std::int64_t fewest = bucket == std::begin(kRowBuckets) ? 1 : bucket[-1] + 1;
    return count_differences(tuning, plan, rows, context) == 0 &&
           (fewest >= rows || count_differences(tuning, plan, fewest, context) == 0);
  }

  /// The ways worth comparing, those first that are likely to be fast.
  template <class T, class Out>
  [[nodiscard]] std::vector<BatchInvariantPlan> candidates(const Tuning<T, Out>& tuning,
                                                           std::int64_t rows,
                                                           const Context& context) {
    std::vector<BatchInvariantPlan> out;
    if (rows >= kMinBlasRows && !tuning.accumulate)
      out = blas_candidates<T, Out>(rows, tuning.probe.rows(), tuning.probe.cols());
    // Weights that do not stay in L2 should be read once.
    const bool reads_once =
        static_cast<std::size_t>(tuning.probe.size_bytes()) > context.l2_bytes / 2;
    for (const BatchInvariantBlock block : kBatchInvariantBlocks) {
      if (suits_batch_invariant_rows(block, rows) &&
          !(reads_once && block.tokens < std::min<std::int64_t>(rows, 256)))
        out.push_back({.block = block});
    }
    return out;
  }

  /// After the deadline nothing is timed: many rows get the first algorithm that keeps the order,
  /// few the choice by rule.
  template <class T, class Out>
  void tune_bucket(Tuning<T, Out>& tuning, std::int64_t rows, Deadline deadline,
                   const Context& context) {
    const bool begins_late = is_over(deadline);
    if (begins_late && rows < kMinBlasRows) return;
    const DenseKey key = key_of(tuning.turn(rows, 0));
    const auto keeps = [&](const BatchInvariantPlan& way) {
      return keeps_order(tuning, way, rows, context);
    };
    const std::vector<BatchInvariantPlan> ways = candidates(tuning, rows, context);
    if (begins_late) {
      const auto first = std::find_if(ways.begin(), ways.end(), keeps);
      if (first != ways.end()) plans_.choose(key, *first);
      return;
    }
    const int calls = detail::calls_to_time(rows, tuning.probe.size_bytes(), context);
    detail::time_plans(plans_, key, ways, calls, deadline, context, keeps,
                       [&](int i, const BatchInvariantPlan& way) {
                         static_cast<void>(execute(tuning.turn(rows, i), way, context));
                       });
  }

  BlasLinear blas_;
  DeviceBuffer<int> differences_;
  TensorMaps maps_;
  TunedPlans<DenseKey, BatchInvariantPlan> plans_;
};

}  // namespace nanovllm::cuda
