#pragma once
/// Runs steps on a backend whose ops are done when they return.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/engine/step_results.hpp"
#include "nanovllm/model/forward_inputs.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// One rank's steps: `launch` computes, `wait` hands out. All ranks of a group have the same logits
/// and draw the same tokens.
template <class Network, class Backend, class Pool>
class DirectExecutor {
 public:
  /// Allocates for steps within `limits`. `network` and `backend` must outlive the executor.
  DirectExecutor(Network& network, Backend& backend, const NetworkLimits& limits,
                 std::int64_t /*max_blocks*/)
      : network_(network),
        backend_(backend),
        max_samples_(limits.max_samples),
        logits_(static_cast<std::size_t>(limits.max_samples * network.padded_vocab_size())) {}

  /// Nothing takes memory later, and nothing needs to be recorded.
  [[nodiscard]] std::size_t profile_run(Pool&) { return 0; }
  void capture(Pool&) {}

  /// Computes a step in `slot`, 0 and 1 in turn. Its pending tokens are those that the step in the
  /// other slot drew.
  void launch(int slot, const StepInputs& inputs, Pool& kv) {
    const std::int64_t m = inputs.num_samples(), top = inputs.max_logprobs();
    ForwardInputs forward = inputs.forward_inputs();
    if (inputs.has_pending_tokens())
      forward.tokens = resolve(forward.tokens, draws_[static_cast<std::size_t>(1 - slot)]);
    MatrixView<float> logits = logits_view(m);
    network_.forward(forward, kv, logits);
    Draws& draws = draws_[static_cast<std::size_t>(slot)];
    draws.resize(m, top);
    if (m == 0) return;
    logits.extents[1] = network_.vocab_size();
    backend_.run(SampleArgs{.logits = logits,
                            .rows = inputs.rows(),
                            .banned_starts = inputs.banned_starts(),
                            .banned_tokens = inputs.banned_tokens(),
                            .tokens = {draws.tokens.data(), {m}},
                            .logprobs = {draws.logprobs.data(), {m}},
                            .top_tokens = {draws.top_tokens.data(), {m, top}},
                            .top_logprobs = {draws.top_logprobs.data(), {m, top}}});
  }

  /// What the step in `slot` drew, valid until the slot's next launch.
  [[nodiscard]] StepResults wait(int slot) const {
    const Draws& draws = draws_[static_cast<std::size_t>(slot)];
    const auto m = static_cast<std::int64_t>(draws.tokens.size());
    return {.tokens = {draws.tokens.data(), {m}},
            .logprobs = {draws.logprobs.data(), {m}},
            .top_tokens = {draws.top_tokens.data(), {m, draws.num_top}},
            .top_logprobs = {draws.top_logprobs.data(), {m, draws.num_top}}};
  }

  /// Computes a step without drawing and copies its logits to `out`, [m, vocab_size].
  void run_logits(const StepInputs& inputs, Pool& kv, MatrixView<float> out) {
    const MatrixView<float> logits = logits_view(inputs.num_samples());
    network_.forward(inputs.forward_inputs(), kv, logits);
    for (std::int64_t i = 0; i < logits.extent(0); ++i)
      backend_.download(logits.at(i), out.at(i), static_cast<std::size_t>(out.extent(1)));
  }

 private:
  /// What a step draws.
  struct Draws {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;
    std::vector<TokenId> top_tokens;
    std::vector<float> top_logprobs;
    std::int64_t num_top = 0;

    void resize(std::int64_t num_samples, std::int64_t top) {
      num_top = top;
      tokens.resize(static_cast<std::size_t>(num_samples));
      logprobs.resize(static_cast<std::size_t>(num_samples));
      top_tokens.resize(static_cast<std::size_t>(num_samples * top));
      top_logprobs.resize(static_cast<std::size_t>(num_samples * top));
    }
  };

  [[nodiscard]] MatrixView<float> logits_view(std::int64_t m) {
    check<ShapeError>(m <= max_samples_, "run: at most ", max_samples_, " samples a step, got ", m);
    return {logits_.data(), {m, network_.padded_vocab_size()}};
  }

  /// `tokens` with those filled in that the step before drew.
  VectorView<const TokenId> resolve(VectorView<const TokenId> tokens, const Draws& before) {
    resolved_.assign(tokens.data, tokens.data + tokens.extent(0));
    for (TokenId& token : resolved_) {
      if (!is_pending(token)) continue;
      const auto sample = static_cast<std::size_t>(pending_sample(token));
      check(sample < before.tokens.size(), "launch: a token is to be what sample ", sample,
            " of the step before draws, but that has ", before.tokens.size(), " samples");
      token = before.tokens[sample];
    }
    return {resolved_.data(), tokens.extents};
  }

  Network& network_;
  Backend& backend_;
  std::int64_t max_samples_;
  typename Backend::template Buffer<float> logits_;  // [max_samples, padded vocab]
  std::array<Draws, 2> draws_;
  std::vector<TokenId> resolved_;
};

}  // namespace nanovllm
