#pragma once
/// Beam search against transformers, on any backend: the searches of
/// tests/oracle/make_beam_search_fixture.py. Who includes this defines `BackendFloat32`, the
/// policy, and `backend_present()` before.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/beams.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

EngineConfig config(const std::string& model = "fairytale") {
  return {.model = model_directory(model), .num_threads = 2, .max_model_len = 128};
}

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
    if (json.contains("logit_bias")) {
      for (const nlohmann::json& bias : json["logit_bias"])
        one.params.logit_bias.push_back({bias[0].get<TokenId>(), bias[1].get<float>()});
      one.params.frequency_penalty = json["frequency_penalty"];
      one.params.presence_penalty = json["presence_penalty"];
    }
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
    CHECK(c.cumulative_logprob ==
          Approx(*c.beam_score * std::pow(length, expected.params.length_penalty)));
    const auto& ends = expected.params.stop_token_ids;
    const bool stops = std::count(ends.begin(), ends.end(), c.token_ids.back()) > 0;
    if (expected.params.ignore_eos)
      CHECK(c.finish_reason == (stops ? FinishReason::stop : FinishReason::length));
  }
}

}  // namespace

TEST_CASE("beams are those of transformers, in a batch and alone", "[beams]") {
  if (!backend_present()) return;
  const std::string model =
      GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded", "group8_untied_yarn_4x");
  const std::vector<Case> cases = cases_of(model);
  REQUIRE(cases.size() > 50);
  EngineConfig c = config(model);
  c.overlap = GENERATE(false, true);
  Engine<AnyModel, BackendFloat32> engine(c);
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
