#pragma once
/// Parses the JSON of a tokenizer.json; text/tokenizer_file.hpp says what it means.

#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/vocabulary.hpp"

namespace nanovllm {

/// A tokenizer.json: its two long lists, and everything else as an ordinary JSON value.
struct TokenizerJson {
  Json rest;                 ///< the document; model.vocab and model.merges are null
  StringList names;          ///< keys of model.vocab, in the file's order
  std::vector<TokenId> ids;  ///< values of model.vocab, each in [0, kMaxTokenIds)
  StringList merge_sides;    ///< left and right side of each merge, by rank
};

/// Both spellings of merges, "a b" and ["a", "b"], give the same lists. Throws LoadError when
/// `text` is not JSON or has no vocabulary or merges.
[[nodiscard]] TokenizerJson parse_tokenizer_json(std::string_view text);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/text/tokenizer_json.inc"
#endif
