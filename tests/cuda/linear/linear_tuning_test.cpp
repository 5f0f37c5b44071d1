// The choices of the dense layers that follow from shapes alone.

#include "catch.hpp"
#include "nanovllm/cuda/batch_invariant/linear/tuning.hpp"
#include "nanovllm/cuda/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

using namespace nanovllm::cuda;

namespace {

constexpr std::int64_t kHopperShared = 227 * 1024;

}  // namespace

TEST_CASE("A bucket of rows is the smallest that holds them") {
  static_assert(row_bucket(1) == 1 && row_bucket(3) == 4 && row_bucket(8) == 8);
  static_assert(row_bucket(9) == 16 && row_bucket(257) == 384);
  CHECK(row_bucket(16384) == 16384);
  CHECK(row_bucket(100000) == 16384);
  for (std::int64_t rows = 1; rows <= 20000; ++rows) {
    CHECK((row_bucket(rows) >= rows || row_bucket(rows) == 16384));
    CHECK(row_bucket(rows) <= std::max<std::int64_t>(2 * rows, 1));
    CHECK(row_bucket(row_bucket(rows)) == row_bucket(rows));
  }
}

TEST_CASE("Tiles of the kernel for few rows leave a block for each SM") {
  CHECK(default_small_m_tiles(1024, 132) == 1);
  CHECK(default_small_m_tiles(4096, 132) == 4);
  CHECK(default_small_m_tiles(151936, 132) == 6);
  CHECK(default_small_m_tiles(1, 132) == 1);
}

TEST_CASE("Extents that 32 bits cannot count go to cuBLASLt") {
  CHECK(fits_small_m(16, 151936, 1024));
  CHECK_FALSE(fits_small_m(17, 16, 16));
  CHECK_FALSE(fits_small_m(1, 16, 12));
  CHECK_FALSE(fits_small_m(1, std::int64_t{1} << 31, 8));
  CHECK_FALSE(fits_small_m(1, 8, (std::int64_t{1} << 31) - 8));
}

TEST_CASE("Shares of K of the kernel for some tens of rows leave nothing out") {
  for (const ProductKind kind : {ProductKind::plain, ProductKind::normed, ProductKind::gated}) {
    for (int i = 0; i < kMidMForms.size(kind); ++i) {
      const MidMVariant form = kMidMForms.at(kind, i);
      for (std::int64_t k = 8; k <= 16384; k += 8) {
        const std::int64_t panels = mid_m_panels(k, form);
        CHECK(panels % form.panels == 0);
        CHECK(panels * form.split * kMidMColumns >= k);
        CHECK((panels - form.panels) * form.split * kMidMColumns < k);
      }
    }
  }
  CHECK(fits_mid_m(64, 4096, 1024));
  CHECK_FALSE(fits_mid_m(65, 4096, 1024));
  CHECK(suits_mid_m(64, 6144, 1024));
  CHECK(suits_mid_m(64, 24576, 4096));
  CHECK(suits_mid_m(1, 24576, 4096));
  CHECK_FALSE(suits_mid_m(4, 6144, 1024));
  CHECK(suits_small_m(16, 6144, 1024));
  CHECK(suits_small_m(1, 24576, 4096));
  CHECK_FALSE(suits_small_m(2, 24576, 4096));
  CHECK_FALSE(fits_mid_m(64, 4096, 1028));
}

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
