#pragma once
/// The beams of one request: who has drawn what, and what each becomes when all have.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"
#include "nanovllm/sampling/beam_search.hpp"
#include "nanovllm/sched/beam_slot.hpp"

namespace nanovllm {

/// Joins a BeamSearch, which knows beams by their rank, and the sequences that compute them. The
/// candidates of a beam are kept here until all beams have theirs, whatever becomes of its blocks.
class BeamGroup {
 public:
  using Sequences = std::span<const std::unique_ptr<RequestSequence>>;

  explicit BeamGroup(const BeamSearchTerms& terms);

  /// Sequence `sample` of the request has drawn: its `num_listed` likeliest next tokens.
  void take(std::int32_t sample, const TokenId* tokens, const float* logprobs) noexcept;

  /// Whether all of `sequences` await the choice.
  [[nodiscard]] static bool is_ready(Sequences sequences) noexcept;

  /// Chooses. Returns what each of `sequences` becomes, for `Beams::reorder`; nothing if
  /// the search is over. The likeliest child of a beam stays where its parent is; the others go to
  /// places that run if their parents do.
  [[nodiscard]] std::span<const BeamSlot> choose(Sequences sequences);

  [[nodiscard]] const BeamSearch& search() const { return search_; }

  /// Whether sequence `sample` is a beam with a likelihood. Where masks leave fewer continuations
  /// than beams, the others have tokens that are not allowed, and a score of -inf.
  [[nodiscard]] bool is_alive(std::int32_t sample) const noexcept;

 private:
  void assign_seats(Sequences sequences);

  std::size_t num_listed_;
  BeamSearch search_;
  std::vector<TokenId> tokens_;     ///< [samples, num_listed]
  std::vector<float> logprobs_;     ///< like tokens_
  std::vector<std::size_t> ranks_;  ///< sample by rank
  std::vector<BeamSlot> slots_;     ///< by rank
};

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

NANOVLLM_INLINE bool BeamGroup::is_ready(Sequences sequences) noexcept {
  return std::all_of(sequences.begin(), sequences.end(),
                     [](const auto& sequence) { return sequence->awaits_choice; });
}

NANOVLLM_INLINE std::span<const BeamSlot> BeamGroup::choose(Sequences sequences) {
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

NANOVLLM_INLINE bool BeamGroup::is_alive(std::int32_t sample) const noexcept {
  const auto rank = std::find(ranks_.begin(), ranks_.end(), static_cast<std::size_t>(sample));
  if (rank == ranks_.end()) return true;
  const auto& beam = search_.beams()[static_cast<std::size_t>(rank - ranks_.begin())];
  return beam.cumulative_logprob != -std::numeric_limits<float>::infinity();
}

NANOVLLM_INLINE void BeamGroup::assign_seats(Sequences sequences) {
  const std::span<const BeamSearch::Beam> beams = search_.beams();
  const auto runs = [](const Sequence& s) { return s.status == SequenceStatus::running; };
  std::vector<BeamSlot> slots(beams.size());
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

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
