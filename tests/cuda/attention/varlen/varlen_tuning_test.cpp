// The choices of varlen attention that follow from shapes alone.

#include "catch.hpp"
#include "nanovllm/cuda/attention/varlen/tuning.hpp"

using namespace nanovllm::cuda;

TEST_CASE("New keys are read in one piece where there is no prefix, or they are many among all") {
  CHECK(varlen_new_from(0, 1) == 0);
  CHECK(varlen_new_from(0, 16384) == 0);
  CHECK(varlen_new_from(4096, 2048) == 4096);
  CHECK(varlen_new_from(16384, 2048) == kVarlenNoNewKeys);
  CHECK(varlen_new_from(100, 256) == 100);
  CHECK(varlen_new_from(100, 255) == kVarlenNoNewKeys);  // hardly a whole tile
}

TEST_CASE("The items of a schedule are counted in 31 bits") {
  CHECK(varlen_max_entries(3, 1000) == 10);
  CHECK(can_count_varlen_items(1024, 1 << 20, 64));
  CHECK_FALSE(can_count_varlen_items(1024, std::int64_t{1} << 32, 64));
  CHECK_FALSE(can_count_varlen_items(std::int64_t{1} << 40, 0, 1));
  CHECK(can_count_varlen_items(1, 1, 0));
}

TEST_CASE("A section of keys fills its share of the L2 cache") {
  CHECK(varlen_section_keys(128) * std::int64_t{4 * 128} == kVarlenSectionBytes);
  CHECK(varlen_mma_width(64) == 64);
  CHECK(varlen_mma_width(72) == 128);
  CHECK(varlen_mma_width(136) == 256);
}
