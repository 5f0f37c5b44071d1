#pragma once
/// A constraint to one of several token sequences.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// One of the given token sequences, then a stop token. One choice may begin another.
///
/// A choice is these very tokens. A text can be spelt by tokens in several ways, and a model that
/// would rather spell it in another is kept from it; `text_choices` (grammar/text_choices.hpp)
/// allows all of them.
class ChoiceSource final : public TokenMaskSource {
 public:
  /// Throws RequestError when there is no choice or no stop token, or a choice contains a stop
  /// token or an id outside [0, vocab_size). Time and memory follow the number of tokens.
  ChoiceSource(std::span<const std::vector<TokenId>> choices,
               std::span<const TokenId> stop_token_ids, int vocab_size);

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override;
  [[nodiscard]] int vocab_size() const override { return tree_->vocab_size; }

 private:
  /// The choices as a tree of their beginnings, node 0 the empty one.
  struct Tree {
    struct Edge {
      TokenId token;
      std::int32_t node;
    };
    struct Node {
      std::vector<Edge> edges;  ///< sorted by token
      bool is_choice = false;   ///< the beginning is a choice: the text may end
    };

    [[nodiscard]] bool is_stop(TokenId token) const;

    std::vector<Node> nodes;
    std::vector<TokenId> stop_token_ids;
    int vocab_size;
  };
  class Matcher;

  std::shared_ptr<const Tree> tree_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/sampling/choice_source.inc"
#endif
