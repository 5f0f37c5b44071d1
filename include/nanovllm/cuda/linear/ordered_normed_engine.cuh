#pragma once
/// Products behind a norm in one order: by `ordered_normed_linear` for the numbers of rows for which
/// that was found to be faster. For others the caller runs the ops that it stands for, with the same
/// bits.

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
#include "nanovllm/cuda/linear/ordered_normed.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/input_norm.hpp"

namespace nanovllm::cuda {

/// The choices of one device. Serves one stream and one host thread at a time.
class OrderedNormedEngine {
 public:
  /// y = n(x) · Wᵀ, or with `gated` its SwiGLU, by one kernel. False, with nothing enqueued, where
  /// none was found to be faster. Allocates no device memory and does not synchronise.
  template <MmaElement T>
  [[nodiscard]] bool run(const MatrixView<const T>& x, const InputNorm<T>& norm,
                         const DeviceMatrix<T>& weight, const MatrixView<T>& y, bool gated,
                         const Context& context) {
    const auto found =
        tokens_.find(key_of<T>(weight.rows(), weight.cols(), gated, row_bucket(x.extent(0))));
    if (found == tokens_.end() ||
        !ordered_normed_takes(found->second, x, norm, weight.view(), gated, context)) {
      return false;
    }
    ordered_normed_linear(found->second, x, norm, weight.view(), y, gated, maps_, context);
    return true;
  }

  /// Times the kernel against `by_ops`, for products by `weights`, all of one shape and taking turns,
  /// and for buckets of up to `max_rows` rows. by_ops(x, normed, weight, wide, y) runs the ops on
  /// rows x [rows, k] with room for them normed, for gates and ups [rows, n], and for y [rows, n],
  /// or [rows, n / 2] with `gated`. Blocks the host; takes device memory and gives it back. Throws
  /// ShapeError when there are no weights.
  template <MmaElement T, class ByOps>
  void tune(std::span<const DeviceMatrix<T>* const> weights, const InputNorm<T>& norm, bool gated,
            std::int64_t max_rows, const Context& context, const ByOps& by_ops) {
    nanovllm::check<ShapeError>(!weights.empty(), "OrderedNormedEngine::tune: no weights given");
    const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
    const std::int64_t most = std::min(max_rows, kMaxOrderedNormedRows);
    if (most < 1 || n == 0 || k == 0 || !norm) return;
    DeviceBuffer<T> x(static_cast<std::size_t>(most * k)),
        normed(static_cast<std::size_t>(most * k)), wide(static_cast<std::size_t>(most * n)),
        y(static_cast<std::size_t>(most * n));
    detail::fill_noise(x.data(), most * k, context);
    const int calls = static_cast<int>(std::clamp<std::size_t>(
        2 * context.l2_bytes / static_cast<std::size_t>(weights[0]->size_bytes()), 2, 32));
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t rows = std::min(bucket, most);
      const MatrixView<const T> in(x.data(), {rows, k});
      const MatrixView<T> out(y.data(), {rows, gated ? n / 2 : n});
      const auto weight = [&](int i) {
        return weights[static_cast<std::size_t>(i) % weights.size()];
      };
      const auto ops = [&](int i) {
        by_ops(in, MatrixView<T>(normed.data(), {rows, k}), weight(i),
               MatrixView<T>(wide.data(), {rows, n}), out);
      };
      ops(0);  // loads its kernels, ahead of the capture
      double best =
          detail::time_calls(context, calls, std::numeric_limits<double>::infinity(), ops);
      for (const int tokens : kOrderedNormedTokens) {
        if (!ordered_normed_takes(tokens, in, norm, weight(0)->view(), gated, context)) continue;
        const auto fused = [&](int i) {
          ordered_normed_linear(tokens, in, norm, weight(i)->view(), out, gated, maps_, context);
        };
        fused(0);
        const double ms = detail::time_calls(context, calls, 2 * best, fused);
        if (ms >= best) continue;
        best = ms;
        tokens_.insert_or_assign(key_of<T>(n, k, gated, row_bucket(rows)), tokens);
      }
      if (rows == most) return;
    }
  }

  /// Shapes and buckets of rows for which the one kernel was faster.
  [[nodiscard]] std::int64_t num_fused() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  /// Whether T is bf16, rows and columns of W, whether gated, bucket of rows of x.
  using Key = std::tuple<bool, std::int64_t, std::int64_t, bool, std::int64_t>;

  template <class T>
  [[nodiscard]] static Key key_of(std::int64_t n, std::int64_t k, bool gated, std::int64_t bucket) {
    return {std::is_same_v<T, bf16>, n, k, gated, bucket};
  }

  std::map<Key, int> tokens_;
  TensorMaps maps_;
};

}  // namespace nanovllm::cuda
