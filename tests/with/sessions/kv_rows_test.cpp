#include "nanovllm/with/sessions/kv_rows.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

constexpr std::int64_t kLayers = 2, kHeads = 4, kDim = 3, kBlocks = 3;

/// Names an element of the whole cache.
std::int32_t value(std::int64_t token, std::int64_t layer, std::int64_t kv, std::int64_t head,
                   std::int64_t dim) {
  return static_cast<std::int32_t>((((token * kLayers + layer) * 2 + kv) * kHeads + head) * kDim +
                                   dim);
}

/// Blocks of tokens 0, 1, … as `ranks` ranks have them.
std::vector<std::int32_t> blocks_of(int ranks, std::int64_t block_size) {
  const std::int64_t heads = kHeads / ranks;
  std::vector<std::int32_t> out;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (std::int64_t block = 0; block < kBlocks; ++block)
      for (std::int64_t layer = 0; layer < kLayers; ++layer)
        for (std::int64_t kv = 0; kv < 2; ++kv)
          for (std::int64_t head = 0; head < heads; ++head)
            for (std::int64_t slot = 0; slot < block_size; ++slot)
              for (std::int64_t dim = 0; dim < kDim; ++dim)
                out.push_back(
                    value(block * block_size + slot, layer, kv, rank * heads + head, dim));
  return out;
}

}  // namespace

TEST_CASE("rows of tokens do not depend on block size and ranks", "[kv_rows]") {
  const int ranks = GENERATE(1, 2, 4);
  const std::int64_t block_size = GENERATE(1, 4, 5);
  const KvRows layout({.num_layers = kLayers,
                       .num_kv_heads = kHeads / ranks,
                       .head_dim = kDim,
                       .block_size = block_size,
                       .element_bytes = 4},
                      ranks);
  const std::vector<std::int32_t> blocks = blocks_of(ranks, block_size);
  REQUIRE(layout.block_bytes(kBlocks) == blocks.size() * 4);
  REQUIRE(layout.row_bytes() == kLayers * 2 * kHeads * kDim * 4);
  std::vector<std::int32_t> copy(blocks.size(), -1);
  for (std::int64_t token = 0; token < kBlocks * block_size; ++token) {
    std::vector<std::int32_t> row(layout.row_bytes() / 4);
    const auto block = static_cast<std::size_t>(token / block_size);
    const auto slot = static_cast<std::size_t>(token % block_size);
    layout.read(std::as_bytes(std::span(blocks)), kBlocks, block, slot,
                reinterpret_cast<std::byte*>(row.data()));
    for (std::size_t i = 0; i < row.size(); ++i)
      REQUIRE(row[i] == value(token, 0, 0, 0, 0) + static_cast<std::int32_t>(i));
    layout.write(std::as_writable_bytes(std::span(copy)), kBlocks, block, slot,
                 reinterpret_cast<const std::byte*>(row.data()));
  }
  CHECK(copy == blocks);
  std::byte row[1];
  CHECK_THROWS_WITH(layout.read({}, 1, 0, 0, row),
                    Catch::Matchers::StartsWith("KV rows: 1 blocks have "));
}
