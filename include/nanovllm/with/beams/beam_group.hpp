#pragma once
/// The beams of one request: who has drawn what, and what each becomes when all have.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"
#include "nanovllm/engine/request/token_chooser.hpp"
#include "nanovllm/sched/choices.hpp"
#include "nanovllm/with/beams/beam_search.hpp"

namespace nanovllm {

/// Joins a BeamSearch, which knows beams by their rank, and the sequences that compute them. The
/// candidates of a beam are kept here until all beams have theirs, whatever becomes of its blocks.
class BeamGroup final : public TokenChooser {
 public:
  explicit BeamGroup(const BeamSearchTerms& terms);

  void take(std::int32_t sample, const TokenId* tokens, const float* logprobs) noexcept override;

  /// The likeliest child of a beam stays where its parent is; the others go to places that run if
  /// their parents do.
  [[nodiscard]] std::span<const Choice> choose(Sequences sequences) override;

  [[nodiscard]] std::vector<FinishReason> complete(Sequences sequences,
                                                   std::size_t num_wanted) override;

  /// Where masks leave fewer continuations than beams, the others have tokens that are not allowed,
  /// and a score of -inf.
  [[nodiscard]] bool is_alive(std::int32_t sample) const noexcept override;

 private:
  void assign_seats(Sequences sequences);

  std::size_t num_listed_;
  BeamSearch search_;
  std::vector<TokenId> tokens_;     ///< [samples, num_listed]
  std::vector<float> logprobs_;     ///< like tokens_
  std::vector<std::size_t> ranks_;  ///< sample by rank
  std::vector<Choice> slots_;       ///< by rank
};

NANOVLLM_OPEN_DOOR(search_with_beams);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <limits>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE BeamGroup::BeamGroup(const BeamSearchTerms& terms)
    : num_listed_(static_cast<std::size_t>(terms.num_listed())),
      search_(terms),
      tokens_(num_listed_ * static_cast<std::size_t>(terms.width)),
      logprobs_(tokens_.size()),
      ranks_{0} {}

NANOVLLM_INLINE void BeamGroup::take(std::int32_t sample, const TokenId* tokens,
                                     const float* logprobs) noexcept {
  const std::size_t first = static_cast<std::size_t>(sample) * num_listed_;
  std::copy_n(tokens, num_listed_, tokens_.data() + first);
  std::copy_n(logprobs, num_listed_, logprobs_.data() + first);
}

NANOVLLM_INLINE std::span<const Choice> BeamGroup::choose(Sequences sequences) {
  std::vector<BeamCandidates> candidates;
  for (const std::size_t sample : ranks_) {
    const std::size_t first = sample * num_listed_;
    candidates.push_back({.tokens = std::span(tokens_).subspan(first, num_listed_),
                          .logprobs = std::span(logprobs_).subspan(first, num_listed_)});
  }
  search_.advance(candidates);
  if (search_.is_done()) return {};
  check(search_.beams().size() == sequences.size(), "beam search: ", search_.beams().size(),
        " continuations for ", sequences.size(), " beams");
  assign_seats(sequences);
  return slots_;
}

NANOVLLM_INLINE std::vector<FinishReason> BeamGroup::complete(Sequences sequences,
                                                              std::size_t num_wanted) {
  check(search_.hypotheses().size() >= num_wanted, "beam search: ", num_wanted,
        " completions are wanted, and ", search_.hypotheses().size(), " were found");
  std::vector<FinishReason> reasons(sequences.size());
  for (std::size_t i = 0; i < num_wanted; ++i) {
    const BeamSearch::Hypothesis& found = search_.hypotheses()[i];
    if (found.cumulative_logprob == -std::numeric_limits<float>::infinity()) {
      check<RequestError>(i > 0, "beam search: no text was found that the constraints allow");
      reasons[i] = FinishReason::error;
      continue;
    }
    reasons[i] =
        sequences[i]->complete(search_.tokens(found.node), found.cumulative_logprob, found.score);
  }
  std::fill(reasons.begin() + static_cast<std::ptrdiff_t>(num_wanted), reasons.end(), reasons[0]);
  return reasons;
}

NANOVLLM_INLINE bool BeamGroup::is_alive(std::int32_t sample) const noexcept {
  const auto rank = std::find(ranks_.begin(), ranks_.end(), static_cast<std::size_t>(sample));
  if (rank == ranks_.end()) return true;
  const auto& beam = search_.beams()[static_cast<std::size_t>(rank - ranks_.begin())];
  return beam.cumulative_logprob != -std::numeric_limits<float>::infinity();
}

NANOVLLM_INLINE void BeamGroup::assign_seats(Sequences sequences) {
  const std::span<const BeamSearch::Beam> beams = search_.beams();
  const auto runs = [](const Sequence& s) { return s.status == SequenceStatus::running; };
  std::vector<Choice> slots(beams.size());
  std::vector<std::size_t> ranks(beams.size());
  std::vector<bool> is_taken(sequences.size(), false);
  const auto sit = [&](std::size_t rank, std::size_t sample) {
    slots[rank].sequence = sequences[sample].get();
    ranks[rank] = sample;
    is_taken[sample] = true;
  };
  for (std::size_t r = 0; r < beams.size(); ++r) {
    const std::size_t parent = ranks_[static_cast<std::size_t>(beams[r].parent)];
    slots[r] = {.parent = sequences[parent].get(), .token = beams[r].token};
    if (!is_taken[parent]) sit(r, parent);
  }
  // Those whose parents run choose first, and take places that run first.
  for (const bool parent_runs : {true, false}) {
    for (std::size_t r = 0; r < beams.size(); ++r) {
      if (slots[r].sequence != nullptr || runs(*slots[r].parent) != parent_runs) continue;
      std::size_t place = sequences.size();
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        if (!is_taken[i] && (place == sequences.size() || (runs(*sequences[i]) == parent_runs &&
                                                           runs(*sequences[place]) != parent_runs)))
          place = i;
      }
      sit(r, place);
    }
  }
  slots_ = std::move(slots);
  ranks_ = std::move(ranks);
}

NANOVLLM_INLINE std::unique_ptr<TokenChooser> search_with_beams(SequenceTerms& terms,
                                                                std::int32_t num_prompt_tokens) {
  const SamplingParams& params = terms.params;
  const BeamSearchTerms search{.width = params.beam_width.value_or(1),
                               .length_penalty = params.length_penalty,
                               .early_stopping = params.early_stopping,
                               .max_tokens = terms.max_total_tokens - num_prompt_tokens,
                               .min_tokens = params.min_tokens,
                               .end_tokens = terms.end_tokens};
  const std::int64_t num_listed = search.num_listed();
  const std::int64_t most = std::min(std::int64_t{kMaxBeamCandidates}, terms.vocab_size);
  check<RequestError>(num_listed <= most, "beam_width ", search.width, " with ",
                      terms.end_tokens.size(), " end tokens needs the ", num_listed,
                      " likeliest tokens of every beam, but there are at most ", most);
  terms.num_candidates = static_cast<std::int32_t>(num_listed);
  return std::make_unique<BeamGroup>(search);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
