#pragma once
/// Log-probabilities of prompts, on any backend: against transformers (the values of
/// tests/oracle/make_prompt_logprobs_fixture.py), and the laws: who is beside a request, how its
/// prompt is cut and whether it was preempted, cached or planned ahead must not show in them.
///
/// Who includes this defines `BackendFloat32`, the policy, and `backend_present()` before.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/beams.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct PromptPolicy : BackendFloat32 {
  static constexpr KvConfig kv{.block_size = 16};
};
using PromptEngine = Engine<AnyModel, PromptPolicy>;
using PromptLogprobs = std::vector<std::optional<TokenLogprobs>>;

EngineConfig prompt_config(bool overlap = true) {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .overlap = overlap};
}

/// Requests in turn: scored prompts, one of them of three samples, one with penalties of its own;
/// and beside them plain and edited requests, some with the same prompts.
struct ScoredWork {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
};

ScoredWork scored_work(std::int64_t vocab, std::size_t count) {
  ScoredWork work;
  const std::vector<TokenId> common = random_prompt(1, 37, vocab);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<TokenId> prompt = i % 2 == 0 ? common : std::vector<TokenId>{};
    const std::vector<TokenId> own = random_prompt(10 + i, 1 + i * 7 % 23, vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (i % 6 == 5) prompt = work.prompts.back();
    SamplingParams params{
        .seed = 700 + i, .max_tokens = 20 + static_cast<std::int32_t>(i % 9), .ignore_eos = true};
    params.temperature = i % 3 == 0 ? 0.f : 0.8f;
    if (i % 4 == 1) params.logprobs = 2;
    if (i % 6 != 5) params.prompt_logprobs = static_cast<std::int32_t>(i * 5 % 21);
    if (i % 6 == 2) params.n = 3;
    if (i % 6 == 3) {
      params.repetition_penalty = 1.3f;
      params.logit_bias = {{static_cast<TokenId>(i), 5.f}};
      params.bad_words = {"the king"};
    }
    if (i % 6 == 4) params.prompt_logprobs.reset();
    work.prompts.push_back(std::move(prompt));
    work.params.push_back(std::move(params));
  }
  return work;
}

std::vector<TokenId> all_tokens(const Output& output) {
  std::vector<TokenId> tokens = output.token_ids;
  for (const Completion& other : output.alternatives)
    tokens.insert(tokens.end(), other.token_ids.begin(), other.token_ids.end());
  return tokens;
}

void check_near(const TokenLogprobs& entry, const TokenLogprobs& expected, float margin) {
  CHECK(entry.token_id == expected.token_id);
  CHECK(std::abs(entry.logprob - expected.logprob) <= margin);
  REQUIRE(entry.top.size() == expected.top.size());
  for (std::size_t i = 0; i < entry.top.size(); ++i)  // ties may be in either order
    CHECK(std::abs(entry.top[i].second - expected.top[i].second) <= margin);
}

void check_near(const PromptLogprobs& got, const PromptLogprobs& expected, float margin = 5e-5f) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    REQUIRE(got[i].has_value() == expected[i].has_value());
    if (got[i]) check_near(*got[i], *expected[i], margin);
  }
}

}  // namespace

TEST_CASE("log-probabilities of prompts are those of transformers", "[prompt_logprobs][parity]") {
  if (!backend_present()) return;
  std::ifstream file("tests/fixtures/prompt_logprobs.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const auto& cases = fixture.at("cases");
  REQUIRE(cases.size() >= 6);
  constexpr std::size_t kTop = 5;
  constexpr double kMargin = 1e-4;
  std::vector<std::vector<TokenId>> prompts;
  for (const auto& entry : cases) prompts.push_back(entry.at("prompt"));
  SamplingParams params{.temperature = 0.f, .max_tokens = 2};
  params.prompt_logprobs = kTop;
  for (const bool overlap : {false, true}) {
    PromptEngine engine(prompt_config(overlap));
    const auto outputs = engine.generate(prompts, params);
    for (std::size_t c = 0; c < outputs.size(); ++c) {
      CAPTURE(overlap, c);
      CHECK(outputs[c].error == "");
      const PromptLogprobs& got = outputs[c].prompt_logprobs;
      REQUIRE(got.size() == prompts[c].size());
      CHECK_FALSE(got[0]);
      for (std::size_t i = 1; i < got.size(); ++i) {
        CAPTURE(i);
        REQUIRE(got[i]);
        CHECK(got[i]->token_id == prompts[c][i]);
        CHECK(std::abs(got[i]->logprob - cases[c]["logprobs"][i - 1].get<double>()) <= kMargin);
        CHECK(got[i]->chosen.empty());
        REQUIRE(got[i]->top.size() == kTop);
        std::map<TokenId, double> likeliest;
        for (const auto& pair : cases[c]["top"][i - 1]) likeliest[pair.at(0)] = pair.at(1);
        for (std::size_t rank = 0; rank < kTop; ++rank) {
          const auto [token, logprob] = got[i]->top[rank];
          const double expected = cases[c]["top"][i - 1][rank][1];
          CHECK(std::abs(logprob - expected) <= kMargin);
          REQUIRE(likeliest.contains(token));
          CHECK(std::abs(logprob - likeliest[token]) <= kMargin);
        }
      }
    }
  }
}

TEST_CASE("what is beside a request does not show in its prompt's log-probabilities",
          "[prompt_logprobs][laws]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const ScoredWork work = scored_work(model.vocab_size, 18);
  std::vector<Output> alone;
  {
    EngineConfig config = prompt_config(false);
    config.prefix_caching = false;
    PromptEngine engine(std::move(config));
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      alone.push_back(engine.generate(work.prompts[i], work.params[i]));
      CAPTURE(i);
      REQUIRE(alone.back().error == "");
      const bool is_scored = work.params[i].prompt_logprobs.has_value();
      CHECK(alone.back().prompt_logprobs.size() == (is_scored ? work.prompts[i].size() : 0));
    }
    // Asking for them changes nothing else.
    for (std::size_t i = 0; i < 6; ++i) {
      SamplingParams params = work.params[i];
      params.prompt_logprobs.reset();
      CHECK(all_tokens(engine.generate(work.prompts[i], params)) == all_tokens(alone[i]));
      if (!work.params[i].prompt_logprobs) continue;
      SamplingParams plain{.max_tokens = 1};  // nor do edits change them
      plain.prompt_logprobs = work.params[i].prompt_logprobs;
      check_near(engine.generate(work.prompts[i], plain).prompt_logprobs, alone[i].prompt_logprobs);
    }
  }
  const auto check_engine = [&](EngineConfig config, bool preempts) {
    CAPTURE(*config.overlap, config.max_num_seqs, preempts);
    PromptEngine engine(std::move(config));
    for (int round = 0; round < 2; ++round) {  // the second finds a warm cache
      const auto outputs = engine.generate(work.prompts, work.params);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        CAPTURE(round, i);
        CHECK(outputs[i].error == "");
        CHECK(all_tokens(outputs[i]) == all_tokens(alone[i]));
        check_near(outputs[i].prompt_logprobs, alone[i].prompt_logprobs);
        if (work.params[i].prompt_logprobs) CHECK(outputs[i].num_cached_tokens == 0);
      }
    }
    engine.check_invariants();
    CHECK((engine.stats().num_preemptions > 0) == preempts);
    CHECK(engine.stats().num_hit_tokens > 0);  // of the others
  };
  for (const bool overlap : {false, true}) {
    check_engine(prompt_config(overlap), false);
    EngineConfig small = prompt_config(overlap);
    small.max_num_batched_tokens = 29;  // chunks
    small.max_num_seqs = 16;
    small.kv_size = KvSize::blocks(7);
    check_engine(small, true);
    EngineConfig few_rows = prompt_config(overlap);
    few_rows.max_num_seqs = 3;
    check_engine(few_rows, false);
  }
}

TEST_CASE("a generation that is scored as a prompt has the same log-probabilities",
          "[prompt_logprobs][laws]") {
  if (!backend_present()) return;
  PromptEngine engine(prompt_config());
  const std::vector<TokenId> prompt = random_prompt(5, 21, 4000);
  const Output generated = engine.generate(
      prompt, {.temperature = 1.f, .seed = 3, .max_tokens = 40, .ignore_eos = true, .logprobs = 4});
  std::vector<TokenId> whole = prompt;
  whole.insert(whole.end(), generated.token_ids.begin(), generated.token_ids.end());
  SamplingParams params{.max_tokens = 1};
  params.prompt_logprobs = 4;
  const Output scored = engine.generate(whole, params);
  REQUIRE(scored.prompt_logprobs.size() == whole.size());
  for (std::size_t i = 0; i < generated.logprobs.size(); ++i) {
    CAPTURE(i);
    check_near(scored.prompt_logprobs[prompt.size() + i].value(), generated.logprobs[i], 1e-4f);
  }
}

TEST_CASE("a turn of a session has the log-probabilities of all its prompt",
          "[prompt_logprobs][laws]") {
  if (!backend_present()) return;
  PromptEngine engine(prompt_config());
  SamplingParams params{.temperature = 0.f, .max_tokens = 9, .ignore_eos = true};
  Session session(engine);
  CHECK(session.generate(random_prompt(6, 30, 4000), params).error == "");
  params.prompt_logprobs = 2;
  std::vector<TokenId> whole = session.tokens();
  const std::vector<TokenId> more = random_prompt(7, 12, 4000);
  whole.insert(whole.end(), more.begin(), more.end());
  const Output turn = session.generate(more, params);
  CHECK(turn.error == "");
  CHECK(turn.num_cached_tokens == 0);
  const Output fresh = engine.generate(whole, params);
  CHECK(turn.token_ids == fresh.token_ids);
  REQUIRE(fresh.prompt_logprobs.size() == whole.size());
  check_near(turn.prompt_logprobs, fresh.prompt_logprobs);
  params.prompt_logprobs.reset();
  CHECK(session.generate(more, params).num_cached_tokens > 40);  // that turn left its blocks
}

TEST_CASE("callbacks have a prompt's log-probabilities with the first token of sample 0",
          "[prompt_logprobs]") {
  if (!backend_present()) return;
  EngineConfig config = prompt_config();
  config.max_num_batched_tokens = 16;  // chunks
  PromptEngine engine(std::move(config));
  SamplingParams params{.temperature = 0.f, .max_tokens = 4, .ignore_eos = true};
  params.n = 2;
  params.prompt_logprobs = 2;
  PromptLogprobs first, whole;
  int num_with = 0, num_tokens = 0;
  engine.submit(random_prompt(9, 50, 4000), params, [&](const TokenEvent& event) {
    CHECK((event.prompt_logprobs != nullptr) == (event.token != nullptr && event.sample == 0));
    num_tokens += event.token != nullptr;
    if (event.prompt_logprobs != nullptr && num_with++ == 0) first = *event.prompt_logprobs;
    if (event.output != nullptr) whole = event.output->prompt_logprobs;
  });
  while (engine.step()) {
  }
  CHECK(num_with == 4);
  CHECK(num_tokens == 8);
  REQUIRE(first.size() == 50);
  check_near(first, whole);
  params.prompt_logprobs.reset();
  engine.submit(random_prompt(9, 5, 4000), params,
                [](const TokenEvent& event) { CHECK(event.prompt_logprobs == nullptr); });
  while (engine.step()) {
  }
}

TEST_CASE("an abort leaves the log-probabilities that there are", "[prompt_logprobs][faults]") {
  if (!backend_present()) return;
  const std::vector<TokenId> prompt = random_prompt(8, 100, 4000);
  SamplingParams params{.temperature = 0.f, .max_tokens = 5};
  params.prompt_logprobs = 1;
  for (const bool overlap : {false, true}) {
    EngineConfig config = prompt_config(overlap);
    config.max_num_seqs = 10;
    config.max_num_batched_tokens = 64;
    PromptEngine engine(std::move(config));
    const PromptLogprobs expected = engine.generate(prompt, params).prompt_logprobs;
    for (int when = 0; when < 8; ++when) {
      CAPTURE(overlap, when);
      Output output;
      const RequestId id = engine.submit(prompt, params, [&](const TokenEvent& event) {
        if (event.output != nullptr) output = *event.output;
      });
      for (int step = 0; step < when; ++step) engine.step();
      engine.abort(id);
      while (engine.step()) engine.check_invariants();
      CHECK(output.finish_reason == FinishReason::abort);
      REQUIRE(output.prompt_logprobs.size() == prompt.size());
      const auto num_there = static_cast<std::size_t>(std::ranges::count_if(
          output.prompt_logprobs, [](const auto& x) { return x.has_value(); }));
      CHECK(num_there == static_cast<std::size_t>(10 * when));
      for (std::size_t i = 1; i <= num_there; ++i)
        check_near(output.prompt_logprobs[i].value(), *expected[i], 5e-5f);
      CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
    }
  }
}

TEST_CASE("log-probabilities of prompts that cannot be had are refused by name",
          "[prompt_logprobs]") {
  if (!backend_present()) return;
  PromptEngine engine(prompt_config());
  const auto check_refused = [&](const SamplingParams& params, const std::string& message) {
    CHECK_THROWS_WITH(engine.submit(std::vector<TokenId>{1, 2, 3}, params),
                      Catch::Matchers::Contains(message));
  };
  SamplingParams params;
  params.prompt_logprobs = -1;
  check_refused(params, "prompt_logprobs must be in [0, 20], got -1");
  params.prompt_logprobs = 21;
  check_refused(params, "prompt_logprobs must be in [0, 20], got 21");
  params.prompt_logprobs = 0;
  params.beam_width = 2;
  check_refused(params, "beam_width cannot be combined with prompt_logprobs");
}
