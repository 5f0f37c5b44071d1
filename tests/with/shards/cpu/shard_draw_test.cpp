#include "nanovllm/with/shards/cpu/shard_draw.hpp"

#include "nanovllm/cpu/backend.hpp"
#include "with/shards/shard_draw_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test::ops;
using Catch::Matchers::Contains;

TEST_CASE("draws by shard are those of the whole rows, bit by bit", "[sampler]") {
  for (const cpu::Isa isa : {cpu::Isa::portable, cpu::best_isa()}) {
    CpuBackend backend({.num_threads = 2}, isa);
    shard_draw_cases(backend, 0.f);
  }
}

TEST_CASE("which rows shards can draw", "[sampler]") {
  CHECK(is_drawn_by_shard({}, true));
  CHECK(is_drawn_by_shard({.temperature = 0, .top_p = 0.5f}, true));
  CHECK(is_drawn_by_shard({.top_k = 64, .top_p = 0.5f, .min_p = 0.1f, .num_logprobs = 64}, false));
  CHECK(is_drawn_by_shard({.min_p = 0.1f}, true));
  CHECK_FALSE(is_drawn_by_shard({.top_p = 0.5f}, false));
  CHECK_FALSE(is_drawn_by_shard({.top_k = 65}, false));
  CHECK_FALSE(is_drawn_by_shard({.num_logprobs = 65}, false));
  CHECK_FALSE(is_drawn_by_shard({.num_logprobs = 0}, true));
}

TEST_CASE("operands of draws by shard that do not fit are refused", "[sampler]") {
  CpuBackend backend({.num_threads = 1});
  std::vector<float> logits(128), words(256);
  std::vector<SamplingRow> rows(1);
  std::vector<std::int32_t> starts(2);
  SamplingBatch batch;
  batch.rows = {rows.data(), {1}};
  batch.banned.starts = {starts.data(), {2}};
  SurveyShardArgs survey{
      .logits = {.values = {logits.data(), {1, 128}}, .first_token = 8, .vocab_size = 191},
      .batch = batch,
      .survey = {words.data(), {1, kSurveyWords}}};
  CHECK_THROWS_WITH(backend.run(survey), Contains("must begin at a multiple of 64, got 8"));
  survey.logits.first_token = 64;
  CHECK_THROWS_WITH(backend.run(survey), Contains("of 128 tokens from 64 on must end within"));
  survey.logits.vocab_size = 192;
  survey.survey.extents[1] = 3;
  CHECK_THROWS_WITH(backend.run(survey), Contains("'survey' must have shape"));
  PickWinnerArgs pick;
  pick.rows = batch.rows;
  CHECK_THROWS_WITH(backend.run(pick), Contains("1 to 16 shards"));
}
