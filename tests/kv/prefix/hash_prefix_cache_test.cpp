#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/kv/block_manager.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

constexpr int kB = 4;
using Cache = HashPrefixCache<kB>;
using Blocks = BlockManager<kB>;

/// Every prefix collides with every other.
struct ConstantHash {
  static std::uint64_t hash(std::uint64_t, std::span<const TokenId>) { return 42; }
};

Table allocate(Blocks& blocks, int n) {
  Table table;
  for (int i = 0; i < n; ++i) table.push_back(blocks.allocate().value());
  return table;
}

/// What the block manager and its cache promise, written down as plainly as can be: every list is
/// searched from one end to the other. One list has all free blocks, the first to be reused first.
class Model {
 public:
  explicit Model(int num_blocks) : refs_(static_cast<std::size_t>(num_blocks), 0) {
    for (BlockId b = 0; b < num_blocks; ++b) free_.push_back(b);
  }

  [[nodiscard]] Table match(std::span<const TokenId> tokens) const {
    Table found;
    std::uint64_t parent = 0;
    for (std::size_t end = kB; end < tokens.size(); end += kB) {
      const auto block = find(parent, tokens.subspan(end - kB, kB));
      if (!block) break;
      found.push_back(*block);
      parent = entries_.at(*block).id;
    }
    return found;
  }

  void adopt(const Table& blocks) {
    for (const BlockId b : blocks) {
      if (refs_[static_cast<std::size_t>(b)]++ == 0) std::erase(free_, b);
    }
  }

  BlockId allocate() {
    const BlockId block = free_.front();
    free_.pop_front();
    num_evictions += entries_.erase(block);
    refs_[static_cast<std::size_t>(block)] = 1;
    return block;
  }

  void release(const Table& blocks) {
    for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
      if (--refs_[static_cast<std::size_t>(*b)] > 0) continue;
      const auto duplicate = find_duplicate(*b);
      if (duplicate && is_free(*duplicate)) {
        std::erase(free_, *duplicate);
        free_.push_front(*duplicate);
        entries_.erase(*duplicate);
        ++num_duplicates;
      }
      if (duplicate && refs_[static_cast<std::size_t>(*duplicate)] > 0) {
        entries_.erase(*b);
        ++num_duplicates;
      }
      entries_.contains(*b) ? free_.push_back(*b) : free_.push_front(*b);
    }
  }

  void publish(const Table& table, const Tokens& tokens, int begin, int end) {
    for (int i = begin / kB; i < end / kB; ++i) {
      const Tokens own(tokens.begin() + i * kB, tokens.begin() + (i + 1) * kB);
      const std::uint64_t parent =
          i == 0 ? 0 : entries_.at(table[static_cast<std::size_t>(i - 1)]).id;
      const auto duplicate = find(parent, own);
      const std::uint64_t id = duplicate ? entries_.at(*duplicate).id : ++last_id_;
      entries_[table[static_cast<std::size_t>(i)]] = {own, parent, id, ++clock_};
    }
  }

  [[nodiscard]] std::size_t num_free() const { return free_.size(); }
  [[nodiscard]] std::size_t num_published() const { return entries_.size(); }

  std::size_t num_evictions = 0;
  std::size_t num_duplicates = 0;

 private:
  struct Entry {
    Tokens tokens;
    std::uint64_t parent;
    std::uint64_t id;
    std::uint64_t entered;
  };

  [[nodiscard]] bool is_free(BlockId b) const { return refs_[static_cast<std::size_t>(b)] == 0; }

  /// One in use before one that is free; the one entered last before the others.
  [[nodiscard]] std::optional<BlockId> find(std::uint64_t parent,
                                            std::span<const TokenId> tokens) const {
    std::optional<BlockId> best;
    const auto rank = [&](BlockId b) { return std::pair(!is_free(b), entries_.at(b).entered); };
    for (const auto& [block, entry] : entries_) {
      if (entry.parent != parent || !std::ranges::equal(entry.tokens, tokens)) continue;
      if (!best || rank(block) > rank(*best)) best = block;
    }
    return best;
  }

  [[nodiscard]] std::optional<BlockId> find_duplicate(BlockId of) const {
    const auto found = entries_.find(of);
    if (found == entries_.end()) return std::nullopt;
    for (const auto& [block, entry] : entries_) {
      if (block != of && entry.id == found->second.id) return block;
    }
    return std::nullopt;
  }

  std::vector<int> refs_;
  std::deque<BlockId> free_;
  std::map<BlockId, Entry> entries_;
  std::uint64_t last_id_ = 0;
  std::uint64_t clock_ = 0;
};

/// A sequence that holds blocks; its tokens [0, num_published) are published.
struct Holder {
  Tokens tokens;
  Table table;
  int num_published;
};

/// Drives both with the same random operations. Every answer must be the same, block by block.
/// With `duplicates`, equal content is computed side by side.
void compare(int num_blocks, bool duplicates, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Blocks blocks(num_blocks, true);
  Model model(num_blocks);
  std::vector<Holder> holders;
  for (int step = 0; step < 3000; ++step) {
    for (std::size_t i = holders.size(); i-- > 0;) {
      Holder& h = holders[i];
      const int size = static_cast<int>(h.tokens.size());
      if (h.num_published < size) {
        const int end = duplicates ? h.num_published + below(size - h.num_published + 1) : size;
        blocks.publish(h.table, h.tokens, h.num_published, end);
        model.publish(h.table, h.tokens, h.num_published, end);
        h.num_published = end;
      }
      if (below(4) > 0) continue;
      blocks.release(h.table);
      model.release(h.table);
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(i));
    }
    Holder h;
    const int num_full = below(5);
    h.tokens.resize(static_cast<std::size_t>(num_full * kB + (duplicates ? below(kB) + 1 : 1)));
    for (TokenId& t : h.tokens) t = below(8) == 0 ? 1 : 0;
    const PrefixMatch match = blocks.match(h.tokens);
    REQUIRE(match.blocks == model.match(h.tokens));
    REQUIRE(match.num_tokens == std::ssize(match.blocks) * kB);
    const auto cost =
        std::ranges::count_if(match.blocks, [&](BlockId b) { return blocks.ref_count(b) == 0; });
    const int num_new = Blocks::blocks_for(static_cast<int>(h.tokens.size())) -
                        static_cast<int>(match.blocks.size());
    if (num_new + cost <= blocks.num_free()) {
      blocks.adopt(match, static_cast<int>(h.tokens.size()));
      model.adopt(match.blocks);
      h.table = match.blocks;
      for (int i = 0; i < num_new; ++i) {
        h.table.push_back(blocks.allocate().value());
        REQUIRE(h.table.back() == model.allocate());
      }
      h.num_published = match.num_tokens;
      holders.push_back(std::move(h));
    }
    REQUIRE(blocks.num_free() == static_cast<int>(model.num_free()));
    REQUIRE(blocks.num_published() == static_cast<int>(model.num_published()));
    blocks.check_invariants();
  }
  REQUIRE(blocks.stats().num_evictions == static_cast<std::int64_t>(model.num_evictions));
  if (num_blocks >= 16) REQUIRE((model.num_evictions > 100 && blocks.stats().num_hit_tokens > 0));
  if (num_blocks >= 16) REQUIRE((model.num_duplicates > 100) == duplicates);
}

/// `count` blocks of tokens whose hashes after the empty prefix end in the same 10 bits.
std::vector<Tokens> colliding_blocks(std::uint64_t seed, int count) {
  std::vector<Tokens> found;
  for (TokenId i = 0; static_cast<int>(found.size()) < count; ++i) {
    Tokens tokens{i & 1023, i >> 10, 7, 7};
    if ((XxPrefixHash::hash(seed, tokens) & 1023) == 0) found.push_back(std::move(tokens));
  }
  return found;
}

}  // namespace

TEST_CASE("hits, their blocks and the order of reuse are what they always were",
          "[hash_prefix_cache]") {
  for (const int num_blocks : {1, 5, 16, 40}) compare(num_blocks, false, 11u);
}

TEST_CASE("of equal blocks one is kept, as if used when the last of them was",
          "[hash_prefix_cache]") {
  for (const int num_blocks : {2, 5, 16, 40}) compare(num_blocks, true, 12u);
}

TEST_CASE("defect 10: equal cached blocks pile up and a lookup walks them all",
          "[hash_prefix_cache]") {
  constexpr int kNumBlocks = 4000;
  Blocks blocks(kNumBlocks, true);
  const Tokens tokens{1, 2, 3, 4};
  std::vector<Table> tables;
  for (int i = 0; i < kNumBlocks; ++i) tables.push_back(allocate(blocks, 1));
  for (const Table& table : tables) blocks.publish(table, tokens, 0, kB);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10000; ++i) REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 5}).num_tokens == 4);
  REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  REQUIRE(blocks.cache().longest_walk() == 1);
  for (const Table& table : tables) blocks.release(table);
  REQUIRE(blocks.num_published() == 1);
  REQUIRE(blocks.num_free() == kNumBlocks);
  REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 5}).num_tokens == 4);
  blocks.check_invariants();
}

TEST_CASE("defect 10: colliding blocks can be made", "[hash_prefix_cache]") {
  constexpr int kCount = 200;
  const auto walk = [](const Blocks& blocks) { return blocks.cache().longest_walk(); };
  const auto enter = [](Blocks& blocks, const std::vector<Tokens>& list) {
    for (const Tokens& tokens : list) blocks.publish(allocate(blocks, 1), tokens, 0, kB);
  };
  const std::vector<Tokens> made = colliding_blocks(0, kCount);
  Blocks attacked(1024, true, std::uint64_t{0});
  enter(attacked, made);
  REQUIRE(walk(attacked) == PrefixIndex<kB, XxPrefixHash>::kMaxWalk);  // and not 200
  REQUIRE(attacked.match(Tokens{made[kCount - 1][0], made[kCount - 1][1], 7, 7, 7}).num_tokens ==
          kB);
  attacked.check_invariants();
  Blocks seeded(1024, true, std::uint64_t{0x5EED});
  enter(seeded, made);
  REQUIRE(walk(seeded) < 8);
  REQUIRE(Blocks(8, true).cache().seed() != Blocks(8, true).cache().seed());
}

TEST_CASE("more collisions than a walk compares cost hits, never correctness",
          "[hash_prefix_cache]") {
  BlockManager<1, HashPrefixCache<1, ConstantHash>> blocks(100, true);
  Tokens tokens;
  for (TokenId i = 0; i < 100; ++i) tokens.push_back(i);
  Table table;
  for (int i = 0; i < 100; ++i) table.push_back(blocks.allocate().value());
  blocks.publish(table, tokens, 0, 100);
  REQUIRE(blocks.cache().longest_walk() == 32);
  REQUIRE(blocks.match(tokens).num_tokens == 0);  // the oldest are out of reach
  blocks.check_invariants();
  blocks.release(table);
  while (blocks.allocate()) blocks.check_invariants();
  REQUIRE(blocks.num_published() == 0);
}

TEST_CASE("the version changes whenever a match could", "[hash_prefix_cache]") {
  Blocks blocks(4, true);
  const Tokens tokens(9, 0);
  const Table table = allocate(blocks, 2);
  const std::uint64_t empty = blocks.cache_version();
  blocks.publish(table, tokens, 0, 8);
  const std::uint64_t entered = blocks.cache_version();
  REQUIRE(entered != empty);
  blocks.release(table);
  blocks.adopt(blocks.match(tokens), 9);
  REQUIRE(blocks.cache_version() == entered);
  blocks.release(table);
  allocate(blocks, 2);
  REQUIRE(blocks.cache_version() == entered);
  allocate(blocks, 1);
  REQUIRE(blocks.cache_version() != entered);
}
