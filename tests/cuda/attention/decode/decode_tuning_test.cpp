// The choices of decode attention that follow from shapes alone.

#include "catch.hpp"
#include "nanovllm/cuda/attention/decode/tuning.hpp"

using namespace nanovllm::cuda;

TEST_CASE("A plan's tiles are counted up to 2^31 and no further") {
  // 2^31 keys · heads / 16 keys a tile; the plan's sums are 32-bit.
  CHECK(can_count_decode_tiles(256, 8, 1 << 20));
  CHECK(can_count_decode_tiles(4095, 8, 1 << 20));
  CHECK_FALSE(can_count_decode_tiles(4096, 8, 1 << 20));
  CHECK_FALSE(can_count_decode_tiles(std::int64_t{1} << 40, 8, 16));
  CHECK_FALSE(can_count_decode_tiles(1, 1, std::int64_t{1} << 35));
  CHECK(can_count_decode_tiles(1, 1, (std::int64_t{1} << 35) - 16));
  CHECK(can_count_decode_tiles(0, 8, std::int64_t{1} << 40));
  CHECK(can_count_decode_tiles(8, 0, 16));
}

TEST_CASE("The grid has 8 warps a block where shared memory holds them") {
  constexpr std::size_t kHopper = 227 * 1024, kAmpere = 163 * 1024, kAda = 99 * 1024;
  for (const std::int64_t head_dim : {64, 128}) {
    for (std::int64_t group = 1; group <= kDecodeMaxGroup; ++group) {
      const DecodeGrid grid = default_decode_grid(group, head_dim, 132, kHopper);
      CHECK(grid.num_blocks == 132);
      CHECK(grid.warps_per_block == 8);
      CHECK(default_decode_grid(group, head_dim, 84, kAda).warps_per_block == 4);
      CHECK(decode_shared_bytes(8, group, head_dim) <= kHopper);
      CHECK(decode_shared_bytes(4, group, head_dim) <= kAda);
      CHECK(decode_members_at_once(group) * group <= kDecodeSharedColumns);
    }
  }
  CHECK(default_decode_grid(8, 128, 108, kAmpere).warps_per_block == 8);
  CHECK(default_decode_grid(16, 128, 108, kAmpere).warps_per_block == 4);
  // The queries of many sequences take no room of their own but for groups of one head.
  CHECK(decode_shared_bytes(8, 2, 128) == 8 * (16384 + 2 * 132 * 4 + 16));
  CHECK(decode_shared_bytes(8, 1, 128) == 8 * (16384 + 16) + 8192);
}

TEST_CASE("What the tensor-core kernel of decode attention takes") {
  CHECK(fits_decode_kernel(128, 16, 16, 1 << 20));
  CHECK_FALSE(fits_decode_kernel(96, 4, 16, 1 << 20));
  CHECK_FALSE(fits_decode_kernel(128, 17, 16, 1 << 20));
  CHECK_FALSE(fits_decode_kernel(128, 4, 24, 1 << 20));
  CHECK_FALSE(fits_decode_kernel(128, 4, 0, 0));
  CHECK_FALSE(fits_decode_kernel(128, 4, 16, std::int64_t{1} << 31));
  static_assert(decode_head_tiles(8) == 1 && decode_head_tiles(9) == 2);
}
