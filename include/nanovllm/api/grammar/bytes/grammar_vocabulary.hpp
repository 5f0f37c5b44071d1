#pragma once
/// The tokens of a tokenizer as a grammar meets them: strings of bytes, in a tree.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// Which bytes each token stands for, and which tokens end a text. Made once for a tokenizer and
/// shared by all constraints; immutable and thread-safe. For 150,000 tokens it takes some 0.1 s to
/// make and 10 MB.
class GrammarVocabulary {
 public:
  /// The tokens of `tokenizer`. Special ones stand for no text and are never allowed, unless they
  /// are stop tokens; added ones that are not special stand for what they spell. Without stop
  /// tokens a text ends where nothing can follow. Throws RequestError when a stop token is not the
  /// tokenizer's, and ConfigError when a byte has no token: with all 256 any text can be spelt, so
  /// that something can always follow.
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

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <array>
#include <limits>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

NANOVLLM_GRAMMAR_INLINE std::vector<std::string_view> text_of_tokens(const Tokenizer& tokenizer) {
  std::vector<std::string_view> tokens(tokenizer.vocab_size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!tokenizer.is_special(id)) tokens[i] = tokenizer.token_bytes(id);
  }
  return tokens;
}

}  // namespace detail

NANOVLLM_GRAMMAR_INLINE GrammarVocabulary::GrammarVocabulary(
    const Tokenizer& tokenizer, std::span<const TokenId> stop_token_ids)
    : GrammarVocabulary(detail::text_of_tokens(tokenizer), stop_token_ids) {}

NANOVLLM_GRAMMAR_INLINE GrammarVocabulary::GrammarVocabulary(
    std::span<const std::string_view> tokens, std::span<const TokenId> stop_token_ids)
    : stop_token_ids_(stop_token_ids.begin(), stop_token_ids.end()) {
  for (TokenId token : stop_token_ids) {
    check<RequestError>(token >= 0 && static_cast<std::size_t>(token) < tokens.size(),
                        "the stop token ", token, " is not one of the vocabulary's ",
                        tokens.size());
  }
  std::vector<TokenId> sorted;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    begins_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    const auto id = static_cast<TokenId>(i);
    if (tokens[i].empty() || is_stop(id)) continue;
    check<ConfigError>(tokens[i].size() <= std::numeric_limits<std::uint16_t>::max(), "token ", id,
                       " has ", tokens[i].size(), " bytes, more than 65535");
    bytes_ += tokens[i];
    max_token_bytes_ = std::max(max_token_bytes_, tokens[i].size());
    sorted.push_back(id);
  }
  begins_.push_back(static_cast<std::uint32_t>(bytes_.size()));

  // In order, the tokens below a node follow it, and what a token has in common with the one before
  // has its nodes already.
  std::sort(sorted.begin(), sorted.end(),
            [&](TokenId a, TokenId b) { return bytes(a) < bytes(b); });
  std::vector<std::size_t> open;  // the nodes that lead to the last one
  const auto close = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
  };
  std::string_view last;
  std::array<bool, 256> has_token{};
  for (TokenId token : sorted) {
    const std::string_view text = bytes(token);
    std::size_t common = static_cast<std::size_t>(
        std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    common = std::min(common, text.size() - 1);  // of equal tokens each has its node
    close(common);
    for (std::size_t depth = common; depth < text.size(); ++depth) {
      open.push_back(nodes_.size());
      nodes_.push_back(
          {0, -1, static_cast<std::uint16_t>(depth), static_cast<std::uint8_t>(text[depth])});
    }
    nodes_.back().token = token;
    if (text.size() == 1) has_token[static_cast<std::uint8_t>(text[0])] = true;
    last = text;
  }
  close(0);
  const auto missing = std::find(has_token.begin(), has_token.end(), false);
  check<ConfigError>(missing == has_token.end(), "the vocabulary has no token for the byte ",
                     missing - has_token.begin(), "; a grammar needs all 256");
}

NANOVLLM_GRAMMAR_INLINE bool GrammarVocabulary::is_stop(TokenId token) const {
  return std::find(stop_token_ids_.begin(), stop_token_ids_.end(), token) != stop_token_ids_.end();
}

NANOVLLM_GRAMMAR_INLINE std::string_view GrammarVocabulary::bytes(TokenId token) const {
  if (token < 0 || token >= vocab_size()) return {};
  const auto i = static_cast<std::size_t>(token);
  return std::string_view(bytes_).substr(begins_[i], begins_[i + 1] - begins_[i]);
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
