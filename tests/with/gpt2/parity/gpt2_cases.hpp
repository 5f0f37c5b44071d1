#pragma once
/// GPT-2 on any backend: against Hugging Face transformers, by tests/oracle/make_gpt2_fixtures.py,
/// and the engine's laws. Who includes this defines `BackendFloat32` and `BackendBfloat16`, the
/// policies, and `backend_present()` before.

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/parity/greedy_traces.hpp"
#include "engine/parity/parity.hpp"
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "weights_there.hpp"
#include "with/gpt2/parity/gpt2_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using AnyGpt2 = Gpt2<shapes::gpt2_any>;

/// A checkpoint with its reference: written from the formula, or tiny_gpt2.
struct Gpt2Case {
  Gpt2Case(const std::string& name, const std::string& dtype) : reference(name, dtype) {
    if (name != "tiny_gpt2") files.emplace(reference.config(), reference.seed());
  }

  [[nodiscard]] std::filesystem::path directory() const {
    return files ? files->path() : "examples/models/tiny_gpt2";
  }

  Reference reference;
  std::optional<Gpt2Files> files;
};

inline std::string each_model() {
  return GENERATE(as<std::string>{}, "gpt2_heads3_dim64", "gpt2_heads5_dim96", "gpt2_heads25_dim8",
                  "tiny_gpt2");
}

/// A model of two heads with noise for weights; positions for 96 tokens.
inline nlohmann::json two_heads() {
  return {{"model_type", "gpt2"}, {"n_embd", 128},     {"n_head", 2},     {"n_layer", 2},
          {"n_inner", nullptr},   {"n_positions", 96}, {"vocab_size", 83}};
}

}  // namespace

TEST_CASE("GPT-2's float32 log-probabilities of every position are those of transformers",
          "[gpt2][parity]") {
  if (!backend_present()) return;
  const std::string model = each_model();
  if (model == "tiny_gpt2" && !weights_there(model)) return;
  const Gpt2Case test(model, "float32");
  Difference full, likely;
  compare_prefixes<AnyGpt2, BackendFloat32>(test.directory(), 114, test.reference, full, likely);
  INFO(model << ": largest difference " << full.largest << ", mean " << full.mean());
  CHECK(full.largest < 1e-4);
  CHECK(likely.largest < 1e-4);
}

TEST_CASE("GPT-2's float32 greedy tokens and their log-probabilities are those of transformers",
          "[gpt2][parity]") {
  if (!backend_present()) return;
  const std::string model = each_model();
  if (model == "tiny_gpt2" && !weights_there(model)) return;
  const Gpt2Case test(model, "float32");
  Engine<AnyGpt2, BackendFloat32> engine({.model = test.directory(), .num_threads = 2});
  INFO(model);
  compare_greedy(engine, test.reference);
}

TEST_CASE("GPT-2's bfloat16 log-probabilities and greedy tokens are near those of transformers",
          "[gpt2][parity]") {
  if (!backend_present()) return;
  const std::string model = each_model();
  if (model == "tiny_gpt2" && !weights_there(model)) return;
  const Gpt2Case test(model, "bfloat16");
  Difference full, likely;
  compare_prefixes<AnyGpt2, BackendBfloat16>(test.directory(), 114, test.reference, full, likely);
  // Where transformers' own two attention implementations differ by more, theirs is the bound.
  const double bound = std::max(2e-2, test.reference.own_disagreement());
  INFO(model << ": mean difference " << full.mean() << ", of likely tokens " << likely.mean()
             << ", transformers' own " << test.reference.own_disagreement());
  CHECK(full.mean() < bound);
  CHECK(likely.mean() < bound);

  Engine<AnyGpt2, BackendBfloat16> engine({.model = test.directory(), .num_threads = 2});
  const Mismatches found = greedy_mismatches(engine, test.reference);
  INFO(found.count << " of " << found.num_steps << " differ, the widest gap is "
                   << found.widest_gap);
  CHECK(found.widest_gap < std::max(2e-2, test.reference.own_largest_disagreement()));
  CHECK(found.count < found.num_steps / 8);
}

TEST_CASE("GPT-2 batched, cached and chunked is GPT-2 alone, uncached and whole", "[gpt2][laws]") {
  if (!backend_present()) return;
  const Gpt2Files files(two_heads(), 9);
  const auto engine_with = [&](EngineConfig config) {
    config.model = files.path();
    config.num_threads = 2;
    return std::make_unique<Engine<AnyGpt2, BackendFloat32>>(std::move(config));
  };
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint64_t i = 0; i < 6; ++i) prompts.push_back(random_prompt(i, 1 + 13 * i, 83));
  for (std::size_t i = 4; i < 6; ++i)  // two share 32 tokens with a third
    std::copy_n(prompts[3].begin(), 32, prompts[i].begin());

  const auto plain = engine_with({.prefix_caching = false});
  std::vector<Trace> alone;
  for (const auto& prompt : prompts)
    alone.push_back(traces(*plain, std::vector<std::vector<TokenId>>{prompt}).front());
  check_equal(traces(*plain, prompts), alone);

  const auto cached = engine_with({});
  check_equal(traces(*cached, prompts), alone);
  check_equal(traces(*cached, prompts), alone);
  CHECK(cached->stats().num_hit_tokens >= 64);

  const auto chunked = engine_with({.max_num_batched_tokens = 7, .prefix_caching = false});
  check_equal(traces(*chunked, prompts), alone);
}

TEST_CASE("a sequence of GPT-2 ends with its positions", "[gpt2]") {
  if (!backend_present()) return;
  const Gpt2Files files(two_heads(), 9);
  Engine<AnyGpt2, BackendFloat32> engine({.model = files.path(), .num_threads = 2});
  CHECK(engine.max_total_tokens() == 96);
  const Output output = engine.generate(random_prompt(1, 90, 83),
                                        {.temperature = 0, .max_tokens = 50, .ignore_eos = true});
  CHECK(output.finish_reason == FinishReason::length);
  CHECK(output.token_ids.size() == 6);
  CHECK_FALSE(engine.generate(random_prompt(1, 97, 83)).error.empty());
  using Gpt2Engine = Engine<AnyGpt2, BackendFloat32>;
  CHECK_THROWS_WITH(Gpt2Engine({.model = files.path(), .max_model_len = 97}),
                    Catch::Matchers::Contains("[2, 96]"));
}
