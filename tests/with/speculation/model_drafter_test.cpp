// A draft model: another engine behind the drafter.

#include "nanovllm/with/speculation/model_drafter.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/eight_bits.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/speculation.hpp"
#include "with/speculation/fairytale_openings.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// The drafter is the same model, or one whose weights were rounded to 4 bits.
struct Same : Float32Policy {
  using Guesses = DraftedBy<ModelDrafter<Engine<AnyModel, Float32Policy>>>;
};
struct RoundedPolicy : DefaultPolicy {
  using Weight = Int4Group32;
};
struct Rounded : Float32Policy {
  using Guesses = DraftedBy<ModelDrafter<Engine<AnyModel, RoundedPolicy>>>;
};

EngineConfig config(const std::string& draft_model, std::int32_t num_tokens) {
  EngineConfig out{.model = model_directory("fairytale"),
                   .num_threads = 1,
                   .max_num_seqs = 4,
                   .max_model_len = 256,
                   .seed = 1};
  out.extras.set(SpeculativeConfig{.model = "examples/models/" + draft_model,
                                   .model_kv_size = KvSize::blocks(100),
                                   .num_speculative_tokens = num_tokens,
                                   .adaptive = false});
  return out;
}

/// Greedy and sampled requests, with and without filters; some stop early.
template <class Policy>
SpeculationStats check_same_as_without() {
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (std::uint64_t i = 0; i < 12; ++i) {
    prompts.emplace_back(i % 2 == 0 ? "Once upon a time" : "The old king had three sons, and");
    params.push_back({.seed = i, .max_tokens = 32});
    params.back().temperature = i % 3 == 0 ? 0.f : 0.9f;
    if (i % 4 == 1) params.back().top_p = 0.9f;
    if (i % 4 == 2) params.back().top_k = 20;
    if (i % 5 == 4) params.back().n = 2;
  }
  Engine<AnyModel, Policy> plain(config("fairytale", 0));
  Engine<AnyModel, Policy> drafted(config("fairytale", 4));
  const std::vector<Output> expected = plain.generate_each(prompts, params);
  const std::vector<Output> got = drafted.generate_each(prompts, params);
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].error == "");
    CHECK(got[i].token_ids == expected[i].token_ids);
    CHECK(got[i].text == expected[i].text);
  }
  return drafted.stats().template of<SpeculationStats>();
}

}  // namespace

TEST_CASE("a model drafts for itself what it draws, greedy and sampled", "[speculation]") {
  const SpeculationStats stats = check_same_as_without<Same>();
  CHECK(stats.num_drafted > 200);
  CHECK(stats.num_accepted == stats.num_drafted);  // the words of seed and position are the same
  CHECK(stats.num_failed == 0);
}

TEST_CASE("a model that is nearly the same drafts most of what is drawn", "[speculation]") {
  const SpeculationStats stats = check_same_as_without<Rounded>();
  CAPTURE(stats.num_drafted);
  CHECK(stats.num_accepted < stats.num_drafted);
  CHECK(stats.num_accepted > stats.num_drafted / 3);
}

TEST_CASE("the small draft model of fairytale drafts what it tells", "[speculation]") {
  const std::vector<std::string> prompts = held_out_openings();
  for (const float temperature : {0.f, 0.7f}) {
    CAPTURE(temperature);
    std::vector<SamplingParams> params(
        prompts.size(),
        {.temperature = temperature, .top_k = 40, .top_p = 0.95f, .max_tokens = 97});
    for (std::size_t i = 0; i < params.size(); ++i) {
      params[i].seed = i;
      if (temperature > 0) params[i].min_p = 0.1f;
    }
    Engine<AnyModel, Same> plain(config("fairytale", 0)), drafted(config("fairytale_draft", 4));
    const std::vector<Output> expected = plain.generate(prompts, params);
    const std::vector<Output> got = drafted.generate(prompts, params);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].text == expected[i].text);
    const auto stats = drafted.stats().of<SpeculationStats>();
    const auto share = [&](std::size_t place) {
      return static_cast<double>(stats.accepted_by_position[place]) /
             static_cast<double>(stats.num_drafts);
    };
    UNSCOPED_INFO(stats.num_drafts << " chains, accepted by place " << share(0) << ", " << share(1)
                                   << ", " << share(2) << ", " << share(3));
    CHECK(stats.num_drafts > 300);
    CHECK(share(0) > 0.9);
    CHECK(share(3) > 0.7);
  }
}

TEST_CASE("a draft model of another tokenizer is refused", "[speculation]") {
  CHECK_THROWS_WITH(
      (Engine<AnyModel, Same>(config("../../tests/fixtures/parity/group4_untied_sharded", 4))),
      Catch::Matchers::Contains("must have the tokenizer of the model that it drafts for"));
}
