#pragma once
/// How the rows of a step are drawn: from what its sequences ask for to what the sampler reads.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The host's book of the slots. A slot that a sequence has marked all its tokens in stays right by
/// itself: what a step draws for it is marked on the device. Any other is filled from the tokens
/// that the host has: of a sequence that is new, was forked or computed again, or whose slot
/// another one has taken meanwhile. There are as many slots as a step has rows, so that one which
/// the step does not use can always be taken, and none has to be given back.
class MarkSlots {
 public:
  struct Place {
    std::int32_t slot = 0;
    bool is_current = false;  ///< it knows all tokens before the one to be drawn
  };

  explicit MarkSlots(std::int64_t num_slots) : slots_(static_cast<std::size_t>(num_slots)) {}

  /// Whether `owner` has a slot that knows its first `num_tokens` tokens.
  [[nodiscard]] bool is_current(std::uint64_t owner, std::optional<std::int32_t> hint,
                                std::int32_t num_tokens) const {
    if (!hint) return false;
    const Slot& slot = at(*hint);
    return slot.owner == owner && slot.num_tokens == num_tokens;
  }

  /// The slot in which `owner` draws its token number `num_tokens` in this step, after which the
  /// slot knows that one, too. Changes `hint`, which is the owner's to keep.
  /// @param owner  not 0, and no other sequence's, ever.
  [[nodiscard]] Place take(std::uint64_t owner, std::optional<std::int32_t>& hint,
                           std::int32_t num_tokens) {
    const bool current = is_current(owner, hint, num_tokens);
    if (!hint || at(*hint).owner != owner) hint = unused();
    slots_[static_cast<std::size_t>(*hint)] = {
        .owner = owner, .num_tokens = num_tokens + 1, .step = step_};
    return {*hint, current};
  }

  /// A slot for a row of this step alone. It knows nothing.
  [[nodiscard]] std::int32_t borrow() {
    const std::int32_t slot = unused();
    slots_[static_cast<std::size_t>(slot)] = {.step = step_};
    return slot;
  }

  /// Another step begins.
  void begin_step() { ++step_; }

  /// Nothing is known of what the slots have.
  void forget() {
    for (Slot& slot : slots_) slot.num_tokens.reset();
  }

 private:
  struct Slot {
    std::uint64_t owner = 0;
    std::optional<std::int32_t> num_tokens{};
    std::uint64_t step = 0;  // that used it last
  };

  [[nodiscard]] const Slot& at(std::int32_t slot) const {
    return slots_[static_cast<std::size_t>(slot)];
  }

  /// The slot that was not used for the longest time.
  [[nodiscard]] std::int32_t unused() const {
    std::size_t oldest = 0;
    for (std::size_t i = 1; i < slots_.size(); ++i) {
      if (slots_[i].step < slots_[oldest].step) oldest = i;
    }
    return static_cast<std::int32_t>(oldest);
  }

  std::vector<Slot> slots_;
  std::uint64_t step_ = 0;
};

/// Memory is kept from step to step.
class StepSampling {
 public:
  /// A request that cannot be drawn for, and why.
  using Fault = std::pair<Request*, std::exception_ptr>;

  /// @param edits_logits  whether the runner has deferred steps; else processors' masks become
  /// bans.
  StepSampling(std::int64_t vocab_size, std::int64_t max_num_seqs, bool edits_logits)
      : vocab_size_(vocab_size), edits_logits_(edits_logits), slots_(max_num_seqs) {}

  /// Whether some row of `plan` cannot be filled before the results of the step ahead are there.
  [[nodiscard]] bool awaits_tokens(const StepPlan& plan) const;

  /// Fills the rows of `plan`. What a logits processor throws becomes a fault of its request, and
  /// its row is drawn greedily. After a guess it is no fault: the step checks guesses up to there.
  /// @param faults  gets them; empty at the call.
  void fill(const StepPlan& plan, std::vector<Fault>& faults);

  /// Whether the rows need more than `sample` does: the step must be deferred.
  [[nodiscard]] bool has_edits() const { return !edits_.rows.empty(); }

  /// The rows of a step that is not deferred.
  [[nodiscard]] const HostSamplingBatch& rows() const { return rows_; }
  /// Packs rows and edits of a deferred step.
  void pack() {
    end_edits(rows_.rows.size());
    lists_edited_.resize(rows_.rows.size());
    inputs_.build(rows_, edits_, lists_edited_);
  }
  /// What was packed last.
  [[nodiscard]] const SampleInputs& packed() const { return inputs_; }

  /// A filled step will not be drawn, or not in its order: all slots of marks are unknown now.
  void forget() { slots_.forget(); }

 private:
  /// Their only edit is a token whose log-probability is reported.
  void fill_scores(const RequestSequence& sequence, const RowUse& scores);
  /// `position` is that of the token to be drawn.
  void fill_draw(RequestSequence& sequence, std::int32_t position, std::vector<Fault>& faults);
  void fill_rules(RequestSequence& sequence, std::int32_t position);
  /// Rows before `num_rows` that have no edits get none.
  void end_edits(std::size_t num_rows);
  /// `biases_` with each token once.
  [[nodiscard]] std::span<const TokenBias> sum_of_biases();
  /// Throws RequestError unless the last bitmap, less `bans`, has a token.
  void check_any_left(std::span<const TokenId> bans) const;
  /// Single bans from `first_ban` on become bits: candidates for a choice are listed without them.
  void bans_to_bits(std::ptrdiff_t first_ban, TokenMask& mask);
  void mark(RequestSequence& sequence, std::int32_t position, EditRow& row);

  std::int64_t vocab_size_;
  bool edits_logits_;
  MarkSlots slots_;
  std::vector<TokenBias> biases_;           // of a row's processors
  std::vector<std::uint8_t> lists_edited_;  // rows of candidates
  HostSamplingBatch rows_;
  EditFields<HostOf> edits_;  // of no more rows than the last that has any, before `pack`
  SampleInputs inputs_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <bit>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

NANOVLLM_INLINE bool StepSampling::awaits_tokens(const StepPlan& plan) const {
  for (const PlannedSequence& planned : plan.sequences) {
    const RowUse draws = planned.rows.of(RowKind::draw);
    const std::int32_t position = draws.first + 1;  // of what is drawn first
    if (draws.count == 0 || position <= planned.sequence->num_known_tokens()) continue;
    const RequestSequence& sequence = RequestSequence::of(*planned.sequence);
    if (sequence.reads_tokens()) return true;
    if (sequence.has_penalties() &&
        !slots_.is_current(sequence.owner_id(), sequence.mark_slot, position))
      return true;
  }
  return false;
}

NANOVLLM_INLINE void StepSampling::fill(const StepPlan& plan, std::vector<Fault>& faults) {
  clear(rows_);
  clear(edits_);
  lists_edited_.clear();
  slots_.begin_step();
  for (const PlannedSequence& planned : plan.sequences) {
    RequestSequence& sequence = RequestSequence::of(*planned.sequence);
    sequence.ahead.begin_rows(sequence);
    for (const RowUse& use : planned.rows.all()) {
      if (use.kind == RowKind::score) fill_scores(sequence, use);
      if (use.kind != RowKind::draw) continue;
      for (std::int32_t i = use.first; i < use.end(); ++i) fill_draw(sequence, i + 1, faults);
    }
  }
}

NANOVLLM_INLINE void StepSampling::fill_draw(RequestSequence& sequence, std::int32_t position,
                                             std::vector<Fault>& faults) {
  rows_.rows.push_back(sequence.sampling_row(position));
  if (sequence.is_chosen) {
    lists_edited_.resize(rows_.rows.size());
    lists_edited_.back() = true;
  }
  if (sequence.has_rules() && sequence.status != SequenceStatus::finished &&
      sequence.ahead.has_row(sequence, position)) {
    const std::size_t num_banned = rows_.banned.values.size();
    const std::size_t num_bits = edits_.masks.size();
    try {
      fill_rules(sequence, position);
    } catch (...) {
      if (!sequence.ahead.end_rows(sequence, position))
        faults.emplace_back(&sequence.request(), std::current_exception());
      rows_.banned.values.resize(num_banned);
      edits_.masks.resize(num_bits);
    }
  }
  rows_.banned.end_row();
}

NANOVLLM_INLINE void StepSampling::fill_scores(const RequestSequence& sequence,
                                               const RowUse& scores) {
  for (std::int32_t i = scores.first; i < scores.end(); ++i) {
    end_edits(rows_.rows.size());
    rows_.rows.push_back({.temperature = 0, .num_logprobs = *sequence.params().prompt_logprobs});
    rows_.banned.end_row();
    edits_.rows.emplace_back();
    edits_.biases.end_row();
    edits_.chosen.append(std::span(sequence.tokens).subspan(static_cast<std::size_t>(i) + 1, 1));
  }
}

NANOVLLM_INLINE void StepSampling::fill_rules(RequestSequence& sequence, std::int32_t position) {
  if (sequence.is_chosen && !sequence.request().chooser()->is_alive(sequence.sample())) return;
  const auto num_masks = static_cast<std::int64_t>(edits_.masks.size()) / mask_words(vocab_size_);
  biases_.clear();
  TokenMask mask(rows_.banned.values, vocab_size_, edits_logits_ ? &edits_.masks : nullptr,
                 edits_logits_ ? &biases_ : nullptr);
  const auto first_ban = std::ssize(rows_.banned.values);
  sequence.process(position, mask);
  if (sequence.is_chosen)
    bans_to_bits(first_ban, mask);
  else if (mask.has_bits())
    check_any_left(std::span(rows_.banned.values).subspan(static_cast<std::size_t>(first_ban)));
  const SamplingParams& params = sequence.params();
  if (!mask.has_bits() && !sequence.has_penalties() && params.logit_bias.empty() &&
      params.logprob_token_ids.empty() && biases_.empty() && params.functor_argument == 0)
    return;
  std::span<const TokenBias> biases = params.logit_bias;
  if (!biases_.empty()) {
    biases_.insert(biases_.end(), biases.begin(), biases.end());
    biases = sum_of_biases();
  }
  EditRow row;
  if (mask.has_bits()) row.mask = static_cast<std::int32_t>(num_masks);
  if (sequence.has_penalties()) mark(sequence, position, row);
  end_edits(rows_.rows.size() - 1);
  edits_.rows.push_back(row);
  if (params.functor_argument != 0) {
    edits_.functor_arguments.resize(edits_.rows.size());
    edits_.functor_arguments.back() = params.functor_argument;
    edits_.previous.resize(edits_.rows.size());
    edits_.previous.back() = sequence.token_source(position - 1);
  }
  edits_.biases.append(biases);
  edits_.chosen.append(params.logprob_token_ids);
}

NANOVLLM_INLINE void StepSampling::mark(RequestSequence& sequence, std::int32_t position,
                                        EditRow& row) {
  const SamplingParams& params = sequence.params();
  row.repetition = params.repetition_penalty.value_or(1);
  row.frequency = params.frequency_penalty;
  row.presence = params.presence_penalty;
  const std::int32_t num_ahead = std::max(position - sequence.num_known_tokens(), 0);
  if (num_ahead > 0 && num_ahead <= sequence.num_guesses) {
    row.marks = slots_.borrow();
  } else {
    const MarkSlots::Place place = slots_.take(sequence.owner_id(), sequence.mark_slot, position);
    row.marks = place.slot;
    if (place.is_current && !sequence.is_chosen) return;  // else they may be another's now
    check(num_ahead == 0, "step sampling: the tokens before number ", position, " are not known");
  }
  edits_.mark_heads.push_back({.slot = row.marks, .num_prompt_tokens = sequence.num_prompt_tokens});
  auto& lists = edits_.mark_tokens;
  const std::span<const TokenId> known(sequence.tokens);
  lists.values.insert(lists.values.end(), known.begin(), known.begin() + (position - num_ahead));
  lists.append(
      std::span<const TokenId>(sequence.guesses).first(static_cast<std::size_t>(num_ahead)));
}

NANOVLLM_INLINE void StepSampling::check_any_left(std::span<const TokenId> bans) const {
  const auto num_words = static_cast<std::size_t>(mask_words(vocab_size_));
  const std::span<const std::uint32_t> words = std::span(edits_.masks).last(num_words);
  for (std::size_t i = 0; i < num_words; ++i) {
    for (std::uint32_t bits = words[i]; bits != 0; bits &= bits - 1) {
      const auto token = static_cast<TokenId>(32 * i) + std::countr_zero(bits);
      if (token < vocab_size_ && std::find(bans.begin(), bans.end(), token) == bans.end()) return;
    }
  }
  throw RequestError(
      "no token is left that may come: token_masks, allowed_token_ids, bad_words, min_tokens and "
      "the policy's logits processors rule each other out");
}

NANOVLLM_INLINE void StepSampling::bans_to_bits(std::ptrdiff_t first_ban, TokenMask& mask) {
  std::vector<TokenId>& banned = rows_.banned.values;
  if (std::ssize(banned) == first_ban) return;
  const std::vector<TokenId> bans(banned.begin() + first_ban, banned.end());
  banned.resize(static_cast<std::size_t>(first_ban));
  mask.ban_if(
      [&](TokenId token) { return std::find(bans.begin(), bans.end(), token) != bans.end(); });
}

NANOVLLM_INLINE std::span<const TokenBias> StepSampling::sum_of_biases() {
  sort_stably(biases_, [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
  std::size_t count = 0;
  for (const TokenBias& bias : biases_) {
    if (count > 0 && biases_[count - 1].token == bias.token)
      biases_[count - 1].bias += bias.bias;
    else
      biases_[count++] = bias;
  }
  return std::span(biases_).first(count);
}

NANOVLLM_INLINE void StepSampling::end_edits(std::size_t num_rows) {
  edits_.rows.resize(num_rows);
  const auto end = [&](auto& lists) {
    lists.starts.resize(num_rows + 1, static_cast<std::int32_t>(lists.values.size()));
  };
  if (!edits_.functor_arguments.empty()) {
    edits_.functor_arguments.resize(num_rows);
    edits_.previous.resize(num_rows);
  }
  end(edits_.biases);
  end(edits_.chosen);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
