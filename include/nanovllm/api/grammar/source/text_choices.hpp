#pragma once
/// Constraints to one of several texts.

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/choice_source.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// The regular expression that `texts` match and no others. Throws RequestError when there is none.
[[nodiscard]] inline std::string text_choices_pattern(std::span<const std::string> texts) {
  check<RequestError>(!texts.empty(), "a constraint to choices needs at least one choice");
  std::string pattern;
  for (const std::string& text : texts) {
    if (&text != &texts.front()) pattern += '|';
    pattern += escape_regex(text);
  }
  return pattern;
}

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
