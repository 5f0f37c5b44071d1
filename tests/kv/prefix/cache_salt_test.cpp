#include "nanovllm/kv/prefix/cache_salt.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "kv/prefix/linear_cache.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/sessions/cache_file.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

constexpr int kB = 4;

/// Every prefix collides with every other, of any salt.
struct ConstantHash {
  static std::uint64_t hash(std::uint64_t, std::span<const TokenId>) { return 42; }
};
using Hash = HashPrefixCache<kB>;
using Colliding = HashPrefixCache<kB, ConstantHash>;
using Radix = RadixPrefixCache<kB>;
using Linear = test::LinearCache<kB>;

Tokens iota(int n) {
  Tokens tokens;
  for (TokenId i = 0; i < n; ++i) tokens.push_back(i);
  return tokens;
}

template <class Blocks>
Table allocate(Blocks& blocks, std::size_t count) {
  Table table;
  while (table.size() < count) table.push_back(blocks.allocate().value());
  return table;
}

/// Computes and gives back what the cache does not have of `tokens`, whole blocks.
template <class Blocks>
void serve(Blocks& blocks, const Tokens& tokens, const CacheSalt& salt) {
  const Table table = allocate(blocks, tokens.size() / kB);
  blocks.publish(table, tokens, 0, static_cast<std::int32_t>(tokens.size()), salt);
  blocks.release(table);
  blocks.check_invariants();
}

const std::array<CacheSalt, 4> kSalts = {CacheSalt(), CacheSalt::of("alice"), CacheSalt::of("bob"),
                                         CacheSalt::of("bob ")};

}  // namespace

TEST_CASE("a salt is the SHA-256 digest of its text, and none of an empty one", "[cache_salt]") {
  CHECK_FALSE(CacheSalt());
  CHECK(CacheSalt::of("") == CacheSalt());
  CHECK(CacheSalt().hex().empty());
  CHECK(CacheSalt::of("abc"));
  CHECK(CacheSalt::of("abc").hex() ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (const CacheSalt& a : kSalts) {
    for (const CacheSalt& b : kSalts) {
      CHECK((a == b) == (&a == &b));
      CHECK(((a <=> b) == 0) == (&a == &b));
      CHECK((a < b) == (b > a));
      CHECK((a.mixed_with(7) == b.mixed_with(7)) == (&a == &b));
    }
  }
  CHECK(CacheSalt().mixed_with(7) == 7);
  CHECK(CacheSalt::of(std::string_view("a\0b", 3)) != CacheSalt::of("a"));
}

TEST_CASE("a salt comes back from its bytes and digits", "[cache_salt]") {
  for (const CacheSalt& salt : kSalts) {
    CHECK(CacheSalt::from_bytes(salt.bytes()) == salt);
    CHECK(CacheSalt::from_hex(salt.hex()) == salt);
  }
  const std::string digits = kSalts[1].hex();
  CHECK_FALSE(CacheSalt::from_bytes(kSalts[1].bytes().first(31)).has_value());
  CHECK_FALSE(CacheSalt::from_hex(digits.substr(1)).has_value());
  CHECK_FALSE(CacheSalt::from_hex(digits + "0").has_value());
  for (const char* wrong : {"g", "-", " ", "A"}) {
    CAPTURE(wrong);
    CHECK_FALSE(CacheSalt::from_hex(wrong + digits.substr(1)).has_value());
  }
  CHECK_FALSE(CacheSalt::from_hex(std::string(64, '0')).has_value());  // that is none
}

TEMPLATE_TEST_CASE("two salts never share a block, and one shares as it does without",
                   "[cache_salt]", Hash, Colliding, Radix, Linear) {
  BlockManager<kB, TestType> blocks(12, true);
  const Tokens tokens = iota(3 * kB);
  Tokens longer = tokens;
  longer.push_back(99);
  serve(blocks, tokens, kSalts[1]);
  for (const CacheSalt& salt : kSalts) {
    CAPTURE(salt.hex());
    const PrefixMatch match = blocks.match(longer, salt);
    CHECK(match.num_tokens == (salt == kSalts[1] ? 3 * kB : 0));
    CHECK(match.blocks.size() == (salt == kSalts[1] ? 3 : 0));
    CHECK_FALSE(match.copy_tail.has_value());
  }
  for (const CacheSalt& salt : kSalts) {
    if (salt != kSalts[1]) serve(blocks, tokens, salt);
  }
  CHECK(blocks.num_published() == 12);  // none is a duplicate of another's
  std::vector<BlockId> all;
  for (const CacheSalt& salt : kSalts) {
    const PrefixMatch match = blocks.match(longer, salt);
    CHECK(match.num_tokens == 3 * kB);
    all.insert(all.end(), match.blocks.begin(), match.blocks.end());
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  serve(blocks, iota(kB), kSalts[2]);  // evicts some
  blocks.check_invariants();
}

TEST_CASE("without a cache a salt changes nothing", "[cache_salt]") {
  BlockManager<kB, NoPrefixCache<kB>> blocks(3, true);
  serve(blocks, iota(kB), kSalts[1]);
  CHECK(blocks.match(iota(2 * kB), kSalts[1]).num_tokens == 0);
}

TEMPLATE_TEST_CASE("the part of a block is not found with another salt", "[cache_salt]", Radix,
                   Linear) {
  BlockManager<kB, TestType> blocks(4, true);
  const Table table = allocate(blocks, 2);
  blocks.publish(table, iota(6), 0, 6, kSalts[1]);
  blocks.release(table);
  CHECK(blocks.match(iota(8), kSalts[1]).num_tokens == 6);
  CHECK(blocks.match(iota(8), kSalts[1]).copy_tail.has_value());
  CHECK(blocks.match(iota(3), kSalts[1]).num_tokens == 2);
  for (const CacheSalt& salt : {kSalts[0], kSalts[2], kSalts[3]}) {
    CHECK(blocks.match(iota(8), salt).num_tokens == 0);
    CHECK(blocks.match(iota(3), salt).num_tokens == 0);
    CHECK_FALSE(blocks.match(iota(8), salt).copy_tail.has_value());
  }
}

TEMPLATE_TEST_CASE("what is saved of a cache keeps its salts", "[cache_salt]", Hash, Radix) {
  using Blocks = BlockManager<kB, TestType>;
  Blocks from(16, true), to(16, true);
  const Tokens tokens = iota(3 * kB);
  for (const CacheSalt& salt : {kSalts[0], kSalts[2]}) serve(from, tokens, salt);
  const std::vector<CachedBlock> entries = from.cache().entries();
  REQUIRE(entries.size() == 6);
  for (const CachedBlock& entry : entries)
    CHECK((entry.parent == -1 || !entry.salt));  // it is that of the first
  const auto nothing = [](const auto&, const auto&) {};
  BlockPoolOf<Blocks> pool(to);
  CHECK(restore_cached(pool, entries, nothing) == 6);
  to.check_invariants();
  for (const CacheSalt& salt : kSalts) {
    const bool is_there = salt == kSalts[0] || salt == kSalts[2];
    CHECK(to.match(iota(13), salt).num_tokens == (is_there ? 12 : 0));
  }
}

TEST_CASE("a block on disk is called otherwise with another salt", "[cache_salt]") {
  const DiskName root = DiskName::root("a model");
  CHECK(root.with(CacheSalt()) == root);
  std::map<DiskName, int> seen;
  for (const CacheSalt& salt : kSalts) {
    DiskName name = root.with(salt);
    ++seen[name];
    for (int i = 0; i < 3; ++i) ++seen[name = name.next(iota(kB))];
  }
  CHECK(seen.size() == 4 * kSalts.size());
}

namespace {

/// Sequences of few tokens and a few salts on a small pool with host memory: what they publish is
/// written down for each block, and what they find must be theirs.
template <class Cache>
class Ledger {
 public:
  explicit Ledger(unsigned seed) : random_(seed), blocks_(4 + below(20), true) {
    blocks_.add_host_pool(below(30));
  }

  void run() {
    for (int i = 0; i < 3000; ++i) {
      if (!live_.empty() && below(2) == 0) {
        const auto s = live_.begin() + below(static_cast<int>(live_.size()));
        blocks_.release(s->table);
        live_.erase(s);
      } else {
        arrive();
      }
      if (i % 16 == 0) blocks_.check_invariants();
    }
  }

  std::int64_t num_found = 0, num_on_host = 0, num_tails = 0;

 private:
  /// What a block holds, with all that comes before it.
  struct Content {
    CacheSalt salt;
    Tokens prefix;
  };
  struct Live {
    Table table;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void check_found(const std::map<BlockId, Content>& ledger, BlockId block, const CacheSalt& salt,
                   const Tokens& tokens, std::size_t end) {
    const Content& content = ledger.at(block);
    REQUIRE(content.salt == salt);
    REQUIRE(content.prefix.size() >= end);
    REQUIRE(std::equal(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end),
                       content.prefix.begin()));
  }

  void arrive() {
    const CacheSalt salt = kSalts[static_cast<std::size_t>(below(4))];
    Tokens tokens;
    for (int i = 1 + below(4 * kB); i > 0; --i) tokens.push_back(below(2));
    const auto length = static_cast<std::int32_t>(tokens.size());
    PrefixMatch match = blocks_.match(tokens, salt);
    for (std::size_t i = 0; i < match.blocks.size(); ++i)
      check_found(device_, match.blocks[i], salt, tokens, (i + 1) * kB);
    for (std::size_t i = 0; i < match.outside.size(); ++i)
      check_found(host_, match.outside[i], salt, tokens, (match.blocks.size() + i + 1) * kB);
    if (match.copy_tail)
      check_found(device_, *match.copy_tail, salt, tokens,
                  static_cast<std::size_t>(match.num_tokens));
    num_found += match.num_tokens;
    num_on_host += std::ssize(match.outside);
    num_tails += match.copy_tail ? 1 : 0;
    const auto wanted = static_cast<std::size_t>((length + kB - 1) / kB);
    const auto num_new = static_cast<std::int32_t>(wanted - match.blocks.size());
    if (blocks_.num_free() < num_new + std::ssize(match.blocks) + 1) return;
    blocks_.adopt(match, length);
    Table table = match.blocks;
    std::vector<BlockCopy> saved;
    saved.reserve(wanted);
    while (table.size() < wanted) table.push_back(blocks_.allocate(&saved).value());
    for (const BlockCopy& copy : saved) host_[copy.to] = device_.at(copy.from);
    for (std::size_t i = match.blocks.size(); i < wanted; ++i) {
      const std::size_t end = std::min(tokens.size(), (i + 1) * kB);
      device_[table[i]] = {
          salt, Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end))};
    }
    if (match.copy_tail) blocks_.release(std::span(&*match.copy_tail, 1));
    blocks_.end_copies();
    blocks_.publish(table, tokens, static_cast<std::int32_t>(match.blocks.size()) * kB, length,
                    salt);
    live_.push_back({std::move(table)});
  }

  std::mt19937 random_;
  TieredBlockManager<kB, Cache> blocks_;
  std::map<BlockId, Content> device_, host_;
  std::vector<Live> live_;
};

}  // namespace

TEMPLATE_TEST_CASE("random sequences find nothing of another salt, in no pool",
                   "[cache_salt][random]", Hash, Colliding, Radix, Linear) {
  std::int64_t num_found = 0, num_on_host = 0, num_tails = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Ledger<TestType> ledger(seed);
    ledger.run();
    num_found += ledger.num_found;
    num_on_host += ledger.num_on_host;
    num_tails += ledger.num_tails;
  }
  CHECK((num_found > 10'000 && num_on_host > 100));
  CHECK((num_tails > 100) == (std::is_same_v<TestType, Radix> || std::is_same_v<TestType, Linear>));
}
