// Beam search: transformers' beams, token for token, whatever the engine does on the way.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/kv/radix_prefix_cache.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Cache>
struct CachePolicy : Float32Policy {
  template <int>
  using PrefixCache = Cache;
  static constexpr KvConfig kv{.block_size = 16};
};
using RadixPolicy = CachePolicy<RadixPrefixCache<16>>;
struct UncachedPolicy : CachePolicy<NoPrefixCache<16>> {
  using Scheduling = PrefillFirst;
};

EngineConfig config(const std::string& model = "fairytale") {
  return {.model = model_directory(model), .num_threads = 2, .max_model_len = 128};
}

std::vector<TokenId> prompt_of(std::size_t length) { return random_prompt(3, length, 4000); }

SamplingParams beams(std::int32_t width, std::int32_t max_tokens = 12) {
  SamplingParams params;
  params.n = width;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.beam_width = width;
  return params;
}

std::vector<Completion> completions(const Output& output) {
  REQUIRE(output.error == "");
  std::vector<Completion> all{output};
  all.insert(all.end(), output.alternatives.begin(), output.alternatives.end());
  return all;
}

std::vector<std::vector<TokenId>> tokens_of(const Output& output) {
  std::vector<std::vector<TokenId>> out;
  for (const Completion& c : completions(output)) out.push_back(c.token_ids);
  return out;
}

/// A search of tests/oracle/make_beam_search_fixture.py.
struct Case {
  std::vector<TokenId> prompt;
  SamplingParams params;
  std::vector<std::vector<TokenId>> sequences;
  std::vector<float> scores;  ///< empty if unknown
  std::string description;
};

EarlyStopping early_stopping_of(const nlohmann::json& value) {
  if (value.is_string()) return EarlyStopping::never;
  return value.get<bool>() ? EarlyStopping::yes : EarlyStopping::no;
}

std::vector<Case> cases_of(const std::string& model) {
  std::ifstream file("tests/fixtures/beam_search.json");
  std::ifstream prompts_file("tests/fixtures/parity/" + model + ".json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const nlohmann::json prompts = nlohmann::json::parse(prompts_file)["prompts"];
  std::vector<Case> out;
  for (const nlohmann::json& json : fixture["cases"]) {
    if (json["model"] != model) continue;
    Case one;
    one.prompt = prompts[json["prompt"].get<std::size_t>()].get<std::vector<TokenId>>();
    one.params = beams(json["beam_width"], json["max_tokens"]);
    one.params.min_tokens = json["min_tokens"];
    one.params.length_penalty = json["length_penalty"];
    one.params.early_stopping = early_stopping_of(json["early_stopping"]);
    one.params.ignore_eos = !json["end_tokens"].is_null();
    if (one.params.ignore_eos)
      one.params.stop_token_ids = json["end_tokens"].get<std::vector<TokenId>>();
    one.sequences = json["sequences"].get<std::vector<std::vector<TokenId>>>();
    if (!json["scores"].is_null()) one.scores = json["scores"].get<std::vector<float>>();
    nlohmann::json about = json;
    about.erase("sequences");
    about.erase("scores");
    one.description = about.dump();
    out.push_back(one);
  }
  return out;
}

void compare(const Case& expected, const Output& output) {
  CAPTURE(expected.description);
  const std::vector<Completion> all = completions(output);
  CHECK(tokens_of(output) == expected.sequences);
  for (std::size_t i = 0; i < std::min(all.size(), expected.sequences.size()); ++i) {
    const Completion& c = all[i];
    REQUIRE(c.beam_score);
    if (!expected.scores.empty()) {
      const float wanted = expected.scores[i];
      CHECK(std::abs(*c.beam_score - wanted) < 1e-4f * std::max(1.f, std::abs(wanted)));
    }
    const auto length = static_cast<double>(c.token_ids.size());
    CHECK(c.cumulative_logprob == Approx(*c.beam_score *
                                         std::pow(length, expected.params.length_penalty)));
    const auto& ends = expected.params.stop_token_ids;
    const bool stops = std::count(ends.begin(), ends.end(), c.token_ids.back()) > 0;
    if (expected.params.ignore_eos)
      CHECK(c.finish_reason == (stops ? FinishReason::stop : FinishReason::length));
  }
}

}  // namespace

TEST_CASE("beams are those of transformers, in a batch and alone", "[beams]") {
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded",
                                     "group8_untied_yarn_4x");
  const std::vector<Case> cases = cases_of(model);
  REQUIRE(cases.size() > 50);
  EngineConfig c = config(model);
  c.overlap = GENERATE(false, true);
  Engine<AnyModel, Float32Policy> engine(c);
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (const Case& one : cases) {
    prompts.push_back(one.prompt);
    params.push_back(one.params);
  }
  const std::vector<Output> outputs = engine.generate(prompts, params);
  for (std::size_t i = 0; i < cases.size(); ++i) compare(cases[i], outputs[i]);
  engine.check_invariants();
  for (std::size_t i = 0; i < cases.size(); i += 4)
    compare(cases[i], engine.generate(cases[i].prompt, cases[i].params));
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
}

TEMPLATE_TEST_CASE("beams are the same with every cache, in every pool, planned ahead or not",
                   "[beams]", Float32Policy, RadixPolicy, UncachedPolicy) {
  Engine<AnyModel, Float32Policy> plain(config());
  const std::vector<TokenId> prompt = prompt_of(37);
  const auto wide = tokens_of(plain.generate(prompt, beams(4, 30)));
  const auto narrow = tokens_of(plain.generate(prompt_of(20), beams(2, 20)));
  REQUIRE(wide.size() == 4);
  REQUIRE(plain.stats().num_preemptions == 0);
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  c.kv_size = GENERATE(KvSize::blocks(60), KvSize::blocks(12), KvSize::blocks(6));
  c.max_num_batched_tokens = GENERATE(64, 9);
  c.max_num_seqs = GENERATE(8, 3);
  Engine<AnyModel, TestType> engine(c);
  SamplingParams sampled;
  sampled.temperature = 0.f;
  sampled.max_tokens = 20;
  const std::vector<Output> outputs =
      engine.generate(std::vector<Prompt>{prompt, prompt_of(5), prompt_of(20), prompt},
                      std::vector<SamplingParams>{beams(4, 30), sampled, beams(2, 20), beams(4, 30)});
  CHECK(tokens_of(outputs[0]) == wide);
  CHECK(tokens_of(outputs[2]) == narrow);
  CHECK(tokens_of(outputs[3]) == wide);
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  CHECK(engine.stats().num_finished == 11);
  CHECK(engine.stats().num_waiting == 0);
}

TEST_CASE("fewer completions than beams are the best ones, and nothing is streamed", "[beams]") {
  Engine<AnyModel, Float32Policy> engine(config());
  const std::vector<Completion> all = completions(engine.generate(prompt_of(20), beams(5)));
  SamplingParams params = beams(5);
  params.n = 2;
  params.temperature = 0.f;  // which is what a beam search is
  int num_events = 0;
  Output output;
  engine.submit(prompt_of(20), params, [&](const TokenEvent& event) {
    ++num_events;
    CHECK(event.token == nullptr);
    CHECK(event.finish_reason == FinishReason::length);
    if (event.output != nullptr) output = *event.output;
  });
  while (engine.step()) engine.check_invariants();
  CHECK(num_events == 1);
  const std::vector<Completion> best = completions(output);
  REQUIRE(best.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(best[i].token_ids == all[i].token_ids);
    CHECK(best[i].text == all[i].text);
    CHECK_FALSE(best[i].text.empty());
    CHECK(best[i].beam_score == all[i].beam_score);
  }
  CHECK(*all[0].beam_score >= *all[1].beam_score);
  CHECK(output.timings.first_token > 0);
  CHECK(output.timings.mean_inter_token > 0);
}

TEST_CASE("a beam search computes its prompt once and shares what its beams share", "[beams]") {
  constexpr int kWidth = 8, kWhole = 4;  // blocks of the prompt, and half of one more
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(60);
  c.overlap = GENERATE(false, true);
  Engine<AnyModel, CachePolicy<HashPrefixCache<16>>> engine(c);
  engine.submit(prompt_of(kWhole * 16 + 8), beams(kWidth, 8));
  std::int64_t least_free = 60;
  while (engine.step()) {
    engine.check_invariants();
    least_free = std::min(least_free, engine.stats().num_free_kv_blocks);
  }
  CHECK(60 - least_free <= kWhole + kWidth);
  // The prompt; the beams that started behind it computed one token each in their first step.
  CHECK(engine.stats().num_prefill_tokens == kWhole * 16 + 8 + kWidth - 1);
  CHECK(engine.stats().num_decode_tokens == kWidth * 7 - (kWidth - 1));
}

TEST_CASE("a beam search that is aborted leaves nothing behind", "[beams]") {
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  c.kv_size = GENERATE(KvSize::blocks(60), KvSize::blocks(6));
  Engine<AnyModel, Float32Policy> engine(c);
  for (int num_steps = 0; num_steps < 12; ++num_steps) {
    Output output;
    const RequestId id =
        engine.submit(prompt_of(37), beams(4, 30), [&](const TokenEvent& event) {
          if (event.output != nullptr) output = *event.output;
        });
    for (int i = 0; i < num_steps; ++i) REQUIRE(engine.step());
    engine.abort(id);
    while (engine.step()) engine.check_invariants();
    engine.check_invariants();
    CHECK(output.finish_reason == FinishReason::abort);
    CHECK(output.token_ids.empty());
    CHECK(output.alternatives.size() == 3);
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
    CHECK(engine.stats().num_waiting + engine.stats().num_running == 0);
  }
  CHECK(engine.stats().num_finished == 12 * 4);
}

TEST_CASE("a prompt that leaves room for few tokens is searched to the pool's end", "[beams]") {
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(4);
  Engine<AnyModel, Float32Policy> engine(c);
  const Output output = engine.generate(prompt_of(60), beams(3, 50));
  for (const Completion& completion : completions(output)) {
    CHECK(completion.token_ids.size() == 4 * static_cast<std::size_t>(Float32Policy::kv.block_size) - 59);
    CHECK(completion.finish_reason == FinishReason::length);
  }
  engine.check_invariants();
}

TEST_CASE("a beam search refuses what it cannot do", "[beams]") {
  Engine<AnyModel, Float32Policy> engine(config());
  const auto error = [&](auto change) {
    SamplingParams params = beams(4);
    change(params);
    return engine.generate(prompt_of(4), params).error;
  };
  CHECK(error([](SamplingParams&) {}) == "");
  CHECK(error([](auto& p) { p.beam_width = 3; }) == "beam_width must be in [n = 4, 128], got 3");
  CHECK(error([](auto& p) { p.beam_width = 129; }) == "beam_width must be in [n = 4, 128], got 129");
  CHECK(error([](auto& p) { p.best_of = 4; }) == "beam_width cannot be combined with best_of");
  CHECK(error([](auto& p) { p.temperature = 1.f; }) ==
        "beam_width cannot be combined with a temperature other than 0");
  CHECK(error([](auto& p) { p.top_k = 4; }) == "beam_width cannot be combined with top_k");
  CHECK(error([](auto& p) { p.top_p = 1.f; }) == "beam_width cannot be combined with top_p");
  CHECK(error([](auto& p) { p.min_p = 0.f; }) == "beam_width cannot be combined with min_p");
  CHECK(error([](auto& p) { p.logprobs = 0; }) == "beam_width cannot be combined with logprobs");
  CHECK(error([](auto& p) { p.stop = {"x"}; }) == "beam_width cannot be combined with stop strings");
  CHECK(error([](auto& p) { p.length_penalty = std::nanf(""); }) ==
        "length_penalty must be finite, got nan");
  CHECK(error([](auto& p) { p.beam_width.reset(), p.length_penalty = 2; }) ==
        "length_penalty and early_stopping are of a beam search and need beam_width");
  CHECK(error([](auto& p) { p.beam_width.reset(), p.early_stopping = EarlyStopping::never; }) ==
        "length_penalty and early_stopping are of a beam search and need beam_width");
  CHECK(error([](auto& p) {
          p.beam_width = 128;
          for (TokenId i = 0; i < 8; ++i) p.stop_token_ids.push_back(i);
        }) == "beam_width 128 with 8 end tokens needs the 1152 likeliest tokens of every beam, but "
              "there are at most 1024");
}
