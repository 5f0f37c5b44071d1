#include "nanovllm/with/tiers/host_prefix_cache.hpp"

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

/// Every prefix collides with every other.
struct ConstantHash {
  static std::uint64_t hash(std::uint64_t, std::span<const TokenId>) { return 42; }
};

Tokens iota(int n, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// What a match of `blocks` whole blocks of two tokens becomes for `tokens`.
template <class Tier>
PrefixMatch extended(const Tier& tier, const Tokens& tokens, Table blocks = {}) {
  PrefixMatch match{.num_tokens = static_cast<std::int32_t>(2 * blocks.size()),
                    .blocks = std::move(blocks)};
  tier.extend(match, tokens);
  return match;
}

}  // namespace

TEMPLATE_TEST_CASE("a match goes on into the blocks that were saved, and no others",
                   "[host_prefix_cache]", XxPrefixHash, ConstantHash) {
  HostPrefixCache<2, TestType> tier(8, 4, 7);
  tier.name(Table{3, 5, 1}, Tokens{1, 2, 3, 4, 1, 2, 9}, 0, 7);
  tier.name(Table{6, 7}, Tokens{3, 4, 1, 2}, 0, 4);  // the same blocks after other tokens
  REQUIRE((tier.has_name(3) && tier.has_name(1) && !tier.has_name(0) && tier.size() == 0));
  tier.enter(2, 5);
  tier.enter(0, 3);
  tier.check_invariants();
  REQUIRE((tier.copy_of(5) == 2 && tier.copy_of(3) == 0 && !tier.copy_of(1) && !tier.copy_of(6)));

  REQUIRE(extended(tier, {1, 2, 3, 4, 1, 2}).outside == Table{0, 2});
  REQUIRE(extended(tier, {1, 2, 3, 4, 1, 2}).num_tokens == 4);
  REQUIRE(extended(tier, {1, 2, 3}).outside == Table{0});
  REQUIRE(extended(tier, {1}).outside.empty());
  REQUIRE(extended(tier, {3, 4}).outside.empty());
  REQUIRE(extended(tier, {1, 2, 1, 2}).outside == Table{0});
  REQUIRE(extended(tier, {1, 2, 3, 4}, {3}).outside == Table{2});  // after the device's
  REQUIRE(extended(tier, {3, 4, 3, 4}, {6}).outside.empty());
  REQUIRE(extended(tier, {1, 2, 3, 4}, {0}).outside.empty());  // of an unknown name

  for (const BlockId block : {3, 5, 1, 6, 7}) tier.forget_name(block);
  tier.check_invariants();
  REQUIRE(extended(tier, {1, 2, 3, 4, 1, 2}).outside == Table{0, 2});
  tier.name(Table{4, 5}, Tokens{1, 2, 3, 4}, 0, 4);  // computed again: the same names
  REQUIRE((tier.copy_of(4) == 0 && tier.copy_of(5) == 2));
}

TEST_CASE("a tail to be copied gives way to a block of the host that has more",
          "[host_prefix_cache]") {
  HostPrefixCache<4> tier(8, 4);
  tier.name(Table{1, 2}, iota(8), 0, 8);
  tier.enter(3, 2);
  PrefixMatch match{.num_tokens = 6, .blocks = {1}, .copy_tail = 5};
  PrefixMatch other = match;
  tier.extend(match, iota(9));
  REQUIRE((match.num_tokens == 8 && !match.copy_tail && match.outside == Table{3}));
  tier.extend(other, iota(7));
  REQUIRE((other.num_tokens == 6 && other.copy_tail == 5 && other.outside.empty()));
}

TEST_CASE("the least recently used block of the host goes first, but none that is held",
          "[host_prefix_cache]") {
  HostPrefixCache<2> tier(8, 3);
  tier.name(Table{0, 1, 2}, iota(6), 0, 6);
  for (const BlockId block : {0, 1, 2}) tier.enter(block, block);
  REQUIRE((tier.num_evictable() == 0 && !tier.evict()));
  tier.release_held();
  REQUIRE(tier.num_evictable() == 3);
  tier.touch(0);
  tier.hold(1);
  const std::uint64_t version = tier.version();
  REQUIRE(tier.evict() == 2);
  REQUIRE(tier.version() != version);
  REQUIRE(tier.evict() == 0);
  REQUIRE(!tier.evict());
  REQUIRE((tier.size() == 1 && tier.contains(1) && !tier.contains(0)));
  tier.forget(1);
  tier.check_invariants();
  REQUIRE((tier.size() == 0 && extended(tier, iota(6)).outside.empty()));
}
