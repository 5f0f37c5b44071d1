#pragma once
/// The tokens of a tokenizer as a grammar meets them: strings of bytes, in a tree.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// Which bytes each token stands for, and which tokens end a text. Made once for a tokenizer and
/// shared by all constraints; immutable and thread-safe. For 150,000 tokens it takes some 0.1 s to
/// make and 10 MB.
class GrammarVocabulary {
 public:
  /// The tokens of `tokenizer`. Special ones stand for no text and are never allowed, unless they
  /// are stop tokens; added ones that are not special stand for what they spell. Throws RequestError when there is no stop token or one is not the
  /// tokenizer's, and ConfigError when a byte has no token of its own: with all 256 any text can be
  /// spelt, so that whatever was allowed, something can follow.
  GrammarVocabulary(const Tokenizer& tokenizer, std::span<const TokenId> stop_token_ids);

  /// tokens[i] has the bytes of token i, none if it is never allowed. Throws the same.
  GrammarVocabulary(std::span<const std::string_view> tokens,
                    std::span<const TokenId> stop_token_ids);

  [[nodiscard]] int vocab_size() const { return static_cast<int>(begins_.size()) - 1; }
  [[nodiscard]] std::span<const TokenId> stop_token_ids() const { return stop_token_ids_; }
  [[nodiscard]] bool is_stop(TokenId token) const;

  /// The bytes of a token; empty for one that stands for no text, stop tokens among them, and for
  /// an id that is out of range.
  [[nodiscard]] std::string_view bytes(TokenId token) const;

  /// Of the longest token.
  [[nodiscard]] std::size_t max_token_bytes() const { return max_token_bytes_; }

  /// Calls `use(token)` for every token whose bytes can be read from `from`, in no order.
  /// `step(state, byte, next)` says whether `byte` can be read in `state`, and then sets `next`.
  /// A byte that tokens begin with in common is stepped over once.
  template <class State, class Step, class Use>
  void for_each_token(const State& from, Step&& step, Use&& use) const {
    std::vector<State> path(max_token_bytes_ + 1, from);
    for (std::size_t i = 0; i < nodes_.size();) {
      const Node& node = nodes_[i];
      if (!step(path[node.depth], node.byte, path[node.depth + 1u])) {
        i = node.end;
        continue;
      }
      if (node.token >= 0) use(node.token);
      ++i;
    }
  }

 private:
  /// A beginning of tokens, without its last byte that of the node above.
  struct Node {
    std::uint32_t end;  ///< nodes up to here are below this one
    TokenId token;      ///< the token that ends here; -1 for none
    std::uint16_t depth;
    std::uint8_t byte;
  };

  std::string bytes_;                  // of all tokens
  std::vector<std::uint32_t> begins_;  // [token], and the end of the last one
  std::vector<Node> nodes_;            // each before what is below it
  std::vector<TokenId> stop_token_ids_;
  std::size_t max_token_bytes_ = 0;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/grammar_vocabulary.inc"
#endif
