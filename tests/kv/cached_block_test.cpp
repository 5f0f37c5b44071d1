#include "nanovllm/kv/cached_block.hpp"

#include <cstddef>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

TEST_CASE("blocks are listed after their parents, by their places in the list", "[cached_block]") {
  const std::vector<TokenId> tokens = {1, 2, 3};
  const CacheSalt salt = CacheSalt::of("a user");
  const std::vector<CachedBlock> entries = list_entries({
      {.id = 9, .parent = 4, .block = 0, .tokens = tokens},
      {.id = 4, .parent = 0, .block = 7, .tokens = tokens, .salt = salt},
      {.id = 6, .parent = 4, .block = 5, .tokens = {}},
      {.id = 11, .parent = 9, .block = 2, .tokens = {tokens.data(), 2}},
  });
  REQUIRE(entries.size() == 4);
  const std::vector<BlockId> blocks = {7, 5, 0, 2};
  const std::vector<std::int32_t> parents = {-1, 0, 0, 2};
  const std::vector<std::size_t> sizes = {3, 0, 3, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(entries[i].block == blocks[i]);
    CHECK(entries[i].parent == parents[i]);
    CHECK(entries[i].tokens.size() == sizes[i]);
    CHECK(entries[i].salt == (i == 0 ? salt : CacheSalt()));
  }
}

TEST_CASE("what comes after a block that is gone is not listed", "[cached_block]") {
  const std::vector<CachedBlock> entries = list_entries({
      {.id = 2, .parent = 1, .block = 0},
      {.id = 3, .parent = 2, .block = 1},
      {.id = 5, .parent = 0, .block = 2},
  });
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].block == 2);
  CHECK(list_entries({}).empty());
}
