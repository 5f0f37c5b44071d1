#include "nanovllm/kv/prefix/prefix_index.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

/// Every prefix collides with every other.
struct ConstantHash {
  static std::uint64_t hash(std::uint64_t, std::span<const TokenId>) { return 42; }
};

using Tokens = std::array<TokenId, 2>;

}  // namespace

TEMPLATE_TEST_CASE("equal content shares one identity, other content never does", "[prefix_index]",
                   XxPrefixHash, ConstantHash) {
  PrefixIndex<2, TestType> index(8);
  index.insert(3, {}, Tokens{1, 2});
  index.insert(5, {}, Tokens{1, 2});
  index.insert(6, {}, Tokens{2, 1});
  index.insert(7, index.key(3), Tokens{1, 2});
  REQUIRE(index.key(3).id == index.key(5).id);
  REQUIRE(index.key(3).id != index.key(6).id);
  REQUIRE(index.key(3).id != index.key(7).id);
  REQUIRE(index.find(index.key(5), Tokens{1, 2}) == 7);
  REQUIRE(index.find(index.key(6), Tokens{1, 2}) == std::nullopt);
  REQUIRE(index.find({}, Tokens{9, 9}) == std::nullopt);
  index.check_invariants();
}

TEMPLATE_TEST_CASE("an identity is not given out again when all its blocks are gone",
                   "[prefix_index]", XxPrefixHash, ConstantHash) {
  PrefixIndex<2, TestType> index(4);
  index.insert(0, {}, Tokens{1, 2});
  index.insert(1, index.key(0), Tokens{3, 4});
  const PrefixKey old = index.key(0);
  index.erase(0);
  index.insert(0, {}, Tokens{5, 6});
  REQUIRE(index.key(0).id != old.id);
  REQUIRE(index.find(index.key(0), Tokens{3, 4}) == std::nullopt);
  index.check_invariants();
}

TEMPLATE_TEST_CASE("the newest of equal blocks is found, and when it is gone the next newer",
                   "[prefix_index]", XxPrefixHash, ConstantHash) {
  PrefixIndex<2, TestType> index(4);
  for (const BlockId block : {0, 1, 2}) index.insert(block, {}, Tokens{1, 2});
  index.insert(3, {}, Tokens{3, 4});
  REQUIRE(index.find({}, Tokens{1, 2}) == 2);
  REQUIRE(index.duplicate(0) == 1);
  REQUIRE(index.duplicate(2) == 1);
  REQUIRE(index.duplicate(3) == std::nullopt);
  index.erase(1);
  index.check_invariants();
  REQUIRE(index.duplicate(0) == 2);
  index.erase(2);
  index.check_invariants();
  REQUIRE(index.find({}, Tokens{1, 2}) == 0);
  REQUIRE(index.duplicate(0) == std::nullopt);
  REQUIRE(index.find({}, Tokens{3, 4}) == 3);
}

TEMPLATE_TEST_CASE("the index agrees with a map of whole prefixes on random operations",
                   "[prefix_index]", XxPrefixHash, ConstantHash) {
  constexpr int kNumBlocks = 12;
  std::mt19937 random(8128);
  PrefixIndex<2, TestType> index(kNumBlocks);
  std::map<BlockId, std::vector<TokenId>> model;  // block to all tokens up to its end
  for (int step = 0; step < 5000; ++step) {
    const auto block = static_cast<BlockId>(random() % kNumBlocks);
    const auto parent = static_cast<BlockId>(random() % kNumBlocks);
    const Tokens tokens{static_cast<TokenId>(random() % 2), static_cast<TokenId>(random() % 2)};
    REQUIRE(index.contains(block) == model.contains(block));
    if (model.contains(block)) {
      index.erase(block);
      model.erase(block);
      continue;
    }
    std::vector<TokenId> prefix;
    PrefixKey key;
    if (model.contains(parent) && model[parent].size() < 8) {
      prefix = model[parent];
      key = index.key(parent);
    }
    prefix.insert(prefix.end(), tokens.begin(), tokens.end());
    const std::optional<BlockId> found = index.find(key, tokens);
    bool exists = false;
    for (const auto& [b, content] : model) exists |= content == prefix;
    // Content whose parents were all erased and entered again is forgotten, so only hits are exact.
    if (found) REQUIRE(model[*found] == prefix);
    if (!exists) REQUIRE_FALSE(found);
    index.insert(block, key, tokens);
    model[block] = prefix;
    REQUIRE(index.size() == static_cast<int>(model.size()));
    index.check_invariants();
  }
}
