#pragma once
/// Chooses among kernels of dense layers with nearly equal times by timing whole layers.
///
/// `DenseTuner` times each op alone. In a step an op has other neighbours, which
/// change how early it starts and which weights are being loaded meanwhile. So the kernels that
/// were nearly as fast as the fastest are tried in chains of layers, and those with the fastest
/// layers are kept. For few rows, if there are few combinations, all are timed, in layers of a
/// decode step: a row is a sequence that attends to kKeys tokens. Two changes together are often
/// faster where each alone is slower. Otherwise, as for large weights, one op after another is
/// tried, in layers without attention.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/scratch.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/projections.hpp"

namespace nanovllm::cuda {

/// Most rows of x for which layers are timed: with more of them, arithmetic sets the time.
inline constexpr std::int64_t kMaxLayerTunerRows = 256;

/// Whether the network has layers of which the ops are known:
/// x += attention(norm(x) · qkvᵀ) · oᵀ, then x += swiglu(norm(x) · gate_upᵀ) · downᵀ.
template <class Heads>
[[nodiscard]] bool has_known_layers(
    const Projections<bf16, DeviceMatrix<bf16>, bf16, Heads>& network) {
  const auto* const qkv = network.find(ProjectionRole::qkv);
  return qkv != nullptr && qkv->norm && network.find(ProjectionRole::output) != nullptr &&
         network.find(ProjectionRole::gate_up) != nullptr &&
         network.find(ProjectionRole::down) != nullptr;
}

/// For one set of layers, while it lives.
template <class Engine>
class LayerTuner {
 public:
  using Matrix = DeviceMatrix<bf16>;
  using QkvArgs = typename Engine::template QkvArgs<bf16>;
  using GatedArgs = GatedLinearArgs<bf16, Matrix>;

  /// For a network that `has_known_layers` and that outlives it. Takes device memory for the
  /// activations of up to kMaxLayerTunerRows rows and for keys and values, and gives it back at its
  /// end. More rows than `network.max_seqs` are timed without attention.
  template <class Heads>
  LayerTuner(const Projections<bf16, Matrix, bf16, Heads>& network, Engine& engine,
             const Context& context)
      : LayerTuner(Layers{.qkv = network.find(ProjectionRole::qkv)->matrices,
                          .o = network.find(ProjectionRole::output)->matrices,
                          .gate_up = network.find(ProjectionRole::gate_up)->matrices,
                          .down = network.find(ProjectionRole::down)->matrices,
                          .norm = network.find(ProjectionRole::qkv)->norm,
                          .heads = network.kv_heads},
                   network.find(ProjectionRole::qkv)->max_rows, network.max_seqs, engine, context) {
  }

  /// Chooses for each bucket of rows, fewest first, until about `budget` is spent. `run` runs an
  /// op; attention is of `Heads`. Blocks the host.
  template <class Heads = HeadShape<>, class Run>
  void tune(const Run& run, std::chrono::milliseconds budget = std::chrono::milliseconds(400)) {
    const Deadline deadline = std::chrono::steady_clock::now() + budget;
    for (const std::int64_t bucket : kRowBuckets) {
      const std::int64_t m = std::min(bucket, rows_);
      tune_bucket<Heads>(m, run, deadline);
      if (m == rows_ || is_over(deadline)) return;
    }
  }

 private:
  using Linear = LinearArgs<bf16, Matrix>;
  using List = std::span<const Matrix* const>;
  struct Layers {
    List qkv, o, gate_up, down;
    InputNorm<bf16> norm;
    KvHeads heads;
  };

  LayerTuner(const Layers& layers, std::int64_t max_rows, std::int64_t max_seqs, Engine& engine,
             const Context& context)
      : layers_(layers),
        rows_(std::min(max_rows, kMaxLayerTunerRows)),
        seqs_(max_seqs),
        engine_(engine),
        context_(context),
        x_(size(hidden())),
        normed_(size(hidden())),
        heads_(size(layers.qkv[0]->rows())),
        gate_up_(size(layers.gate_up[0]->rows())),
        act_(size(width())),
        attended_(size(layers.o[0]->cols())),
        head_scratch_(layers.heads, rows_, kKeys, 2 * context.l2_bytes, context) {
    for (DeviceBuffer<bf16>* buffer : {&x_, &normed_, &heads_, &gate_up_, &act_, &attended_})
      detail::fill_noise(buffer->data(), static_cast<std::int64_t>(buffer->size()), context);
  }

  /// What another way must gain to be kept: less is noise.
  static constexpr double kGain = 0.99;
  /// Tokens that a row attends to.
  static constexpr std::int64_t kKeys = 256;
  /// Most rows for which layers have attention: with more of them the kernels are so long that
  /// their neighbours hardly count.
  static constexpr std::int64_t kMostAttendingRows = 16;
  /// Most combinations of ways that are timed, some 0.8 ms each, and of how many they are a part.
  static constexpr std::size_t kMostCombinations = 24, kMostOfAll = 64;

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

  [[nodiscard]] QkvArgs project_qkv(std::int64_t m, std::size_t i) {
    const std::int64_t n = layers_.qkv[0]->rows();
    return {.x = constant(view(x_, m, hidden(), hidden())),
            .norm = layers_.norm,
            .weight = layers_.qkv[i],
            .heads = head_scratch_.of(m),
            .kv = head_scratch_.kv(m, i),
            .qkv = view(heads_, m, n, n),
            .normed = view(normed_, m, hidden(), hidden())};
  }
  [[nodiscard]] GatedArgs gated(std::int64_t m, std::size_t i) {
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
  template <class Heads>
  [[nodiscard]] DecodeAttentionArgs<bf16, bf16, Heads> attention(const QkvArgs& args) {
    const std::int64_t m = args.x.extent(0), d = args.kv.head_dim;
    return {.q = split_qkv(args.qkv, args.num_heads(), args.kv.num_kv_heads, d).q,
            .kv = args.kv,
            .kv_lens = head_scratch_.kv_lens(m),
            .block_tables = head_scratch_.block_tables(m),
            .scale = 1.f / std::sqrt(static_cast<float>(d)),
            .out = {attended_.data(), {m, args.num_heads(), d}}};
  }
  [[nodiscard]] Linear o(std::int64_t m, std::size_t i) {
    const std::int64_t k = layers_.o[0]->cols();
    const MatrixView<bf16> x =
        attends_ ? view(attended_, m, k, k) : view(heads_, m, k, layers_.qkv[0]->rows());
    return {.x = constant(x),
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

  template <class Heads, class Run>
  void run_layer(std::int64_t m, std::size_t i, const Run& run) {
    const QkvArgs args = project_qkv(m, i);
    const DenseKernel done = engine_.run(args, context_);
    if (done == DenseKernel::parts) compose_product(args, run);
    if (done != DenseKernel::native_heads) run(head_args(args));
    if (attends_) run(attention<Heads>(args));
    run(o(m, i));
    run(gated(m, i));
    run(down(m, i));
  }

  /// Milliseconds of a layer as it is run now. `hopeless` as in `time_calls`. x is the same each
  /// time, because power and so the clock depend on it; what o and down add to it is bounded by the
  /// norms ahead of them.
  template <class Heads, class Run>
  [[nodiscard]] double time_layer(std::int64_t m, const Run& run, double hopeless) {
    detail::fill_noise(x_.data(), static_cast<std::int64_t>(x_.size()), context_);
    std::size_t bytes = 0;
    for (const List& list :
         std::array<List, 4>{layers_.qkv, layers_.o, layers_.gate_up, layers_.down})
      bytes += static_cast<std::size_t>(list[0]->size_bytes());
    // Enough layers to pass through the L2 cache several times, and so many that the ends do not
    // count for much. Of those with attention many combinations are timed.
    const std::size_t passes = attends_ ? 4 : 8;
    const auto calls = static_cast<int>(
        std::min(std::max<std::size_t>(passes * context_.l2_bytes / bytes, 2), layers_.qkv.size()));
    return detail::time_calls(context_, calls, hopeless, [&](int i) {
      run_layer<Heads>(m, static_cast<std::size_t>(i), run);
    });
  }

  /// The ways to run one op that are close to each other.
  struct Op {
    std::size_t num_ways;
    std::function<void(std::size_t)> choose;  ///< puts one in force; the first is, to begin with
    std::size_t chosen = 0;
  };
  template <class Args>
  [[nodiscard]] Op op_of(const Args& args) {
    const auto ways = engine_.close_plans(args);
    return {ways.size(), [this, args, ways](std::size_t i) { engine_.choose(args, ways[i]); }};
  }

  template <class Heads, class Run>
  void tune_bucket(std::int64_t m, const Run& run, Deadline deadline) {
    std::vector<Op> ops{op_of(gated(m, 0)), op_of(project_qkv(m, 0)), op_of(o(m, 0)),
                        op_of(down(m, 0))};
    std::erase_if(ops, [](const Op& op) { return op.num_ways == 0; });
    const auto count = [&] {
      std::size_t combinations = 1;
      for (const Op& op : ops) combinations *= op.num_ways;
      return combinations;
    };
    attends_ = m <= std::min(seqs_, kMostAttendingRows) && count() <= kMostOfAll;
    if (attends_) {
      run(PlanAttentionArgs{.num_decodes = m,
                            .num_tokens = m,
                            .query_starts = {},
                            .kv_lens = head_scratch_.kv_lens(m),
                            .num_heads = project_qkv(m, 0).num_heads(),
                            .num_kv_heads = layers_.heads.num_kv_heads,
                            .head_dim = layers_.heads.head_dim});
      const auto fewer = [](const Op& a, const Op& b) { return a.num_ways < b.num_ways; };
      while (count() > kMostCombinations)  // without the slowest
        --std::max_element(ops.begin(), ops.end(), fewer)->num_ways;
      try_all<Heads>(m, ops, count(), run, deadline);
    } else {
      try_in_turn<Heads>(m, ops, run, deadline);
    }
    std::vector<Op> parts;
    const auto add_part = [&](const auto& of, const Linear& product) {
      if (engine_.plan_for(of, context_).kernel == DenseKernel::parts)
        parts.push_back(op_of(product));
    };
    add_part(gated(m, 0), gate_up(m, 0)), add_part(project_qkv(m, 0), qkv(m, 0));
    if (!parts.empty()) try_in_turn<Heads>(m, parts, run, deadline);
  }

  /// Times all combinations and keeps the fastest, the first unless another gains.
  template <class Heads, class Run>
  void try_all(std::int64_t m, std::vector<Op>& ops, std::size_t combinations, const Run& run,
               Deadline deadline) {
    const auto choose = [&](std::size_t combination) {
      for (Op& op : ops) op.choose(combination % op.num_ways), combination /= op.num_ways;
    };
    double best = std::numeric_limits<double>::infinity();
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < combinations; ++i) {
      if (is_over(deadline)) break;
      choose(i);
      run_layer<Heads>(m, 0, run);  // loads its kernels, ahead of the capture
      const double ms = time_layer<Heads>(m, run, 2 * best);
      if (i == 0) best = kGain * ms;
      if (ms < best) best = ms, chosen = i;
    }
    choose(chosen);
  }

  /// Times the ways to run one op after the other, each beside the best so far of the others.
  template <class Heads, class Run>
  void try_in_turn(std::int64_t m, std::vector<Op>& ops, const Run& run, Deadline deadline) {
    run_layer<Heads>(m, 0, run);  // loads its kernels, ahead of the capture
    double best = time_layer<Heads>(m, run, std::numeric_limits<double>::infinity());
    for (Op& op : ops) {
      for (std::size_t i = 1; i < op.num_ways; ++i) {
        if (is_over(deadline)) break;
        op.choose(i);
        const double ms = time_layer<Heads>(m, run, 2 * best);
        if (ms < kGain * best) best = ms, op.chosen = i;
      }
      if (op.num_ways > 0) op.choose(op.chosen);
    }
  }

  Layers layers_;
  std::int64_t rows_, seqs_;
  bool attends_ = false;  ///< layers have attention
  Engine& engine_;
  const Context& context_;
  DeviceBuffer<bf16> x_, normed_, heads_, gate_up_, act_, attended_;
  detail::HeadScratch head_scratch_;
};

/// Numbers of rows that are timed where there are up to `max_rows`.
[[nodiscard]] inline std::vector<std::int64_t> rows_up_to(std::int64_t max_rows) {
  std::vector<std::int64_t> out;
  for (const std::int64_t rows : kRowBuckets) {
    out.push_back(std::min(rows, max_rows));
    if (rows >= max_rows) break;
  }
  return out;
}

/// Chooses how logits run. `state` has the engine `dense` and the `context`. Blocks the host.
template <class W, class State>
void tune_logits(const Projection<DeviceMatrix<W>, W>& logits, State& state) {
  if (logits.matrices.empty()) return;
  DenseTuner(state.dense, state.context)
      .template tune_linear<W, float>(logits.matrices, logits.accumulates,
                                      rows_up_to(logits.max_rows));
}

/// Walks the list: products first, then the ops that are more than one, then whole layers, logits
/// last. `run` runs an op. Blocks the host.
template <class A, class W, class Heads, class State, class Run>
void tune_projections(const Projections<A, DeviceMatrix<W>, W, Heads>& network, State& state,
                      const Run& run) {
  const Context& context = state.context;
  DenseTuner tuner(state.dense, context);
  for (const auto& one : network.list)
    tuner.template tune_linear<W, A>(one.matrices, one.accumulates, rows_up_to(one.max_rows));
  if constexpr (std::same_as<W, bf16> && std::same_as<A, bf16>) {
    for (const auto& one : network.list) {
      if (one.role == ProjectionRole::qkv)
        tuner.tune_qkv(one.matrices, one.norm, network.kv_heads, one.max_rows, run);
      if (one.role == ProjectionRole::gate_up)
        tuner.tune_gated(one.matrices, one.norm, one.max_rows, run);
    }
    if (context.can_overlap && has_known_layers(network))
      LayerTuner(network, state.dense, context).template tune<Heads>(run);
  }
  tune_logits(network.logits, state);
}

}  // namespace nanovllm::cuda
