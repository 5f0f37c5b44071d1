#pragma once
/// A constraint that begins behind a marker in the text, such as the end of a thought, and one that
/// comes and goes between markers, such as that of tool calls.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/grammar_vocabulary.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// What leads to a marker.
struct MarkerLead {
  std::string marker;    ///< not empty; the first occurrence counts
  bool any_text = true;  ///< before the marker anything may come; else the marker comes at once
};

/// A text with parts that begin behind a marker and that an inner source constrains.
struct MarkerRules {
  MarkerLead first;
  bool may_end_before = false;  ///< the text may end before the first marker
  /// White space that may come between the marker and the inner text, in bytes.
  int max_whitespace = 0;
  /// Where the inner text has come to an end, what leads to the next one; the text may end there.
  /// Without it the text ends where the inner one does.
  std::optional<MarkerLead> again{};
};

/// Texts as MarkerRules describe them, then a stop token.
///
/// A marker may be one token or spelt by several. A token that holds the end of a marker and more is
/// not allowed, since the inner source could not read the rest of it.
///
/// With `again` the inner text must have an end that nothing can follow, as a closing tag is: there,
/// when the inner matcher is finished, the next lead begins.
class MarkerSource final : public TokenMaskSource {
 public:
  /// @param inner made for the same vocabulary.
  /// Throws RequestError for an empty marker.
  MarkerSource(std::shared_ptr<const GrammarVocabulary> vocabulary, MarkerRules rules,
               std::shared_ptr<const TokenMaskSource> inner);

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override;
  [[nodiscard]] int vocab_size() const override;

  /// Bytes of memory at the most, without those of the inner source.
  [[nodiscard]] std::size_t size_bytes() const;

 private:
  struct Compiled;
  class Lead;
  class Matcher;

  std::shared_ptr<const Compiled> compiled_;
};

/// What `inner` allows, behind a thought: anything up to "</think>", white space, then `inner` from
/// its beginning. The text cannot end within the thought.
[[nodiscard]] inline std::shared_ptr<const MarkerSource> after_reasoning(
    std::shared_ptr<const GrammarVocabulary> vocabulary,
    std::shared_ptr<const TokenMaskSource> inner) {
  MarkerRules rules{.first = {.marker = "</think>"}, .max_whitespace = 16};
  return std::make_shared<const MarkerSource>(std::move(vocabulary), std::move(rules),
                                              std::move(inner));
}

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/marker_source.inc"
#endif
