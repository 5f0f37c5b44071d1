#pragma once
/// How the rows of a step are drawn: from what its sequences ask for to what the sampler reads.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/mark_slots.hpp"
#include "nanovllm/engine/request_sequence.hpp"
#include "nanovllm/engine/sample_batch.hpp"
#include "nanovllm/engine/step_batch.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Memory is kept from step to step.
class StepSampling {
 public:
  /// A request that cannot be drawn for, and why.
  using Fault = std::pair<Request*, std::exception_ptr>;

  /// @param edits_logits  whether the runner has open steps; else processors' masks become bans.
  StepSampling(std::int64_t vocab_size, std::int64_t max_num_seqs, bool edits_logits)
      : vocab_size_(vocab_size), edits_logits_(edits_logits), slots_(max_num_seqs) {}

  /// Whether some row of `plan` cannot be filled before the results of the step ahead are there.
  [[nodiscard]] bool awaits_tokens(const StepPlan& plan) const;

  /// Fills the rows of `plan`. What a logits processor throws becomes a fault of its request, and
  /// its row is drawn greedily.
  /// @param faults  gets them; empty at the call.
  void fill(const StepPlan& plan, std::vector<Fault>& faults);

  /// Whether the rows need more than `sample` does: the step must be an open one.
  [[nodiscard]] bool has_edits() const { return !edits_.rows.empty(); }

  /// Plain rows, for a step that is not open.
  [[nodiscard]] const HostSamplingBatch& rows() const { return rows_; }
  /// All of it, for an open one.
  [[nodiscard]] const SampleInputs& pack() {
    end_edits(rows_.rows.size());
    lists_edited_.resize(rows_.rows.size());
    inputs_.build(rows_, edits_, lists_edited_);
    return inputs_;
  }

  /// A step that was filled will not be drawn as it was, or not in its order.
  void forget() { slots_.forget(); }

 private:
  /// The rows of `planned` that are not drawn from: all edits that they have is a token whose
  /// log-probability is wanted.
  void fill_prompt_rows(const PlannedSequence& planned);
  /// `position` is that of the token to be drawn.
  void fill_row(RequestSequence& sequence, std::int32_t position);
  /// Rows before `num_rows` that have no edits get none.
  void end_edits(std::size_t num_rows);
  /// `biases_` with each token once.
  [[nodiscard]] std::span<const TokenBias> sum_of_biases();
  /// Throws RequestError unless the last bitmap, less `bans`, has a token.
  void check_any_left(std::span<const TokenId> bans) const;
  /// Single bans from `first_ban` on become bits: the candidates of a beam are listed without them.
  void bans_to_bits(std::ptrdiff_t first_ban, TokenMask& mask);
  void mark(RequestSequence& sequence, std::int32_t position, EditRow& row);

  std::int64_t vocab_size_;
  bool edits_logits_;
  MarkSlots slots_;
  std::vector<TokenBias> biases_;           // of a row's processors
  std::vector<std::uint8_t> lists_edited_;  // rows that are beams
  HostSamplingBatch rows_;
  EditFields<HostOf> edits_;  // of no more rows than the last that has any, before `pack`
  SampleInputs inputs_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/step_sampling.inc"
#endif
