#pragma once
/// `gated_linear` in one order: by `ordered_gated_linear` for the numbers of rows for which that was
/// found to be faster, else by the ops that it is made of, with the same bits.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/batch_invariant/linear/ordered_gated.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

/// The choices of one device. Serves one stream and one host thread at a time.
class OrderedGatedEngine {
 public:
  /// The op, on operands that fit together and are not empty; `run_part` runs the ops that it is
  /// made of, in one order. Allocates no device memory and does not synchronise.
  template <MmaElement T, class Run>
  void run(const GatedLinearArgs<T, DeviceMatrix<T>, T>& args, const Context& context,
           const Run& run_part) {
    const auto found = blocks_.find(
        key_of<T>(args.weight->rows(), args.weight->cols(), row_bucket(args.x.extent(0))));
    const MatrixView<const T> x = args.norm ? MatrixView<const T>(args.normed) : args.x;
    if (found == blocks_.end() || !ordered_gated_linear_takes(x, args.weight->view(), context)) {
      return compose(args, run_part);
    }
    if (args.norm) {
      run_part(RmsNormArgs<T, T>{
          .x = args.x, .weight = args.norm.weight, .eps = args.norm.eps, .out = args.normed});
    }
    ordered_gated_linear(x, args.weight->view(), args.out, found->second, maps_, context);
  }

  /// Times both ways, behind a norm, for products by `weights`, all of one shape and taking turns,
  /// for buckets of up to `max_rows` rows, fewest first and for about `budget`; what was not reached
  /// runs by its parts. Blocks the host; takes device memory and gives it back. Throws ShapeError
  /// when there are no weights.
  template <MmaElement T, class Run>
  void tune(std::span<const DeviceMatrix<T>* const> weights, std::int64_t max_rows,
            const Context& context, const Run& run_part,
            std::chrono::milliseconds budget = std::chrono::milliseconds(300)) {
    check<ShapeError>(!weights.empty(), "OrderedGatedEngine::tune: no weights given");
    const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
    const std::int64_t most = std::min(max_rows, kMaxOrderedGatedRows);
    if (most < 1 || n == 0 || k == 0) return;
    DeviceBuffer<T> x(static_cast<std::size_t>(most * k)), wide(static_cast<std::size_t>(most * n)),
        out(static_cast<std::size_t>(most * n / 2));
    detail::fill_noise(x.data(), most * k, context);
    const int calls = static_cast<int>(std::clamp<std::size_t>(
        2 * context.l2_bytes / static_cast<std::size_t>(weights[0]->size_bytes()), 2, 32));
    const auto deadline = std::chrono::steady_clock::now() + budget;
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t rows = std::min(bucket, most);
      const auto args = [&](int i) {
        return GatedLinearArgs<T, DeviceMatrix<T>, T>{
            .x = MatrixView<const T>(x.data(), {rows, k}),
            .weight = weights[static_cast<std::size_t>(i) % weights.size()],
            .out = MatrixView<T>(out.data(), {rows, n / 2}),
            .normed = {},
            .gate_up = MatrixView<T>(wide.data(), {rows, n})};
      };
      const auto weight = [&](int i) { return args(i).weight->view(); };
      if (!ordered_gated_linear_takes(args(0).x, weight(0), context)) return;
      const auto by_parts = [&](int i) { compose(args(i), run_part); };
      by_parts(0);  // loads its kernels, ahead of the capture
      double best =
          detail::time_calls(context, calls, std::numeric_limits<double>::infinity(), by_parts);
      for (const OrderedBlock block : kOrderedGatedBlocks) {
        if (!suits_ordered_rows(block, rows)) continue;
        const auto fused = [&](int i) {
          ordered_gated_linear(args(i).x, weight(i), args(i).out, block, maps_, context);
        };
        fused(0);
        const double ms = detail::time_calls(context, calls, 2 * best, fused);
        if (ms >= best) continue;
        best = ms;
        blocks_.insert_or_assign(key_of<T>(n, k, row_bucket(rows)), block);
      }
      if (rows == most || std::chrono::steady_clock::now() > deadline) return;
    }
  }

  /// Shapes and buckets of rows for which the one kernel was faster.
  [[nodiscard]] std::int64_t num_fused() const { return static_cast<std::int64_t>(blocks_.size()); }

 private:
  /// Whether T is bf16, rows and columns of W, bucket of rows of x.
  using Key = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>;

  template <class T>
  [[nodiscard]] static Key key_of(std::int64_t n, std::int64_t k, std::int64_t bucket) {
    return {std::is_same_v<T, bf16>, n, k, bucket};
  }

  std::map<Key, OrderedBlock> blocks_;
  TensorMaps maps_;
};

}  // namespace nanovllm::cuda
