#pragma once
/// What an executor's steps draw, on the device and on the way to the host.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/ops/publish_results.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/ops/sampling_batch.hpp"

namespace nanovllm {

/// Device memory for the tokens and log-probabilities of up to `max_rows` rows. The next step finds
/// there the tokens that the host does not know yet.
///
/// Of a row's most likely tokens, graphs give up to kGraphLogprobs in memory that never moves;
/// other steps give as many as are asked for, in memory that grows.
template <class Backend>
class DrawnRows {
  template <class U>
  using Buffer = typename Backend::template Buffer<U>;

 public:
  using Results = StepResultsMemory<Backend::template HostBuffer>;

  /// Most likely tokens of a row that graphs can give; steps that want more get no graph.
  static constexpr std::int64_t kGraphLogprobs = 20;

  /// `backend` must outlive this.
  DrawnRows(Backend& backend, std::int64_t max_rows) : backend_(backend), max_rows_(max_rows) {
    drawn_.resize(max_rows, kGraphLogprobs);
  }

  /// What the step before drew.
  [[nodiscard]] VectorView<const TokenId> previous() const {
    return {drawn_.tokens.data(), {max_rows_}};
  }
  [[nodiscard]] VectorView<TokenId> tokens(std::int64_t m) { return {drawn_.tokens.data(), {m}}; }
  [[nodiscard]] VectorView<float> logprobs(std::int64_t m) { return {drawn_.logprobs.data(), {m}}; }
  /// [m, top]; `reserve_top(m * top)` came before, unless a graph has them.
  [[nodiscard]] MatrixView<TokenId> top_tokens(std::int64_t m, std::int64_t top) {
    return {wide_top_tokens_.data(), {m, top}};
  }
  [[nodiscard]] MatrixView<float> top_logprobs(std::int64_t m, std::int64_t top) {
    return {wide_top_logprobs_.data(), {m, top}};
  }

  /// The draw of a graph of `m` rows.
  [[nodiscard]] SampleArgs graph_draw(MatrixView<float> logits, const SamplingBatch& batch,
                                      bool plain) {
    const std::int64_t m = logits.extent(0);
    return {logits,
            batch,
            tokens(m),
            logprobs(m),
            {drawn_.top_tokens.data(), {m, kGraphLogprobs}},
            {drawn_.top_logprobs.data(), {m, kGraphLogprobs}},
            plain};
  }

  /// The draw of another step; `top` as for `top_tokens`.
  [[nodiscard]] SampleArgs draw(MatrixView<float> logits, const SamplingBatch& batch,
                                std::int64_t top, bool plain) {
    const std::int64_t m = logits.extent(0);
    return {logits, batch, tokens(m), logprobs(m), top_tokens(m, top), top_logprobs(m, top), plain};
  }

  /// What tells a graph to write what it has drawn to the host's memory, at `place`.
  [[nodiscard]] PublishResultsArgs publication(const ResultsPlace* place, std::int64_t m) {
    return {.place = place,
            .tokens = tokens(m),
            .logprobs = logprobs(m),
            .top_tokens = {drawn_.top_tokens.data(), {m, kGraphLogprobs}},
            .top_logprobs = {drawn_.top_logprobs.data(), {m, kGraphLogprobs}}};
  }

  /// Makes room for `count` elements of `top_tokens`, and waits for the device if it has to grow.
  void reserve_top(std::int64_t count) {
    if (static_cast<std::int64_t>(wide_top_tokens_.size()) >= count) return;
    backend_.synchronize();
    discard_and_grow(wide_top_tokens_, count);
    discard_and_grow(wide_top_logprobs_, count);
  }

  /// Makes room on the host for what a step draws, by a graph or not.
  template <class Inputs>  // StepInputs or SampleInputs
  static void reserve(const Inputs& inputs, bool graph, Results& results) {
    const std::int64_t top = inputs.max_logprobs();
    results.resize(inputs.num_samples(), graph && top > 0 ? kGraphLogprobs : top);
  }

  /// Enqueues the copy of what a step draws to the host, of log-probabilities only what was asked
  /// for.
  template <class Inputs>
  void fetch(const Inputs& inputs, bool graph, Results& to) {
    const auto m = static_cast<std::size_t>(inputs.num_samples());
    reserve(inputs, graph, to);
    const std::size_t top = m * static_cast<std::size_t>(to.num_top);
    backend_.download_later(drawn_.tokens.data(), to.tokens.data(), m);
    if (inputs.wants_logprobs())
      backend_.download_later(drawn_.logprobs.data(), to.logprobs.data(), m);
    if (top > 0) {
      backend_.download_later((graph ? drawn_.top_tokens : wide_top_tokens_).data(),
                              to.top_tokens.data(), top);
      backend_.download_later((graph ? drawn_.top_logprobs : wide_top_logprobs_).data(),
                              to.top_logprobs.data(), top);
    }
  }

 private:
  Backend& backend_;
  std::int64_t max_rows_;
  StepResultsMemory<Backend::template Buffer> drawn_;
  Buffer<TokenId> wide_top_tokens_;
  Buffer<float> wide_top_logprobs_;
};

}  // namespace nanovllm
