#include "nanovllm/sched/batch_config.hpp"

#include "catch.hpp"

using namespace nanovllm;

TEST_CASE("batch limits are validated", "[batch_config]") {
  REQUIRE_NOTHROW(validate(BatchConfig{}));
  REQUIRE_NOTHROW(validate(BatchConfig{.max_num_seqs = 1, .max_num_batched_tokens = 1}));
  REQUIRE_THROWS_AS(validate(BatchConfig{.max_num_seqs = 0}), ConfigError);
  REQUIRE_THROWS_WITH(validate(BatchConfig{.max_num_seqs = 8, .max_num_batched_tokens = 7}),
                      "max_num_batched_tokens must be >= max_num_seqs = 8, got 7");
  REQUIRE(BatchConfig{.max_num_seqs = 8}.num_logits() == 8);
  REQUIRE(BatchConfig{.max_num_seqs = 8, .max_num_logits = 7}.num_logits() == 8);
  REQUIRE(BatchConfig{.max_num_seqs = 8, .max_num_logits = 9}.num_logits() == 9);
}
