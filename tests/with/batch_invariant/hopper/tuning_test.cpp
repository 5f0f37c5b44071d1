// The blocks of the batch-invariant linear that follow from shapes alone.

#include "nanovllm/with/batch_invariant/hopper/tuning.hpp"

#include <cstdint>

#include "catch.hpp"

using namespace nanovllm::cuda;

namespace {

constexpr std::int64_t kHopperShared = 227 * 1024;

}  // namespace

TEST_CASE("Blocks of one order: some suit every number of rows, rings fit") {
  for (std::int64_t m = 1; m <= 20000; m += m < 300 ? 1 : 97) {
    std::int64_t num_suiting = 0;
    for (const BatchInvariantBlock block : kBatchInvariantBlocks)
      num_suiting += suits_batch_invariant_rows(block, m) ? 1 : 0;
    CHECK(num_suiting > 0);
    for (const std::int64_t n : {8, 1024, 4096, 151936}) {
      const BatchInvariantBlock block = default_batch_invariant_block(m, n, 132);
      CHECK(has_batch_invariant_block(block));
      CHECK((m <= block.tokens || block.tokens >= 64));
    }
  }
  CHECK(has_batch_invariant_block(kBatchInvariantReference));
  CHECK_FALSE(has_batch_invariant_block({16, 8}));
  CHECK((default_batch_invariant_block(1, 4096, 132) == BatchInvariantBlock{64, 16, 1}));
  CHECK((default_batch_invariant_block(1, 1024, 132) == BatchInvariantBlock{32, 16, 4}));
  for (const BatchInvariantBlock block : kBatchInvariantBlocks) {
    const int stage_bytes = block.panels * (block.rows + block.tokens) * kBatchInvariantColumns * 2;
    constexpr int kOther = 32 * kBatchInvariantColumns * 2 + kBatchInvariantAlignment;
    for (const std::int64_t blocks : {1, 100, 200, 500, 5000}) {
      const int stages =
          batch_invariant_stages(blocks, 48, stage_bytes, kOther, 132, kHopperShared);
      // One more than are being multiplied, or nothing would be copied meanwhile.
      CHECK(stages >= kBatchInvariantPending + 1);
      CHECK(stages <= 32);
      CHECK(stages * stage_bytes + kOther <= kHopperShared - 1024);
    }
    CHECK(batch_invariant_stages(1, 1, stage_bytes, kOther, 132, kHopperShared) == 1);
  }
  CHECK(fits_batch_invariant_linear(1, 4096, 72));
  CHECK_FALSE(fits_batch_invariant_linear(1, 4096, 70));
}
