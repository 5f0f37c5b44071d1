#pragma once
/// Who chooses the next tokens of a request's sequences, where each draws candidates alone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"

namespace nanovllm {

struct Choice;

/// The sequences of its request share a prompt, and are those of the last choice after it. Samples
/// are numbered as the sequences are.
class TokenChooser {
 public:
  using Sequences = std::span<const std::unique_ptr<RequestSequence>>;

  virtual ~TokenChooser() = default;

  /// Sequence `sample` has drawn: its likeliest next tokens, `SequenceTerms::num_candidates` of
  /// them.
  virtual void take(std::int32_t sample, const TokenId* tokens, const float* logprobs) noexcept = 0;
  /// Whether sequence `sample` has a likelihood. One without has tokens that are not allowed.
  [[nodiscard]] virtual bool is_alive(std::int32_t sample) const noexcept = 0;
  /// All have drawn. Returns what each of `sequences` becomes, for `Choices::apply`; nothing if it
  /// is over.
  [[nodiscard]] virtual std::span<const Choice> choose(Sequences sequences) = 0;
  /// It is over: the first `num_wanted` of `sequences` get the completions, best first. Returns how
  /// each sequence ends; those without a completion like the first.
  [[nodiscard]] virtual std::vector<FinishReason> complete(Sequences sequences,
                                                           std::size_t num_wanted) = 0;
};

/// The chooser of a request with `terms`, which outlive it, that has a `beam_width`; sets
/// `num_candidates`. Throws RequestError if the samplers cannot list so many.
[[nodiscard]] std::unique_ptr<TokenChooser> search_with_beams(SequenceTerms& terms,
                                                              std::int32_t num_prompt_tokens);
NANOVLLM_DOOR(search_with_beams);

}  // namespace nanovllm
