#pragma once
/// How an executor draws from logits that are edited before: the ops of ops/logit_edits.hpp in
/// their order, and the memory between them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_memory.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/logit_edits.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm {

/// A backend `B` has the ops that edits are made of.
template <class B>
concept EditOpsLike = RunsOp<B, MarkTokensArgs> && RunsOp<B, EditLogitsArgs> &&
    RunsOp<B, MarkDrawnArgs> && RunsOp<B, TokenLogprobsArgs>;

/// One rank's. `Functor` is the policy's LogitsFunctor. Takes memory when a request first asks for
/// edits, and grows; `synchronize()` is called before memory goes that an op under way may use.
template <class Backend, class Functor>
class EditChain {
  template <class U>
  using Buffer = typename Backend::template Buffer<U>;

 public:
  /// For steps within `limits`: as many slots have marks as a step samples sequences.
  EditChain(const StepLimits& limits, std::int64_t vocab_size)
      : max_rows_(limits.max_num_seqs),
        vocab_(vocab_size),
        max_distinct_(std::min(limits.max_model_len, vocab_size)),
        memory_({.limits = limits}) {}

  /// Draws from `logits`, [rows, vocab], which are destroyed. `base` is where the arena of `inputs`
  /// lies in the backend's memory, 16-byte aligned; `previous` is what the step before drew.
  template <class Synchronize>
  void run(Backend& backend, const SampleInputs& inputs, const std::byte* base,
           VectorView<const TokenId> previous, MatrixView<float> logits, const DrawnViews& out,
           const Synchronize& synchronize) {
    const std::int64_t m = logits.extent(0), vocab = logits.extent(1);
    UnpackStepArgs unpack{.previous = previous};
    const SampleBatch<ViewOf> batch = memory_.views(inputs.fields(), base, unpack);
    if (!inputs.has_edits()) return backend.run(out.draw(logits, batch.sampling));
    if (inputs.marks() && marks_.size() == 0) make_marks(backend, synchronize);
    const TokenMarks marks = this->marks();
    if (batch.edits.mark_heads.extent(0) > 0)
      backend.run(MarkTokensArgs{
          .marks = marks, .heads = batch.edits.mark_heads, .lists = batch.edits.mark_tokens});
    MatrixView<float> originals;
    if (inputs.wants_logprobs()) {
      make_room(originals_, m * vocab, synchronize);
      originals = {originals_.data(), {m, vocab}};
    }
    backend.run(EditLogitsArgs{
        .logits = logits, .batch = batch.edits, .marks = marks, .originals = originals});
    if constexpr (kHasFunctor) {
      if (inputs.has_functor()) {
        backend.run(unpack);  // the tokens before; all else is read as it is packed
        backend.run(ApplyFunctorArgs<Functor>{.logits = logits,
                                              .rows = batch.sampling.rows,
                                              .arguments = batch.edits.functor_arguments,
                                              .previous = batch.edits.previous});
      }
    }
    backend.run(out.draw(logits, batch.sampling));
    if (inputs.marks())
      backend.run(MarkDrawnArgs{.marks = marks, .rows = batch.edits.rows, .tokens = out.tokens});
    if (!inputs.wants_logprobs()) return;
    backend.run(TokenLogprobsArgs{.logits = originals,
                                  .tokens = out.tokens,
                                  .logprobs = out.logprobs,
                                  .chosen = batch.edits.chosen,
                                  .chosen_logprobs = out.chosen});
    if (inputs.model_logprobs() == 0) return;
    make_room(unused_tokens_, m, synchronize);
    make_room(unused_logprobs_, m, synchronize);
    DrawnViews lists = out;
    lists.tokens = {unused_tokens_.data(), {m}};
    lists.logprobs = {unused_logprobs_.data(), {m}};
    backend.run(lists.draw(originals, batch.model));
  }

  /// The same into `results`, which get room, on a backend whose ops are done when they return.
  /// `logits` may have columns after the vocabulary.
  void run(Backend& backend, const SampleInputs& inputs, VectorView<const TokenId> previous,
           MatrixView<float> logits, StepResultsMemory<Backend::template Buffer>& results) {
    const std::int64_t m = inputs.num_samples();
    check<ShapeError>(results.num_samples == m, "sample: the step has ", results.num_samples,
                      " rows of logits, but ", m, " are to be drawn from");
    results.resize(m, inputs.max_logprobs());
    const std::byte* const base = inputs.bytes().data();
    if (inputs.num_chosen() > 0)
      results.resize_chosen(lists_at<TokenId>(base, inputs.fields().edits.chosen).starts);
    logits.extents[1] = vocab_;
    run(backend, inputs, base, previous, logits, results.drawn(m), [] {});
  }

 private:
  static constexpr bool kHasFunctor = !std::is_same_v<Functor, NoLogitsFunctor>;

  [[nodiscard]] TokenMarks marks() {
    if (marks_.size() == 0) return {};
    return {.words = {marks_.data(), {max_rows_, vocab_}},
            .seen = {seen_.data(), {max_rows_, max_distinct_}},
            .num_seen = {num_seen_.data(), {max_rows_}}};
  }

  template <class Synchronize>
  void make_marks(Backend& backend, const Synchronize& synchronize) {
    synchronize();
    Buffer<std::uint32_t> words(size(max_rows_ * vocab_));
    Buffer<TokenId> seen(size(max_rows_ * max_distinct_));
    Buffer<std::int32_t> num_seen(size(max_rows_));
    // A slot that has no tokens has no words to clear, so that they must be zero from the start.
    const std::vector<std::uint32_t> zero_words(size(vocab_));
    const std::vector<std::int32_t> zeros(size(max_rows_));
    for (std::int64_t slot = 0; slot < max_rows_; ++slot)
      backend.upload(zero_words.data(), words.data() + slot * vocab_, zero_words.size());
    backend.upload(zeros.data(), num_seen.data(), zeros.size());
    synchronize();
    marks_ = std::move(words);
    seen_ = std::move(seen);
    num_seen_ = std::move(num_seen);
  }

  template <class AnyBuffer, class Synchronize>
  static void make_room(AnyBuffer& buffer, std::int64_t count, const Synchronize& synchronize) {
    if (static_cast<std::int64_t>(buffer.size()) >= count) return;
    synchronize();
    discard_and_grow(buffer, count);
  }
  [[nodiscard]] static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::int64_t max_rows_, vocab_, max_distinct_;
  StepMemory<Backend::template Buffer, /*kPadded=*/false, SampleBatch> memory_;
  Buffer<std::uint32_t> marks_{0};  // [max_rows, vocab]
  Buffer<TokenId> seen_{0};         // [max_rows, max_distinct]
  Buffer<std::int32_t> num_seen_{0};
  Buffer<float> originals_{0};
  Buffer<TokenId> unused_tokens_{0};
  Buffer<float> unused_logprobs_{0};
};

}  // namespace nanovllm
