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
#include <map>
#include <span>
#include <tuple>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/small_m/fused.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

/// The choices of one device. Serves one host thread at a time.
class FusedEngine {
 public:
  using Matrices = std::span<const DeviceMatrix<bf16>* const>;

  /// Tiles of a block of `small_m_gated_linear` for these operands, or 0: run the parts.
  [[nodiscard]] int gated_tiles(const GatedLinearArgs<bf16, DeviceMatrix<bf16>>& args) const {
    return tiles_of(true, args.x, args.norm, *args.weight);
  }

  /// Tiles of a block of `small_m_linear` with a norm ahead, or 0: run the parts.
  [[nodiscard]] int normed_tiles(const MatrixView<const bf16>& x, const InputNorm<bf16>& norm,
                                 const DeviceMatrix<bf16>& weight) const {
    return tiles_of(false, x, norm, weight);
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

 private:
  /// Gated, normed, rows and columns of W, bucket of rows of x.
  using Key = std::tuple<bool, bool, std::int64_t, std::int64_t, std::int64_t>;

  [[nodiscard]] static SmallMNorm norm_of(const InputNorm<bf16>& norm) {
    return {norm.weight, norm.eps};
  }

  [[nodiscard]] int tiles_of(bool gated, const MatrixView<const bf16>& x,
                             const InputNorm<bf16>& norm, const DeviceMatrix<bf16>& weight) const {
    const auto found =
        tiles_.find({gated, bool{norm}, weight.rows(), weight.cols(), row_bucket(x.extent(0))});
    if (found == tiles_.end()) return 0;
    const bool takes = gated ? small_m_gated_linear_takes(x, norm_of(norm), weight.view())
                             : small_m_linear_takes(x, norm_of(norm), weight.view());
    return takes ? found->second : 0;
  }

  template <class Run>
  void tune(bool gated, Matrices weights, const InputNorm<bf16>& norm, std::int64_t max_rows,
            const Context& context, const Run& run) {
    nanovllm::check<ShapeError>(!weights.empty(), "FusedEngine::tune: no weights given");
    const std::int64_t n = weights[0]->rows(), k = weights[0]->cols();
    const std::int64_t most = std::min(max_rows, kMaxSmallMFusedRows);
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
      parts(0);  // loads its kernels, ahead of the capture
      double best =
          detail::time_calls(context, calls, std::numeric_limits<double>::infinity(), parts);
      for (const int tiles : kSmallMTiles) {
        const bool takes = gated
                               ? small_m_gated_linear_takes(input, norm_of(norm), weight(0)->view())
                               : small_m_linear_takes(input, norm_of(norm), weight(0)->view());
        if (tiles == 1 || !takes) continue;
        const auto fused = [&](int i) {
          if (gated) {
            small_m_gated_linear(input, norm_of(norm), weight(i)->view(), half, tiles, context,
                                 true);
          } else {
            small_m_linear(input, norm_of(norm), weight(i)->view(), wide, false, tiles, context,
                           true);
          }
        };
        fused(0);
        const double ms = detail::time_calls(context, calls, 2 * best, fused);
        if (ms >= best) continue;
        best = ms;
        tiles_.insert_or_assign(Key{gated, bool{norm}, n, k, row_bucket(rows)}, tiles);
      }
      if (rows == most) return;
    }
  }

  std::map<Key, int> tiles_;
};

/// Contract: ops/gated_linear.hpp. Allocates no device memory and does not synchronise.
template <Element T, class State>
void run_op(const GatedLinearArgs<T, DeviceMatrix<T>, T>& args, State& state) {
  nanovllm::check<ShapeError>(args.weight != nullptr, "gated_linear: no weight given");
  validate(args);
  if (args.out.empty()) return;
  if constexpr (std::is_same_v<T, bf16>) {
    if (const int tiles = state.fused.gated_tiles(args); tiles > 0) {
      small_m_gated_linear(args.x, SmallMNorm{args.norm.weight, args.norm.eps}, args.weight->view(),
                           args.out, tiles, state.context, true);
      return;
    }
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
    const int tiles = args.norm ? state.fused.normed_tiles(args.x, args.norm, *args.weight) : 0;
    if (tiles > 0) {
      // Lets the next kernel start behind its wait, as a step's first norm must.
      small_m_linear(args.x, SmallMNorm{args.norm.weight, args.norm.eps}, args.weight->view(),
                     args.qkv, false, tiles, state.context, true);
      state.plan_is_visible = true;
      run_op(head_args(args), state);
      return;
    }
  }
  compose(args, [&](const auto& part) { run_op(part, state); });
}

}  // namespace nanovllm::cuda
