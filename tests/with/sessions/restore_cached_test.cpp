#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/sessions/cache_file.hpp"

using namespace nanovllm;

namespace {

using Hashed = BlockManager<4>;
using Radix = BlockManager<4, RadixPrefixCache<4>>;

template <class Blocks, class Write>
std::int32_t restore_into(Blocks& blocks, const std::vector<CachedBlock>& entries,
                          const Write& write) {
  BlockPoolOf<Blocks> pool(blocks);
  return restore_cached(pool, entries, write);
}

/// A sequence comes and goes: what the cache does not have of it is published.
template <class Blocks>
void serve(Blocks& blocks, const std::vector<TokenId>& tokens) {
  const PrefixMatch match = blocks.match(tokens);
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  blocks.adopt(match, num_tokens);
  std::vector<BlockId> table = match.blocks;
  while (std::ssize(table) < Blocks::blocks_for(num_tokens)) table.push_back(*blocks.allocate());
  if (match.copy_tail) blocks.release(std::span(&*match.copy_tail, 1));
  blocks.publish(table, tokens, match.num_tokens, num_tokens);
  blocks.release(table);
}

std::vector<std::vector<TokenId>> some_sequences() {
  std::mt19937 random(1);
  std::vector<std::vector<TokenId>> out;
  for (int i = 0; i < 20; ++i) {
    std::vector<TokenId> tokens;
    if (i > 0) tokens = out[random() % out.size()];
    tokens.resize(random() % (tokens.size() + 1));
    for (unsigned n = 1 + random() % 13; n > 0; --n)
      tokens.push_back(static_cast<TokenId>(random() % 4));
    out.push_back(tokens);
  }
  return out;
}

}  // namespace

static_assert(ListsEntries<HashPrefixCache<4>> && ListsEntries<RadixPrefixCache<4>> &&
              !ListsEntries<NoPrefixCache<4>>);

TEMPLATE_TEST_CASE("another pool's cache finds the same", "[restore_cached]", Hashed, Radix) {
  TestType from(120, true);
  const auto sequences = some_sequences();
  for (const auto& tokens : sequences) serve(from, tokens);
  from.check_invariants();
  const std::vector<CachedBlock> entries = from.cache().entries();
  REQUIRE(entries.size() > 20);
  TestType to(120, true);
  if (GENERATE(false, true)) serve(to, sequences[3]);  // it has something already
  std::vector<BlockId> source(120, -1);
  const auto write = [&](std::span<const BlockId> blocks, std::span<const std::size_t> kept) {
    for (std::size_t i = 0; i < blocks.size(); ++i)
      source[static_cast<std::size_t>(blocks[i])] = entries[kept[i]].block;
  };
  CHECK(restore_into(to, entries, write) == static_cast<std::int32_t>(entries.size()));
  to.check_invariants();
  CHECK(to.num_free() == 120);
  for (auto tokens : sequences) {
    tokens.push_back(9);
    const PrefixMatch expected = from.match(tokens), got = to.match(tokens);
    CHECK(got.num_tokens == expected.num_tokens);
  }
}

TEMPLATE_TEST_CASE("where there is less room, the beginnings are kept", "[restore_cached]", Hashed,
                   Radix) {
  TestType from(120, true);
  const auto sequences = some_sequences();
  for (const auto& tokens : sequences) serve(from, tokens);
  const std::vector<CachedBlock> entries = from.cache().entries();
  TestType to(10, true);
  const auto in_use = to.allocate();
  const auto write = [](std::span<const BlockId> blocks, std::span<const std::size_t> kept) {
    CHECK(blocks.size() == kept.size());
  };
  CHECK(restore_into(to, entries, write) == 9);
  to.check_invariants();
  CHECK(to.num_free() == 9);
  CHECK(to.ref_count(*in_use) == 1);
  CHECK(to.num_published() >= 8);
}

TEST_CASE("blocks that are not full take no room where the cache keeps full ones alone",
          "[restore_cached]") {
  Radix from(120, true);
  const auto sequences = some_sequences();
  for (const auto& tokens : sequences) serve(from, tokens);
  const std::vector<CachedBlock> entries = from.cache().entries();
  const auto num_full = std::ranges::count_if(
      entries, [](const CachedBlock& entry) { return entry.tokens.size() == 4; });
  REQUIRE((num_full > 5 && num_full < std::ssize(entries) - 5));
  // Room for the full ones and no more: none may be lost to another.
  Hashed to(static_cast<std::int32_t>(num_full), true);
  const auto write = [&](std::span<const BlockId> blocks, std::span<const std::size_t> kept) {
    CHECK(std::ssize(blocks) == num_full);
    for (const std::size_t i : kept) CHECK(entries[i].tokens.size() == 4);
  };
  CHECK(restore_into(to, entries, write) == num_full);
  CHECK(to.num_published() == num_full);
  to.check_invariants();
  for (auto tokens : sequences) {
    tokens.push_back(9);
    CHECK(to.match(tokens).num_tokens == from.match(tokens).num_tokens / 4 * 4);
  }
}

TEMPLATE_TEST_CASE("what cannot be written is not kept", "[restore_cached]", Hashed, Radix) {
  TestType from(120, true);
  for (const auto& tokens : some_sequences()) serve(from, tokens);
  const std::vector<CachedBlock> entries = from.cache().entries();
  TestType to(120, true);
  const auto write = [](std::span<const BlockId>, std::span<const std::size_t>) {
    throw std::runtime_error("no");
  };
  CHECK_THROWS_WITH(restore_into(to, entries, write), "no");
  to.check_invariants();
  CHECK(to.num_free() == 120);
  CHECK(to.num_published() == 0);
}
