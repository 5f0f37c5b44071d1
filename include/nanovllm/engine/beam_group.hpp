#pragma once
/// The beams of one request: who has drawn what, and what each becomes when all have.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/request_sequence.hpp"
#include "nanovllm/sampling/beam_search.hpp"
#include "nanovllm/sched/step_plan.hpp"

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

  /// Chooses. Returns what each of `sequences` becomes, for `Scheduler::reseat`; nothing if the
  /// search is over. The likeliest child of a beam stays where its parent is; the others go to
  /// places that run if their parents do.
  [[nodiscard]] std::span<const BeamSeat> choose(Sequences sequences);

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
  std::vector<BeamSeat> seats_;     ///< by rank
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/beam_group.inc"
#endif
