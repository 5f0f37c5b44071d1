#pragma once
/// Constraints to texts that match a regular expression, and to one of several texts.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/choice_source.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// Texts that match a pattern as a whole, then a stop token. A token may come next if some text
/// continues with it and matches, however the text is split into tokens.
///
/// The pattern (api/grammar/regex/regex_parser.hpp has the dialect) becomes a table of states when
/// the source is made. The mask of a state is computed when it is first needed, by a walk over the
/// vocabulary's tree (2 ms at worst for 150,000 tokens), and kept for all requests and for
/// the states that no token can tell apart from it.
class RegexSource final : public TokenMaskSource {
 public:
  /// Memory for the masks of one pattern. A mask has at most vocab_size / 8 bytes.
  static constexpr std::size_t kMaxMaskBytes = std::size_t{32} << 20;

  /// Throws RequestError: the pattern is not valid, not supported, matches no text, is too large or
  /// takes more than the budget.
  RegexSource(std::shared_ptr<const GrammarVocabulary> vocabulary, std::string_view pattern,
              std::size_t max_mask_bytes = kMaxMaskBytes,
              const CompileBudget& budget = CompileBudget());

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override;
  [[nodiscard]] int vocab_size() const override;

  /// States of the automaton.
  [[nodiscard]] std::size_t num_states() const;
  /// Bytes of memory when all masks that it may remember are there.
  [[nodiscard]] std::size_t max_size_bytes() const;
  /// Bytes of the masks that are remembered now.
  [[nodiscard]] std::size_t mask_bytes() const;

 private:
  struct Compiled;
  class Matcher;

  std::shared_ptr<const Compiled> compiled_;
};

/// The regular expression that `texts` match and no others. Throws RequestError when there is none.
[[nodiscard]] std::string text_choices_pattern(std::span<const std::string> texts);

/// One of `texts`, however the model spells it in tokens. Throws RequestError when there is no text
/// or one is not UTF-8.
[[nodiscard]] inline std::shared_ptr<const TokenMaskSource> text_choices(
    std::shared_ptr<const GrammarVocabulary> vocabulary, std::span<const std::string> texts) {
  return std::make_shared<const RegexSource>(std::move(vocabulary), text_choices_pattern(texts));
}

/// One of `texts` in the tokens that `tokenizer` gives for it. The steps are as few as they can be,
/// but a model that has begun with another spelling's token, `No` where the choice is `Now` in one
/// token, cannot continue with it.
[[nodiscard]] inline std::shared_ptr<const TokenMaskSource> encoded_choices(
    const Tokenizer& tokenizer, std::span<const std::string> texts,
    std::span<const TokenId> stop_token_ids) {
  std::vector<std::vector<TokenId>> choices;
  for (const std::string& text : texts) choices.push_back(tokenizer.encode(text));
  return std::make_shared<const ChoiceSource>(choices, stop_token_ids,
                                              static_cast<int>(tokenizer.vocab_size()));
}

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <cstdint>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/mask_cache.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_GRAMMAR_INLINE std::string text_choices_pattern(std::span<const std::string> texts) {
  check<RequestError>(!texts.empty(), "a constraint to choices needs at least one choice");
  std::string pattern;
  for (const std::string& text : texts) {
    if (&text != &texts.front()) pattern += '|';
    pattern += escape_regex(text);
  }
  return pattern;
}

/// What the matchers of a source share.
struct RegexSource::Compiled {
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  ByteDfa dfa;
  /// [state]: states of one number have the same mask, except for stop tokens.
  std::vector<ByteDfa::StateId> alike;
  std::size_t max_mask_bytes;
  mutable MaskCache masks;  ///< by that number

  /// Those whose bytes can be read in `state`.
  [[nodiscard]] CompactMask mask(ByteDfa::StateId state) const {
    std::vector<TokenId> tokens;
    vocabulary->for_each_token(
        state,
        [&](ByteDfa::StateId from, std::uint8_t byte, ByteDfa::StateId& to) {
          to = dfa.next(from, byte);
          return to != ByteDfa::kDead;
        },
        [&](TokenId token) { tokens.push_back(token); });
    return CompactMask(std::move(tokens), static_cast<std::size_t>(vocabulary->vocab_size()));
  }
};

class RegexSource::Matcher final : public TokenMatcher {
 public:
  explicit Matcher(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
    return std::make_unique<Matcher>(*this);
  }

  [[nodiscard]] bool accept(TokenId token) override {
    if (compiled_->vocabulary->is_stop(token)) {
      if (!compiled_->dfa.accepts(state_)) return false;
      ended_ = true;
      return true;
    }
    const std::string_view bytes = compiled_->vocabulary->bytes(token);
    if (ended_ || bytes.empty()) return false;
    const ByteDfa::StateId next = compiled_->dfa.next(state_, bytes);
    if (next == ByteDfa::kDead) return false;
    state_ = next;
    return true;
  }

  void fill(std::span<std::uint32_t> bits) const override {
    if (!is_finished()) {
      compiled_->masks
          .get(static_cast<std::size_t>(compiled_->alike[static_cast<std::size_t>(state_)]),
               [&] { return compiled_->mask(state_); })
          ->fill(bits);
    }
    if (compiled_->dfa.accepts(state_))
      for (TokenId token : compiled_->vocabulary->stop_token_ids()) allow_token(bits, token);
  }

  [[nodiscard]] bool is_finished() const override {
    return ended_ || !compiled_->dfa.goes_on(state_);
  }

 private:
  std::shared_ptr<const Compiled> compiled_;
  ByteDfa::StateId state_ = ByteDfa::kStart;
  bool ended_ = false;  // by a stop token
};

NANOVLLM_GRAMMAR_INLINE RegexSource::RegexSource(
    std::shared_ptr<const GrammarVocabulary> vocabulary, std::string_view pattern,
    std::size_t max_mask_bytes, const CompileBudget& budget) {
  ByteDfa dfa = compile_regex(pattern, budget);
  std::vector<ByteDfa::StateId> alike = dfa.alike_to_depth(vocabulary->max_token_bytes(), budget);
  const auto num_masks =
      static_cast<std::size_t>(*std::max_element(alike.begin(), alike.end())) + 1;
  const std::size_t mask_bytes =
      sizeof(CompactMask) +
      sizeof(std::uint32_t) * num_mask_words(static_cast<std::size_t>(vocabulary->vocab_size()));
  compiled_ =
      std::shared_ptr<const Compiled>(new Compiled{std::move(vocabulary),
                                                   std::move(dfa),
                                                   std::move(alike),
                                                   std::min(max_mask_bytes, num_masks * mask_bytes),
                                                   {num_masks, max_mask_bytes}});
}

NANOVLLM_GRAMMAR_INLINE std::unique_ptr<TokenMatcher> RegexSource::matcher() const {
  return std::make_unique<Matcher>(compiled_);
}

NANOVLLM_GRAMMAR_INLINE int RegexSource::vocab_size() const {
  return compiled_->vocabulary->vocab_size();
}

NANOVLLM_GRAMMAR_INLINE std::size_t RegexSource::num_states() const {
  return compiled_->dfa.num_states();
}

NANOVLLM_GRAMMAR_INLINE std::size_t RegexSource::max_size_bytes() const {
  return sizeof(Compiled) + compiled_->dfa.size_bytes() +
         compiled_->alike.size() * sizeof(ByteDfa::StateId) + compiled_->max_mask_bytes;
}

NANOVLLM_GRAMMAR_INLINE std::size_t RegexSource::mask_bytes() const {
  return compiled_->masks.size_bytes();
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
