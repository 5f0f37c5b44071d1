#pragma once
/// What a tokenizer.json asks for, checked against what this library does: byte-level BPE (the kind
/// of GPT-2, Qwen and Llama 3) over text in NFC or as it comes. Anything else is refused by name.

#include <string>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/added_tokens.hpp"

namespace nanovllm {

/// One `Split` of the pre-tokeniser, with behaviour "Isolated".
struct SplitStep {
  std::string pattern;
  bool is_regex;  ///< else the pattern is searched for as it stands
};

/// More `Split`s than this are refused; real files have at most three. They are run one inside the
/// other.
inline constexpr std::size_t kMaxSplits = 64;

/// The steps of tokenization besides the vocabulary and the merges.
struct TokenizerSteps {
  bool nfc = false;
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added_tokens;
};

/// Reads the steps from `TokenizerJson::rest`. Throws LoadError naming the field, what was expected
/// and what came.
[[nodiscard]] TokenizerSteps read_tokenizer_steps(const Json& document);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/text/tokenizer_file.inc"
#endif
