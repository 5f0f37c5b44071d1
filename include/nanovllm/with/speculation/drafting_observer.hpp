#pragma once
/// How the drafts of a step come about, and what becomes of them.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/draft_length.hpp"
#include "nanovllm/with/speculation/drafter.hpp"

namespace nanovllm {

/// Asks a Drafter before each step, and counts what the step makes of its drafts. A step either
/// drafts, and is planned when all tokens are known, or drafts for none and may be planned while
/// another is computed. If some of its sequences waited and others did not, the two would be
/// computed in turn, each at the price of a whole step.
class DraftingObserver final : public StepObserver {
 public:
  /// @param options  num_speculative_tokens ≥ 1.
  DraftingObserver(std::unique_ptr<Drafter> drafter, const SpeculativeConfig& options,
                   std::int64_t vocab_size, const BatchConfig& batch);

  [[nodiscard]] bool prepare(std::span<Sequence* const> running, bool is_behind) override;
  void begin(const StepPlan& plan, std::uint64_t number) override;
  void commit(const StepPlan& plan, std::uint64_t number) noexcept override;
  void cancel(const StepPlan& plan, std::uint64_t number) noexcept override;
  void forget(const Request& request) noexcept override;
  void fill(EngineStats& stats) const override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Drafted {
    Acceptance acceptance{};
    std::int32_t num_asked = 0;     ///< tokens of the step under way
    std::int32_t num_accepted = 0;  ///< of the step before, or of one before that
  };

  /// Whether a step that computes the last token of `s` may check guesses after it.
  [[nodiscard]] static bool can_draft(const Sequence& s);
  [[nodiscard]] std::int32_t choose_length(std::span<Sequence* const> running);
  void propose(std::span<Sequence* const> running);
  /// Takes what was drafted as guesses.
  void take_drafts();
  void count(const PlannedSequence& planned);
  void measure(const StepPlan& plan, Clock::time_point now);

  std::unique_ptr<Drafter> drafter_;
  const bool reads_steps_;  // the drafter follows every step
  const std::int64_t vocab_size_;
  const std::int32_t max_rows_;  // of a step of decodes
  DraftLength length_;
  std::unordered_map<std::uint64_t, Drafted> drafted_;  // by owner_id
  SpeculationStats stats_;
  // Of the step that is being planned, in the order of the requests.
  std::vector<const Acceptance*> candidates_;
  std::vector<Sequence*> asked_;
  std::vector<DraftRequest> requests_;
  std::vector<Draft> drafts_;
  std::int32_t length_under_way_ = 0;  // that the oldest step asks for
  Clock::time_point prepared_at_{};    // a step with none under way
  Clock::time_point last_commit_{};
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <iterator>
#include <utility>

#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

NANOVLLM_INLINE DraftingObserver::DraftingObserver(std::unique_ptr<Drafter> drafter,
                                                   const SpeculativeConfig& options,
                                                   std::int64_t vocab_size,
                                                   const BatchConfig& batch)
    : drafter_(std::move(drafter)),
      reads_steps_(drafter_->reads_steps()),
      vocab_size_(vocab_size),
      max_rows_(std::min(batch.num_logits(), batch.max_num_batched_tokens)),
      length_(options.num_speculative_tokens, options.adaptive) {
  stats_.accepted_by_position.resize(static_cast<std::size_t>(options.num_speculative_tokens));
}

NANOVLLM_INLINE bool DraftingObserver::can_draft(const Sequence& s) {
  return !s.is_chosen && s.output == RowKind::draw && s.scores.count == 0 &&
         s.num_tokens() - s.num_computed_tokens == 1 && s.num_tokens() + 1 < s.max_total_tokens;
}

NANOVLLM_INLINE bool DraftingObserver::prepare(std::span<Sequence* const> running, bool is_behind) {
  if (is_behind) return reads_steps_ || length_under_way_ > 0 || choose_length(running) > 0;
  prepared_at_ = Clock::now();
  for (Sequence* s : running) s->guesses.clear();
  length_under_way_ = choose_length(running);
  if (length_under_way_ == 0 && !reads_steps_) return false;
  try {
    propose(running);
  } catch (...) {
    ++stats_.num_failed;
    for (Sequence* s : running) s->guesses.clear();
  }
  return false;
}

NANOVLLM_INLINE std::int32_t DraftingObserver::choose_length(std::span<Sequence* const> running) {
  candidates_.clear();
  try {
    for (Sequence* s : running) {
      if (can_draft(*s))
        candidates_.push_back(&drafted_[RequestSequence::of(*s).owner_id()].acceptance);
    }
  } catch (...) {  // no memory
    return 0;
  }
  return length_.choose(candidates_, running.size() - candidates_.size(), max_rows_);
}

NANOVLLM_INLINE void DraftingObserver::propose(std::span<Sequence* const> running) {
  requests_.clear();
  asked_.clear();
  for (Sequence* s : running) {
    if (length_under_way_ == 0 || !can_draft(*s)) continue;
    const std::uint64_t id = RequestSequence::of(*s).owner_id();
    Drafted& drafted = drafted_.at(id);
    drafted.num_asked = length_under_way_;
    asked_.push_back(s);
    requests_.push_back(
        {.sequence = id,
         .tokens = s->tokens,
         .num_prompt_tokens = s->num_prompt_tokens,
         .max_tokens = std::min(length_under_way_, s->max_total_tokens - s->num_tokens() - 1),
         .num_accepted = std::exchange(drafted.num_accepted, 0),
         .sampling = RequestSequence::of(*s).sampling_row(s->num_tokens())});
  }
  if (drafts_.size() < requests_.size()) drafts_.resize(requests_.size());
  for (Draft& draft : drafts_) draft.tokens.clear();
  drafter_->propose(requests_, std::span(drafts_).first(requests_.size()));
  take_drafts();
}

NANOVLLM_INLINE void DraftingObserver::take_drafts() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const std::vector<TokenId>& tokens = drafts_[i].tokens;
    const auto exists = [this](TokenId token) { return token >= 0 && token < vocab_size_; };
    const auto most = std::min(std::ssize(tokens), std::ptrdiff_t{requests_[i].max_tokens});
    const auto end = std::find_if_not(tokens.begin(), tokens.begin() + most, exists);
    asked_[i]->guesses.assign(tokens.begin(), end);
  }
}

NANOVLLM_INLINE void DraftingObserver::commit(const StepPlan& plan, std::uint64_t) noexcept {
  const Clock::time_point now = Clock::now();
  try {
    drafter_->commit(plan);
  } catch (...) {
    ++stats_.num_failed;
    drafter_->cancel();
  }
  if (length_under_way_ > 0) {
    ++stats_.num_steps;
    for (const PlannedSequence& planned : plan.sequences) count(planned);
  }
  measure(plan, now);
  length_.count(length_under_way_);
  last_commit_ = now;
  length_under_way_ = 0;  // a step behind it drafts for none
}

NANOVLLM_INLINE void DraftingObserver::begin(const StepPlan& plan, std::uint64_t) {
  drafter_->begin(plan);
}
NANOVLLM_INLINE void DraftingObserver::cancel(const StepPlan&, std::uint64_t) noexcept {
  drafter_->cancel();
}

NANOVLLM_INLINE void DraftingObserver::measure(const StepPlan& plan, Clock::time_point now) {
  if (static_cast<std::size_t>(plan.num_decodes) != plan.sequences.size()) return;
  // From one commit to the next, unless the engine had nothing to do in between.
  const bool is_pause = prepared_at_ - last_commit_ > now - prepared_at_;
  const Clock::time_point begin = is_pause ? prepared_at_ : last_commit_;
  length_.measure(length_under_way_, plan.num_tokens,
                  std::chrono::duration<double>(now - begin).count());
}

NANOVLLM_INLINE void DraftingObserver::count(const PlannedSequence& planned) {
  const RowUse draws = planned.rows.of(RowKind::draw);
  const auto found = drafted_.find(RequestSequence::of(*planned.sequence).owner_id());
  if (draws.count == 0 || found == drafted_.end()) return;
  Drafted& drafted = found->second;
  const std::int32_t num_asked = std::exchange(drafted.num_asked, 0);
  const std::int32_t num_given = planned.sequence->num_known_tokens() - draws.first - 1;
  if (num_asked == 0 || num_given <= 0) return;  // it had ended before
  const std::int32_t num_drafted = draws.count - 1, num_accepted = num_given - 1;
  const bool has_ended = planned.sequence->status == SequenceStatus::finished;
  const bool refused = num_accepted < num_drafted && !has_ended;
  for (Acceptance* acceptance : {&drafted.acceptance, &length_.all()})
    acceptance->add(num_asked, num_drafted, num_accepted, refused);
  drafted.num_accepted = num_accepted;
  stats_.num_drafts += num_drafted > 0 ? 1 : 0;
  stats_.num_drafted += num_drafted;
  stats_.num_accepted += num_accepted;
  for (std::int32_t i = 0; i < num_accepted; ++i)
    ++stats_.accepted_by_position[static_cast<std::size_t>(i)];
}

NANOVLLM_INLINE void DraftingObserver::forget(const Request& request) noexcept {
  for (const auto& sequence : request.sequences()) {
    drafted_.erase(sequence->owner_id());
    drafter_->forget(sequence->owner_id());
  }
}

NANOVLLM_INLINE void DraftingObserver::fill(EngineStats& stats) const {
  stats.extras.update(stats_);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
