#pragma once
/// The tokens that a tokenizer.json adds to a text: its `TemplateProcessing`, for one text alone.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// What stands before and after the tokens of a text. Qwen3-Embedding has `<|endoftext|>` after,
/// Qwen3 has nothing.
struct SequenceTemplate {
  std::vector<TokenId> before{}, behind{};

  /// How many tokens it adds.
  [[nodiscard]] std::size_t size() const { return before.size() + behind.size(); }

  /// `ids`, the tokens of a text, with those of the template around them. Of more than `most`
  /// tokens in all, the first of the text are left out. `most` must be at least size().
  [[nodiscard]] std::vector<TokenId> wrap(std::vector<TokenId> ids,
                                          std::size_t most = std::size_t(-1)) const {
    const std::size_t num_kept = std::min(ids.size(), most - size());
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(num_kept));
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), behind.begin(), behind.end());
    return ids;
  }
};

}  // namespace nanovllm
