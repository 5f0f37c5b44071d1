#pragma once
/// How an executor draws a step from rows of logits.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// One executor's, for rows of a network that is `Network`. Whole rows are way 0, the only one
/// here. Another sampler, that of a policy's `Draws`, may have others, numbered from 1, which need
/// not take all steps; the last takes those whose rows are all plain.
template <class Network, class Backend>
class StepSampler {
 public:
  /// For steps of up to `max_rows` rows; `network` and `backend` must outlive this.
  StepSampler(Network& network, Backend& backend, std::int64_t max_rows)
      : network_(network),
        backend_(backend),
        logits_(static_cast<std::size_t>(max_rows * network.padded_vocab_size())) {}

  [[nodiscard]] static constexpr int num_ways() { return 1; }
  /// The way for a step of which `inputs` has the rows.
  template <class Inputs>
  [[nodiscard]] static constexpr int way_of(const Inputs& /*inputs*/) {
    return 0;
  }

  /// What `forward` is to write for a step of `m` rows.
  [[nodiscard]] MatrixView<float> logits(std::int64_t m, int /*way*/) {
    return {logits_.data(), {m, network_.padded_vocab_size()}};
  }

  /// Draws as `draw` says from `logits(m, way)`: all ranks together, and the same.
  void run(SampleArgs draw, int /*way*/) {
    draw.logits.extents[1] = network_.vocab_size();
    backend_.run(draw);
  }

 private:
  Network& network_;
  Backend& backend_;
  typename Backend::template Buffer<float> logits_;  // [max_rows, padded vocab]
};

/// The default slot `Draws` of a policy: what samplers its executors have.
struct WholeRows {
  template <class Network, class Backend>
  using Sampler = StepSampler<Network, Backend>;
};

/// The policy's Draws; WholeRows where it has none.
template <class Policy>
struct DrawsOf {
  using type = WholeRows;
};
template <class Policy>
requires requires { typename Policy::Draws; }
struct DrawsOf<Policy> {
  using type = typename Policy::Draws;
};

}  // namespace nanovllm
