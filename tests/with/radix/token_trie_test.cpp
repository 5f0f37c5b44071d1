#include "nanovllm/with/radix/token_trie.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using NodeId = TokenTrie::NodeId;

void insert(TokenTrie& trie, NodeId parent, NodeId node, const Tokens& tokens) {
  std::copy(tokens.begin(), tokens.end(), trie.tokens(node).begin());
  trie.insert(parent, node, static_cast<std::int32_t>(tokens.size()));
}

std::vector<NodeId> children_of(const TokenTrie& trie, NodeId parent) {
  std::vector<NodeId> nodes;
  trie.check_children(parent, [&](NodeId node) { nodes.push_back(node); });
  return nodes;
}

std::int32_t num_common(const Tokens& a, const Tokens& b) {
  const auto most = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<std::int32_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first -
                                   a.begin());
}

}  // namespace

TEST_CASE("the child with the longest common beginning is found", "[token_trie]") {
  TokenTrie trie(8, 4, 1);
  const NodeId root = trie.root();
  CHECK(!trie.has_children(root));
  CHECK(trie.find(root, Tokens{1, 2}).node == TokenTrie::kNone);
  insert(trie, root, 3, {5, 6, 7, 8});
  insert(trie, root, 0, {5, 6});
  insert(trie, root, 7, {1});
  insert(trie, 0, 2, {9, 9});  // below a child
  CHECK(trie.has_children(root));
  CHECK((trie.size(0) == 2 && trie.size(3) == 4));
  CHECK(children_of(trie, root) == std::vector<NodeId>{7, 0, 3});  // one before those it begins
  CHECK(children_of(trie, 0) == std::vector<NodeId>{2});

  const TokenTrie::Found found = trie.find(root, Tokens{5, 6, 7, 1});
  CHECK((found.node == 3 && found.num_common == 3));
  CHECK(trie.find(root, Tokens{5, 6}).num_common == 2);
  CHECK(trie.find(root, Tokens{2, 1}).node == TokenTrie::kNone);
  CHECK(trie.find(root, Tokens{9, 9}).node == TokenTrie::kNone);  // no child of the root
  CHECK(trie.find(0, Tokens{9, 9}).node == 2);

  trie.erase(root, 3);
  CHECK(trie.find(root, Tokens{5, 6, 7, 1}).node == 0);
  CHECK(children_of(trie, root) == std::vector<NodeId>{7, 0});
}

TEST_CASE("a token trie agrees with sorted lists on random operations", "[token_trie]") {
  std::mt19937 random(20261125);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  constexpr int kNumNodes = 40, kCapacity = 40;
  for (const int num_letters : {2, 5}) {
    TokenTrie trie(kNumNodes, kCapacity, random());
    // The children of the root and of node 0, which is never in the tree itself.
    std::map<NodeId, std::map<Tokens, NodeId>> model{{trie.root(), {}}, {0, {}}};
    std::set<NodeId> unused;
    for (NodeId node = 1; node < kNumNodes; ++node) unused.insert(node);
    const auto random_tokens = [&] {
      Tokens tokens(static_cast<std::size_t>(1 + below(below(2) == 0 ? 4 : kCapacity)));
      for (TokenId& token : tokens) token = below(num_letters) * below(2);
      return tokens;
    };
    for (int step = 0; step < 3000; ++step) {
      const NodeId parent = below(2) == 0 ? trie.root() : 0;
      std::map<Tokens, NodeId>& children = model[parent];
      const Tokens tokens = random_tokens();
      if (below(3) > 0 && !unused.empty() && !children.contains(tokens)) {
        const NodeId node = *unused.begin();
        unused.erase(unused.begin());
        insert(trie, parent, node, tokens);
        children[tokens] = node;
      } else if (!children.empty()) {
        const auto at = std::next(children.begin(), below(static_cast<int>(children.size())));
        trie.erase(parent, at->second);
        unused.insert(at->second);
        children.erase(at);
      }
      std::vector<NodeId> sorted;
      for (const auto& [held, node] : children) sorted.push_back(node);
      REQUIRE(children_of(trie, parent) == sorted);
      REQUIRE(trie.has_children(parent) == !children.empty());

      const Tokens wanted = random_tokens();
      const TokenTrie::Found found = trie.find(parent, wanted);
      std::int32_t most = 0;
      for (const auto& [held, node] : children) most = std::max(most, num_common(held, wanted));
      REQUIRE(found.num_common == most);
      if (most == 0) continue;
      const auto held = std::ranges::find_if(
          children, [&](const auto& child) { return child.second == found.node; });
      REQUIRE(held != children.end());
      REQUIRE(num_common(held->first, wanted) == most);
    }
  }
}

TEST_CASE("siblings that come in order are found in few steps", "[token_trie]") {
  constexpr int kNumNodes = 4096;
  TokenTrie trie(kNumNodes, 1, 11);
  for (NodeId node = 0; node < kNumNodes; ++node) insert(trie, trie.root(), node, {node});
  CHECK(trie.longest_walk(trie.root()) < 50);  // a list would have 4096
  CHECK(children_of(trie, trie.root()).size() == kNumNodes);
}
