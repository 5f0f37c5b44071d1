#pragma once
/// A constraint to texts that match a regular expression.

#include <cstddef>
#include <memory>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/byte_dfa.hpp"
#include "nanovllm/grammar/grammar_vocabulary.hpp"
#include "nanovllm/grammar/mask_cache.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// Texts that match a pattern as a whole, then a stop token. A token may come next if some text
/// goes on with it and matches, however the text is split into tokens.
///
/// The pattern (grammar/regex_parser.hpp has the dialect) becomes a table of states when the source
/// is made. The mask of a state is worked out when it is first asked for, by a walk over the
/// vocabulary's tree (2 ms at worst for 150,000 tokens), and remembered for all requests and for
/// the states that no token can tell from it.
class RegexSource final : public TokenMaskSource {
 public:
  /// Memory for the masks of one pattern. A mask has at most vocab_size / 8 bytes.
  static constexpr std::size_t kMaxMaskBytes = std::size_t{32} << 20;

  /// Throws RequestError: the pattern is not valid, not supported, matches no text or is too large.
  RegexSource(std::shared_ptr<const GrammarVocabulary> vocabulary, std::string_view pattern,
              std::size_t max_mask_bytes = kMaxMaskBytes);

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

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/regex_source.inc"
#endif
