#pragma once
/// The rules of draws after guesses: of rows of a step that depend on tokens which are not drawn.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// One sequence's, from step to step.
class RulesAhead {
 public:
  /// A step begins to ask for the rules of the rows of `s`.
  void begin_rows(const Sequence& s) { num_ruled_guesses_ = s.num_guesses; }

  /// There are no rules for the draw of token `position`: the step checks the guesses before the
  /// last one before it. Returns false if there are none before it.
  [[nodiscard]] bool end_rows(const Sequence& s, std::int32_t position) {
    const std::int32_t num_ahead = position - s.num_known_tokens();
    if (s.num_guesses == 0 || num_ahead <= 0) return false;
    num_ruled_guesses_ = num_ahead - 1;
    return true;
  }

  /// Whether the step may give token `position`, if guesses before it are right.
  [[nodiscard]] bool has_row(const Sequence& s, std::int32_t position) const {
    return s.num_guesses == 0 || position - s.num_known_tokens() <= num_ruled_guesses_;
  }

  /// Whether guess `i` of the step is `token`, and the step may give the one after it.
  [[nodiscard]] bool is_as_guessed(const Sequence& s, std::size_t i, TokenId token) const {
    return std::cmp_less(i, num_ruled_guesses_) && s.guesses[i] == token;
  }

  /// `processors`, which have taken all known tokens, in the state in which token `position` is
  /// drawn. The calls of a step are in the order of positions. Throws what a processor does that is
  /// told of a guess.
  [[nodiscard]] const SequenceProcessors& before(const Sequence& s, std::int32_t position,
                                                 const SequenceProcessors& processors) {
    const std::int32_t num_ahead = position - s.num_known_tokens();
    if (num_ahead <= 0) return processors;
    if (num_ahead == 1) ahead_ = processors.fork();  // the next call is for 2
    ahead_->accept(s.guesses[static_cast<std::size_t>(num_ahead) - 1]);
    return *ahead_;
  }

 private:
  std::int32_t num_ruled_guesses_ = 0;
  std::unique_ptr<SequenceProcessors> ahead_;
};

}  // namespace nanovllm
