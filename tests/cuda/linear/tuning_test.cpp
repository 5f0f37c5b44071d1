// The choices of the dense layers that follow from shapes alone.

#include <algorithm>
#include <cstdint>

#include "catch.hpp"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

using namespace nanovllm::cuda;

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

TEST_CASE("Large weights take the kernel for few rows on one row alone") {
  CHECK(suits_small_m(16, 6144, 1024));
  CHECK(suits_small_m(1, 24576, 4096));
  CHECK_FALSE(suits_small_m(2, 24576, 4096));
  CHECK(suits_small_m(2, 24576, 4096, 24576 * 4096));
}
