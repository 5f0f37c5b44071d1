#pragma once
/// A constraint to texts of a context-free grammar.

#include <cstddef>
#include <memory>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/grammar_network.hpp"
#include "nanovllm/grammar/grammar_terminal.hpp"
#include "nanovllm/grammar/grammar_vocabulary.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// Texts of a grammar, then a stop token. A token may come next if and only if some text of the
/// grammar goes on with it, however the text is split into tokens.
///
/// All readings of a text are followed at once, as Earley's parser does it ("An Efficient
/// Context-Free Parsing Algorithm", 1970). Within strings a mask is a remembered one and a look at
/// the tokens that end the string; elsewhere it is a walk over the vocabulary's tree, which ends
/// early, since little may follow. A grammar of JSON has a handful of readings at a time; one that
/// comes to have more than kMaxReadings ends the request with a RequestError.
class GrammarSource final : public TokenMaskSource {
 public:
  static constexpr std::size_t kMaxReadings = 10'000;
  /// Memory for the masks of terminals that are not plain strings.
  static constexpr std::size_t kMaxMaskBytes = std::size_t{8} << 20;

  /// @param strings for the same vocabulary: the masks of JSON strings, which sources share.
  /// Throws RequestError as make_grammar_network does.
  GrammarSource(std::shared_ptr<const GrammarVocabulary> vocabulary,
                std::shared_ptr<TerminalMasks> strings, std::string_view ebnf,
                const GrammarLimits& limits = {});

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override;
  [[nodiscard]] int vocab_size() const override;

  /// Bytes of memory when all masks that it may remember are there, but for those of `strings`.
  [[nodiscard]] std::size_t size_bytes() const;

 private:
  struct Compiled;
  class Matcher;

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/grammar_source.inc"
#endif
