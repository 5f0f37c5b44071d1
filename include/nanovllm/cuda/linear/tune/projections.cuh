#pragma once
/// Chooses how a network's projections run, by timing.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/linear/tune/layer_tuner.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/ops/projections.hpp"

namespace nanovllm::cuda {

/// Numbers of rows that are timed where there are up to `max_rows`.
[[nodiscard]] inline std::vector<std::int64_t> rows_up_to(std::int64_t max_rows) {
  std::vector<std::int64_t> out;
  for (const std::int64_t rows : kRowBuckets) {
    out.push_back(std::min(rows, max_rows));
    if (rows >= max_rows) break;
  }
  return out;
}

/// Walks the list: products first, then the ops that are more than one, then whole layers, logits
/// last. `run` runs an op. Blocks the host.
template <class A, class W, class Heads, class Engine, class Run>
void tune_projections(const Projections<A, DeviceMatrix<W>, W, Heads>& network, Engine& engine,
                      const Context& context, const Run& run) {
  DenseTuner tuner(engine, context);
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
      LayerTuner(network, engine, context).template tune<Heads>(run);
  }
  if (!network.logits.matrices.empty())
    tuner.template tune_linear<W, float>(network.logits.matrices, network.logits.accumulates,
                                         rows_up_to(network.logits.max_rows));
}

}  // namespace nanovllm::cuda
