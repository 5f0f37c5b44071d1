#pragma once
/// Runs steps on a backend whose ops are done when they return.

#include <array>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/step/edit_chain.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_kv.hpp"
#include "nanovllm/engine/step/step_memory.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm {

/// One rank's steps: `launch` computes, `wait` hands out. All ranks of a group draw the same
/// tokens.
template <class Network, class Backend, class Pool, class Functor = NoLogitsFunctor,
          class Draws = WholeRows>
class DirectExecutor {
 public:
  static constexpr bool kGivesHidden = GivesHiddenRows<Network>;
  /// Allocates for steps within `limits` of sequences of `max_blocks` blocks. `network` and
  /// `backend` must outlive the executor.
  DirectExecutor(Network& network, Backend& backend, const StepLimits& limits,
                 std::int64_t max_blocks)
      : network_(network),
        backend_(backend),
        max_num_seqs_(limits.max_num_seqs),
        memory_({.limits = limits, .max_blocks = max_blocks}),
        sampler_(network, backend, limits.max_num_seqs),
        edits_(limits, network.vocab_size()),
        hidden_(network, backend) {}

  /// Nothing takes memory later, and nothing needs to be recorded.
  [[nodiscard]] std::size_t profile_run(Pool&) { return 0; }
  void capture(Pool&) {}

  /// Computes a step; a deferred one without the draw. `slot`, 0 and 1 alternately, says which
  /// results it fills. Tokens that are not known are those that the step in the other slot drew.
  void launch(int slot, const StepInputs& inputs, Pool& kv) {
    const std::int64_t m = inputs.num_samples();
    const StepResults before = results_[static_cast<std::size_t>(1 - slot)].view();
    const int way = sampler_.way_of(inputs);
    const MatrixView<float> logits = logits_view(m, way);
    const SamplingBatch sampling = forward(inputs, before.tokens, kv, logits);
    hidden_.fetch(slot, inputs.num_hidden());
    auto& results = results_[static_cast<std::size_t>(slot)];
    results.resize(m, inputs.max_logprobs());
    if (m == 0 || inputs.is_deferred()) return;
    sampler_.run(results.drawn(m).draw(logits, sampling, inputs.all_plain()), way);
  }

  /// Draws for the step in `slot`, a deferred one that was launched last.
  void sample(int slot, const SampleInputs& inputs) requires EditOpsLike<Backend> {
    edits_.run(backend_, inputs, results_[static_cast<std::size_t>(1 - slot)].view().tokens,
               logits_view(inputs.num_samples()), results_[static_cast<std::size_t>(slot)]);
  }

  /// What the step in `slot` drew, valid until the slot's next launch.
  [[nodiscard]] StepResults wait(int slot) {
    StepResults results = results_[static_cast<std::size_t>(slot)].view();
    results.hidden = hidden_.view(slot);
    return results;
  }

  /// Computes a step without drawing and copies its logits to `out`, [m, vocab_size].
  void run_logits(const StepInputs& inputs, Pool& kv, MatrixView<float> out) {
    const MatrixView<float> logits = logits_view(inputs.num_samples());
    static_cast<void>(forward(inputs, {}, kv, logits));
    for (std::int64_t i = 0; i < logits.extent(0); ++i)
      backend_.download(logits.at(i), out.at(i), static_cast<std::size_t>(out.extent(1)));
  }

 private:
  [[nodiscard]] MatrixView<float> logits_view(std::int64_t m, int way = 0) {
    check<ShapeError>(m <= max_num_seqs_, "run: at most ", max_num_seqs_, " samples a step, got ",
                      m);
    return sampler_.logits(m, way);
  }

  /// Everything but the sampler, whose settings it returns.
  SamplingBatch forward(const StepInputs& inputs, VectorView<const TokenId> previous, Pool& kv,
                        MatrixView<float> logits) {
    UnpackStepArgs unpack{.previous = previous};
    const StepBatch<ViewOf> step =
        memory_.views(inputs.fields(), inputs.bytes().data(), unpack);  // fills `unpack`
    backend_.run(unpack);
    StepKv<Backend, Pool> step_kv(
        backend_, kv,
        {.down = step.copies_down, .inside = step.block_copies, .up = step.copies_up});
    hidden_.forward(network_, forward_batch(step, inputs), step_kv, logits);
    return step.sampling;
  }

  Network& network_;
  Backend& backend_;
  std::int64_t max_num_seqs_;
  StepMemory<Backend::template Buffer, /*kPadded=*/false> memory_;
  typename Draws::template Sampler<Network, Backend> sampler_;
  EditChain<Backend, Functor> edits_;
  HiddenRows<Network, Backend> hidden_;
  std::array<StepResultsMemory<Backend::template Buffer>, 2> results_;
};

}  // namespace nanovllm
