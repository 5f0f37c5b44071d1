// The choices of the sampler that follow from shapes alone.

#include "catch.hpp"
#include "nanovllm/cuda/sampling/tuning.hpp"

using namespace nanovllm;
using namespace nanovllm::cuda;

TEST_CASE("Rows are cut into long slices where these fill the device") {
  CHECK(sample_slices(1, 151936, 132).groups == kShortSliceGroups);
  CHECK(sample_slices(1, 151936, 132).num_parts == 149);
  CHECK(sample_slices(7, 151936, 132).groups == kLongSliceGroups);
  CHECK(sample_slices(7, 151936, 132).num_parts == 19);
  CHECK(sample_slices(256, 1, 132).num_parts == 1);
  for (std::int64_t vocab = 1; vocab < 40000; vocab += 997) {
    for (const std::int64_t rows : {1, 20, 200}) {
      const SampleSlices slices = sample_slices(rows, vocab, 132);
      CHECK(slices.num_parts * sample_slice(slices.groups) >= vocab);
      CHECK((slices.num_parts - 1) * sample_slice(slices.groups) < vocab);
    }
  }
}

TEST_CASE("Parts of plain rows fill the device, and none is empty") {
  CHECK(plain_parts(1, 151936, 132).is_short);
  CHECK(plain_parts(1, 151936, 132).num_parts == 149);
  CHECK(plain_parts(64, 151936, 132).num_parts == 4);
  CHECK(plain_parts(256, 151936, 132).num_parts == 1);
  for (const std::int64_t rows : {1, 2, 3, 4, 8, 20, 136, 200, 256, 300, 65535}) {
    for (std::int64_t vocab = 1; vocab < 40000; vocab += 997) {
      const PlainParts parts = plain_parts(rows, vocab, 132);
      const int unit = plain_unit(parts.is_short ? kShortPlainThreads : kPlainThreads);
      CHECK(parts.num_parts >= 1);
      CHECK(parts.num_parts <= ceil_div<std::int64_t>(vocab, unit));
      if (parts.is_short) CHECK(parts.num_parts == ceil_div<std::int64_t>(vocab, unit));
    }
  }
}

TEST_CASE("Masses of a whole row add up without overflow") {
  for (const std::int64_t vocab :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{151936}, kMaxSampledVocab}) {
    CHECK(sample_mass_unit(vocab) * static_cast<double>(vocab) < 0x1p63);
    CHECK(sample_mass_unit(vocab) * static_cast<double>(vocab) > 0x1p60);
  }
}

TEST_CASE("The second kernel has an SM for itself while there are rows for no more") {
  CHECK(sample_finish_blocks_per_sm(132, 132) == 1);
  CHECK(sample_finish_blocks_per_sm(133, 132) == 2);
}
