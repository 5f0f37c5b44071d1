#pragma once
/// A constraint to one of several token sequences.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// One of the given token sequences, then a stop token. One choice may begin another.
///
/// A choice is these very tokens. A text can be spelt by tokens in several ways, and a model that
/// would rather spell it in another is kept from it; `text_choices`
/// (api/grammar/regex/regex_source.hpp) allows all of them.
class ChoiceSource final : public TokenMaskSource {
 public:
  /// Throws RequestError when there is no choice, or one contains a stop token or an id outside
  /// [0, vocab_size). Without stop tokens a text ends where nothing can follow. Time and memory
  /// follow the number of tokens.
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

#include <algorithm>
#include <string_view>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE bool ChoiceSource::Tree::is_stop(TokenId token) const {
  return std::find(stop_token_ids.begin(), stop_token_ids.end(), token) != stop_token_ids.end();
}

class ChoiceSource::Matcher final : public TokenMatcher {
 public:
  explicit Matcher(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
    return std::make_unique<Matcher>(*this);
  }

  [[nodiscard]] bool accept(TokenId token) override {
    if (tree_->is_stop(token)) {
      if (!node().is_choice) return false;
      ended_ = true;
      return true;
    }
    if (ended_) return false;
    for (const Tree::Edge& edge : node().edges) {
      if (edge.token != token) continue;
      node_ = edge.node;
      return true;
    }
    return false;
  }

  void fill(std::span<std::uint32_t> bits) const override {
    if (!ended_)
      for (const Tree::Edge& edge : node().edges) allow_token(bits, edge.token);
    if (node().is_choice)
      for (TokenId token : tree_->stop_token_ids) allow_token(bits, token);
  }

  [[nodiscard]] bool is_finished() const override { return ended_ || node().edges.empty(); }

 private:
  [[nodiscard]] const Tree::Node& node() const {
    return tree_->nodes[static_cast<std::size_t>(node_)];
  }

  std::shared_ptr<const Tree> tree_;
  std::int32_t node_ = 0;
  bool ended_ = false;  // by a stop token
};

NANOVLLM_INLINE ChoiceSource::ChoiceSource(std::span<const std::vector<TokenId>> choices,
                                           std::span<const TokenId> stop_token_ids,
                                           int vocab_size) {
  check<RequestError>(!choices.empty(), "a constraint to choices needs at least one choice");
  const auto check_id = [&](TokenId token, std::string_view what) {
    check<RequestError>(token >= 0 && token < vocab_size, what, " has the token id ", token,
                        "; the vocabulary's are [0, ", vocab_size, ")");
  };
  for (TokenId token : stop_token_ids) check_id(token, "the list of stop tokens");
  auto tree = std::make_shared<Tree>();
  tree->nodes.resize(1);
  tree->stop_token_ids.assign(stop_token_ids.begin(), stop_token_ids.end());
  tree->vocab_size = vocab_size;
  for (const std::vector<TokenId>& choice : choices) {
    std::size_t at = 0;
    for (TokenId token : choice) {
      check_id(token, "a choice");
      check<RequestError>(!tree->is_stop(token), "a choice contains the stop token ", token);
      const auto& edges = tree->nodes[at].edges;
      const auto edge =
          std::lower_bound(edges.begin(), edges.end(), token,
                           [](const Tree::Edge& e, TokenId wanted) { return e.token < wanted; });
      if (edge != edges.end() && edge->token == token) {
        at = static_cast<std::size_t>(edge->node);
        continue;
      }
      const std::size_t next = tree->nodes.size();
      tree->nodes[at].edges.insert(edge, {token, static_cast<std::int32_t>(next)});
      tree->nodes.emplace_back();
      at = next;
    }
    tree->nodes[at].is_choice = true;
  }
  tree_ = std::move(tree);
}

NANOVLLM_INLINE std::unique_ptr<TokenMatcher> ChoiceSource::matcher() const {
  return std::make_unique<Matcher>(tree_);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
