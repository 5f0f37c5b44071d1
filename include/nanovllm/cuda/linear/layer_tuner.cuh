#pragma once
/// Chooses between ways to run dense layers that are close to each other by timing whole layers.
///
/// One by one, `LinearEngine` and `FusedEngine` have timed each op behind itself. In a step its
/// neighbours are others: how early they let it start, what of the next weights is on its way
/// meanwhile. So of the ways that were nearly as fast as the fastest, each is tried in chains of
/// layers (without attention between the heads of q, k and v and o), op after op, and the one whose
/// layers take least is kept.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/fused_engine.cuh"
#include "nanovllm/cuda/linear/linear.cuh"
#include "nanovllm/cuda/linear/tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/linear/tuning_scratch.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/dense_layers.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {

/// Most rows of x for which layers are timed: with more of them, arithmetic sets the time.
inline constexpr std::int64_t kMaxLayerTunerRows = 256;

/// For one set of layers, while it lives.
class LayerTuner {
 public:
  using Matrix = DeviceMatrix<bf16>;
  using Layers = DenseLayers<Matrix, bf16>;

  /// Takes device memory for the activations of up to `max_rows` rows, and gives it back at its end.
  LayerTuner(const Layers& layers, std::int64_t max_rows, LinearEngine& linear, FusedEngine& fused,
             const Context& context)
      : layers_(layers),
        rows_(std::min(max_rows, kMaxLayerTunerRows)),
        linear_(linear),
        fused_(fused),
        context_(context),
        x_(size(hidden())),
        normed_(size(hidden())),
        heads_(size(layers.qkv[0]->rows())),
        gate_up_(size(layers.gate_up[0]->rows())),
        act_(size(width())),
        head_scratch_(layers.heads, rows_, context) {
    for (DeviceBuffer<bf16>* buffer : {&x_, &normed_, &heads_, &gate_up_, &act_})
      detail::fill_noise(buffer->data(), static_cast<std::int64_t>(buffer->size()), context);
  }

  /// Chooses for each bucket of rows, fewest first, until about `budget` is spent. `run` runs an op.
  /// Blocks the host.
  template <class Run>
  void tune(const Run& run, std::chrono::milliseconds budget = std::chrono::milliseconds(400)) {
    const auto deadline = std::chrono::steady_clock::now() + budget;
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t m = std::min(bucket, rows_);
      tune_bucket(m, run, deadline);
      if (m == rows_ || std::chrono::steady_clock::now() > deadline) return;
    }
  }

 private:
  /// What another way must gain to be kept: less is noise.
  static constexpr double kGain = 0.99;

  using Linear = LinearArgs<bf16, Matrix>;
  using Deadline = std::chrono::steady_clock::time_point;

  [[nodiscard]] std::int64_t hidden() const { return layers_.qkv[0]->cols(); }
  [[nodiscard]] std::int64_t width() const { return layers_.down[0]->cols(); }
  [[nodiscard]] std::size_t size(std::int64_t columns) const {
    return static_cast<std::size_t>(rows_ * columns);
  }
  [[nodiscard]] static MatrixView<bf16> view(DeviceBuffer<bf16>& of, std::int64_t m,
                                             std::int64_t columns, std::int64_t stride) {
    return {of.data(), {m, columns}, {stride, 1}};
  }
  [[nodiscard]] static MatrixView<const bf16> constant(const MatrixView<bf16>& v) {
    return {v.data, v.extents, v.strides};
  }

  // The ops of layer i on m rows.

  [[nodiscard]] FusedEngine::QkvArgs project_qkv(std::int64_t m, std::size_t i) {
    const std::int64_t n = layers_.qkv[0]->rows();
    return {.x = constant(view(x_, m, hidden(), hidden())),
            .norm = layers_.norm,
            .weight = layers_.qkv[i],
            .heads = head_scratch_.of(m),
            .kv = head_scratch_.kv(),
            .qkv = view(heads_, m, n, n),
            .normed = view(normed_, m, hidden(), hidden())};
  }
  [[nodiscard]] FusedEngine::GatedArgs gated(std::int64_t m, std::size_t i) {
    return {.x = constant(view(x_, m, hidden(), hidden())),
            .norm = layers_.norm,
            .weight = layers_.gate_up[i],
            .out = view(act_, m, width(), width()),
            .normed = view(normed_, m, hidden(), hidden()),
            .gate_up = view(gate_up_, m, 2 * width(), 2 * width())};
  }
  [[nodiscard]] Linear qkv(std::int64_t m, std::size_t i) {
    const std::int64_t n = layers_.qkv[0]->rows();
    return {.x = constant(view(normed_, m, hidden(), hidden())),
            .weight = layers_.qkv[i],
            .y = view(heads_, m, n, n)};
  }
  [[nodiscard]] Linear o(std::int64_t m, std::size_t i) {
    return {.x = constant(view(heads_, m, layers_.o[0]->cols(), layers_.qkv[0]->rows())),
            .weight = layers_.o[i],
            .y = view(x_, m, hidden(), hidden()),
            .accumulate = true};
  }
  [[nodiscard]] Linear gate_up(std::int64_t m, std::size_t i) {
    return {.x = constant(view(normed_, m, hidden(), hidden())),
            .weight = layers_.gate_up[i],
            .y = view(gate_up_, m, 2 * width(), 2 * width())};
  }
  [[nodiscard]] Linear down(std::int64_t m, std::size_t i) {
    return {.x = constant(view(act_, m, width(), width())),
            .weight = layers_.down[i],
            .y = view(x_, m, hidden(), hidden()),
            .accumulate = true};
  }

  template <class Run>
  void run_layer(std::int64_t m, std::size_t i, const Run& run) {
    const FusedEngine::QkvArgs args = project_qkv(m, i);
    const FusedKernel done = fused_.run(args, context_);
    if (done == FusedKernel::parts) compose_product(args, run);
    if (done != FusedKernel::small_m_heads) run(head_args(args));
    run(o(m, i));
    run(gated(m, i));
    run(down(m, i));
  }

  /// Milliseconds of a layer as it is run now. `hopeless` as in `time_calls`. x is the same each time,
  /// because power and so the clock depend on it; what o and down add to it is bounded by the norms
  /// ahead of them.
  template <class Run>
  [[nodiscard]] double time_layer(std::int64_t m, const Run& run, double hopeless) {
    detail::fill_noise(x_.data(), static_cast<std::int64_t>(x_.size()), context_);
    std::size_t bytes = 0;
    for (const auto& list : {layers_.qkv, layers_.o, layers_.gate_up, layers_.down})
      bytes += static_cast<std::size_t>(list[0]->size_bytes());
    // Enough layers to pass through twice the L2 cache, and so many that the ends do not count.
    const auto calls = static_cast<int>(
        std::min(std::max<std::size_t>(8 * context_.l2_bytes / bytes, 2), layers_.qkv.size()));
    return detail::time_calls(context_, calls, hopeless,
                              [&](int i) { run_layer(m, static_cast<std::size_t>(i), run); });
  }

  template <class Run>
  void tune_bucket(std::int64_t m, const Run& run, Deadline deadline) {
    run_layer(m, 0, run);  // loads its kernels, ahead of the capture
    double best = time_layer(m, run, std::numeric_limits<double>::infinity());
    // Tries an engine's ways to run an op, the one that it has chosen first of them.
    const auto try_ways = [&](auto& engine, const auto& op) {
      const auto ways = engine.close_plans(op);
      std::size_t chosen = 0;
      for (std::size_t i = 1; i < ways.size(); ++i) {
        if (std::chrono::steady_clock::now() > deadline) break;
        engine.choose(op, ways[i]);
        const double ms = time_layer(m, run, 2 * best);
        if (ms < kGain * best) best = ms, chosen = i;
      }
      if (!ways.empty()) engine.choose(op, ways[chosen]);
    };
    const FusedLayer mlp = FusedEngine::layer_of(gated(m, 0)),
                     heads = FusedEngine::layer_of(project_qkv(m, 0));
    try_ways(fused_, mlp);
    if (fused_.plan_for(mlp).kernel == FusedKernel::parts) try_ways(linear_, gate_up(m, 0));
    try_ways(fused_, heads);
    if (fused_.plan_for(heads).kernel == FusedKernel::parts) try_ways(linear_, qkv(m, 0));
    try_ways(linear_, o(m, 0));
    try_ways(linear_, down(m, 0));
  }

  Layers layers_;
  std::int64_t rows_;
  LinearEngine& linear_;
  FusedEngine& fused_;
  const Context& context_;
  DeviceBuffer<bf16> x_, normed_, heads_, gate_up_, act_;
  detail::HeadScratch head_scratch_;
};

}  // namespace nanovllm::cuda
