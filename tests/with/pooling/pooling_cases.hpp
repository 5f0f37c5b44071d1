#pragma once
/// Requests whose outcome is a vector: what the hidden states are, and the laws: who is beside a
/// request, how its prompt is cut and whether it was preempted, cached or planned ahead must not
/// show in its vector.
///
/// Who includes this defines `BackendFloat32`, the policy, and `backend_present()` before.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/beams.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct PoolingPolicy : BackendFloat32 {
  static constexpr KvConfig kv{.block_size = 16};
};
using PoolingEngine = Engine<AnyModel, PoolingPolicy>;

EngineConfig pooling_config(bool overlap = true) {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .overlap = overlap};
}

/// A head of one's own: logits of some tokens, by the rows of lm_head.
class SomeLogits : public Pooler {
 public:
  SomeLogits(std::vector<float> rows, std::size_t num_rows)
      : rows_(std::move(rows)), num_rows_(num_rows) {}
  [[nodiscard]] std::vector<float> pool(std::span<const float> hidden) const override {
    std::vector<float> out;
    for (std::size_t row = 0; row < num_rows_; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < hidden.size(); ++i)
        sum += double{hidden[i]} * rows_[row * hidden.size() + i];
      out.push_back(static_cast<float>(sum));
    }
    return out;
  }

 private:
  std::vector<float> rows_;
  std::size_t num_rows_;
};

/// The row of `token` in lm_head, which is the embedding here, in bfloat16.
std::vector<float> lm_head_row(const Checkpoint& files, TokenId token, std::size_t hidden_size) {
  const CheckpointTensor* const table = files.find("model.embed_tokens.weight");
  REQUIRE(table != nullptr);
  REQUIRE(table->dtype == FileDType::bf16);
  REQUIRE(table->shape.at(1) == hidden_size);
  std::vector<bf16> row(hidden_size);
  std::memcpy(row.data(), table->data.data() + static_cast<std::size_t>(token) * 2 * hidden_size,
              2 * hidden_size);
  return {row.begin(), row.end()};
}

struct FailingPooler : Pooler {
  [[nodiscard]] std::vector<float> pool(std::span<const float>) const override {
    throw RequestError("this head fails");
  }
};

SamplingParams pooled(std::shared_ptr<const Pooler> pooler) {
  SamplingParams params;
  params.pooler = std::move(pooler);
  return params;
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  float out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) out = std::max(out, std::abs(a[i] - b[i]));
  return out;
}

/// Prompts, of which some begin alike and some are repeated, and their settings: two of three are
/// pooled, in different ways; the others generate.
struct PooledWork {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
};

PooledWork pooled_work(std::size_t count) {
  PooledWork work;
  const std::vector<TokenId> common = random_prompt(1, 37, 4000);
  const auto whole = std::make_shared<LastTokenPooler>(false);
  const auto unit = std::make_shared<LastTokenPooler>(true, 64);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<TokenId> prompt = i % 2 == 0 ? common : std::vector<TokenId>{};
    const std::vector<TokenId> own = random_prompt(10 + i, 1 + i * 7 % 23, 4000);
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (i % 6 == 5) prompt = work.prompts.back();
    SamplingParams params = pooled(i % 3 == 0 ? whole : unit);
    if (i % 3 == 1)
      params = {.temperature = 0.8f,
                .seed = 700 + i,
                .max_tokens = 40 + static_cast<std::int32_t>(i % 9),
                .ignore_eos = true};
    if (i % 6 == 4) params.repetition_penalty = 1.3f;  // deferred steps
    work.prompts.push_back(std::move(prompt));
    work.params.push_back(std::move(params));
  }
  return work;
}

}  // namespace

TEST_CASE("the hidden state of a prompt is what lm_head turns into its logits", "[pooling]") {
  if (!backend_present()) return;
  PoolingEngine engine(pooling_config());
  const Checkpoint files(model_directory("fairytale"));
  const auto hidden_size = static_cast<std::size_t>(engine.model_config().hidden_size);
  for (const std::size_t length : {1u, 2u, 16u, 17u, 100u}) {
    CAPTURE(length);
    const std::vector<TokenId> prompt = random_prompt(length, length, 4000);
    SamplingParams params{.temperature = 0.f, .max_tokens = 1, .ignore_eos = true, .logprobs = 20};
    const Output drawn = engine.generate(prompt, params);
    std::vector<float> rows;
    for (const auto& [token, logprob] : drawn.logprobs.at(0).top) {
      const std::vector<float> row = lm_head_row(files, token, hidden_size);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const Output scored =
        engine.generate(prompt, pooled(std::make_shared<SomeLogits>(std::move(rows), 20)));
    CHECK(scored.error == "");
    CHECK(scored.finish_reason == FinishReason::stop);
    CHECK(scored.token_ids.empty());
    CHECK(scored.text == "");
    REQUIRE(scored.pooled.size() == 20);
    for (std::size_t i = 1; i < 20; ++i) {  // the differences: log Z is in all of them
      CAPTURE(i);
      const float expected = drawn.logprobs[0].top[0].second - drawn.logprobs[0].top[i].second;
      CHECK(std::abs(scored.pooled[0] - scored.pooled[i] - expected) <= 2e-4f);
    }
  }
}

TEST_CASE("what is beside a request does not show in its vector", "[pooling][laws]") {
  if (!backend_present()) return;
  const PooledWork work = pooled_work(21);
  std::vector<Output> alone;
  {
    EngineConfig config = pooling_config(false);
    config.prefix_caching = false;
    PoolingEngine engine(std::move(config));
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      CAPTURE(i);
      alone.push_back(engine.generate(work.prompts[i], work.params[i]));
      REQUIRE(alone.back().error == "");
      const std::size_t hidden = static_cast<std::size_t>(engine.model_config().hidden_size);
      CHECK(alone.back().pooled.size() == (i % 3 == 0 ? hidden : i % 3 == 1 ? 0 : 64));
      CHECK(alone.back().num_prompt_tokens == std::ssize(work.prompts[i]));
    }
  }
  const auto check_engine = [&](EngineConfig config, bool preempts) {
    CAPTURE(*config.overlap, config.max_num_seqs, preempts);
    PoolingEngine engine(std::move(config));
    for (int round = 0; round < 2; ++round) {  // the second finds a warm cache
      const auto outputs = engine.generate(work.prompts, work.params);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        CAPTURE(round, i);
        CHECK(outputs[i].error == "");
        CHECK(outputs[i].token_ids == alone[i].token_ids);
        CHECK(largest_difference(outputs[i].pooled, alone[i].pooled) <= 5e-5f);
      }
    }
    engine.check_invariants();
    CHECK((engine.stats().num_preemptions > 0) == preempts);
    CHECK(engine.stats().num_hit_tokens > 0);
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  };
  for (const bool overlap : {false, true}) {
    check_engine(pooling_config(overlap), false);
    EngineConfig small = pooling_config(overlap);
    small.max_num_batched_tokens = 29;  // chunks
    small.max_num_seqs = 16;
    small.kv_size = KvSize::blocks(7);
    check_engine(small, true);
    EngineConfig few_rows = pooling_config(overlap);
    few_rows.max_num_seqs = 3;
    check_engine(few_rows, false);
  }
}

TEST_CASE("blocks of a pooled prompt are in the prefix cache, the last one too", "[pooling]") {
  if (!backend_present()) return;
  PoolingEngine engine(pooling_config());
  std::vector<TokenId> prompt = random_prompt(3, 32, 4000);  // two blocks
  CHECK(engine.generate(prompt, pooled(std::make_shared<LastTokenPooler>())).error == "");
  const std::vector<TokenId> more = random_prompt(4, 9, 4000);
  prompt.insert(prompt.end(), more.begin(), more.end());
  CHECK(engine.generate(prompt, {.max_tokens = 2}).num_cached_tokens == 32);
}

TEST_CASE("a turn of a session may be pooled, and the next goes on after it", "[pooling][laws]") {
  if (!backend_present()) return;
  for (const bool overlap : {false, true}) {
    PoolingEngine engine(pooling_config(overlap));
    const SamplingParams vector = pooled(std::make_shared<LastTokenPooler>());
    const SamplingParams text{.temperature = 0.f, .max_tokens = 8, .ignore_eos = true};
    Session session(engine);
    CHECK(session.generate(random_prompt(6, 20, 4000), text).error == "");
    std::vector<TokenId> all = session.tokens();
    const auto both = [&](std::size_t length, const SamplingParams& params) {
      CAPTURE(overlap, length);
      const std::vector<TokenId> more = random_prompt(length, length, 4000);
      all.insert(all.end(), more.begin(), more.end());
      const Output turn = session.generate(more, params), fresh = engine.generate(all, params);
      CHECK(turn.error == "");
      CHECK(turn.token_ids == fresh.token_ids);
      CHECK(largest_difference(turn.pooled, fresh.pooled) <= 5e-5f);
      engine.check_invariants();
    };
    for (const std::size_t length : {1u, 15u, 16u, 17u}) both(length, vector);
    CHECK(session.tokens() == all);
    both(1, text);
  }
}

TEST_CASE("a head that throws fails its own request alone", "[pooling][faults]") {
  if (!backend_present()) return;
  const std::vector<TokenId> prompt = random_prompt(8, 40, 4000);
  for (const bool overlap : {false, true}) {
    PoolingEngine engine(pooling_config(overlap));
    const auto fine = std::make_shared<LastTokenPooler>();
    const std::vector<float> expected = engine.generate(prompt, pooled(fine)).pooled;
    const std::vector<SamplingParams> params{
        pooled(fine),
        pooled(std::make_shared<FailingPooler>()),
        pooled(std::make_shared<LastTokenPooler>(true, 100000)),
        {.temperature = 0.f, .max_tokens = 9, .ignore_eos = true},
        pooled(fine)};
    const auto outputs = engine.generate(std::vector<Prompt>(params.size(), prompt), params);
    CHECK(outputs[0].error == "");
    CHECK(outputs[1].error == "this head fails");
    CHECK(outputs[1].finish_reason == FinishReason::error);
    CHECK(outputs[1].pooled.empty());
    CHECK(outputs[2].error ==
          concat("pooler: dimensions must be at most ", expected.size(), ", got 100000"));
    CHECK(outputs[3].token_ids.size() == 9);
    for (const std::size_t i : {std::size_t{0}, std::size_t{4}})
      CHECK(largest_difference(outputs[i].pooled, expected) <= 5e-5f);
    engine.check_invariants();
  }
}

TEST_CASE("a callback has the vector with the only event", "[pooling]") {
  if (!backend_present()) return;
  EngineConfig config = pooling_config();
  config.max_num_batched_tokens = 16;  // chunks
  PoolingEngine engine(std::move(config));
  int num_events = 0;
  engine.submit(random_prompt(9, 50, 4000), pooled(std::make_shared<LastTokenPooler>(true, 8)),
                [&](const TokenEvent& event) {
                  ++num_events;
                  CHECK(event.token == nullptr);
                  CHECK(event.finish_reason == FinishReason::stop);
                  REQUIRE(event.output != nullptr);
                  CHECK(event.output->pooled.size() == 8);
                  double sum = 0;
                  for (const float x : event.output->pooled) sum += double{x} * x;
                  CHECK(std::abs(sum - 1) < 1e-5);
                });
  while (engine.step()) {
  }
  CHECK(num_events == 1);
}

TEST_CASE("an abort ends a pooled request at any step", "[pooling][faults]") {
  if (!backend_present()) return;
  for (const bool overlap : {false, true}) {
    EngineConfig config = pooling_config(overlap);
    config.max_num_seqs = 10;
    config.max_num_batched_tokens = 16;
    PoolingEngine engine(std::move(config));
    for (int when = 0; when < 8; ++when) {
      CAPTURE(overlap, when);
      Output output;
      const RequestId id =
          engine.submit(random_prompt(8, 100, 4000), pooled(std::make_shared<LastTokenPooler>()),
                        [&](const TokenEvent& event) {
                          if (event.output != nullptr) output = *event.output;
                        });
      for (int step = 0; step < when; ++step) engine.step();
      const bool was_live = engine.abort(id);
      while (engine.step()) engine.check_invariants();
      CHECK(output.finish_reason == (was_live ? FinishReason::abort : FinishReason::stop));
      CHECK(output.pooled.empty() == was_live);
      CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
    }
  }
}

TEST_CASE("what cannot be asked of a pooled request is refused by name", "[pooling]") {
  if (!backend_present()) return;
  PoolingEngine engine(pooling_config());
  const auto check_refused = [&](const SamplingParams& params, const std::string& message) {
    CHECK_THROWS_WITH(engine.submit(std::vector<TokenId>{1, 2, 3}, params),
                      Catch::Matchers::Contains(message));
  };
  SamplingParams params = pooled(std::make_shared<LastTokenPooler>());
  params.n = 2;
  check_refused(params, "pooler cannot be combined with several samples or beams");
  params.n = 1;
  params.beam_width = 1;
  check_refused(params, "pooler cannot be combined with several samples or beams");
  params.beam_width.reset();
  params.logprobs = 1;
  check_refused(params, "pooler cannot be combined with logprobs");
  params.logprobs.reset();
  params.prompt_logprobs = 1;
  check_refused(params, "pooler cannot be combined with prompt_logprobs");
  CHECK_THROWS_WITH(LastTokenPooler(true, 0), "pooler: dimensions must be >= 1, got 0");
}
