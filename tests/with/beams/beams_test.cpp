// Beam search: transformers' beams, token for token, whatever the engine does on the way.

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
static bool backend_present() { return true; }
#include "with/beams/beam_cases.hpp"

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

std::vector<TokenId> prompt_of(std::size_t length) { return random_prompt(3, length, 4000); }

/// What is found in a pool with room for all, without any other request.
std::vector<std::vector<TokenId>> undisturbed(const std::vector<TokenId>& prompt, int width,
                                              int max_tokens) {
  Engine<AnyModel, Float32Policy> engine(config());
  const auto out = tokens_of(engine.generate(prompt, beams(width, max_tokens)));
  REQUIRE(engine.stats().num_preemptions == 0);
  return out;
}

/// Prefill tokens a step, and sequences at a time.
using Limits = std::pair<int, int>;

}  // namespace

TEMPLATE_TEST_CASE("beams are the same with every cache, in every pool, planned ahead or not",
                   "[beams]", Float32Policy, RadixPolicy, UncachedPolicy) {
  const std::vector<TokenId> prompt = prompt_of(37);
  static const auto wide = undisturbed(prompt, 3, 12);
  static const auto narrow = undisturbed(prompt_of(20), 2, 9);
  REQUIRE(wide.size() == 3);
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  c.kv_size = GENERATE(KvSize::blocks(60), KvSize::blocks(8), KvSize::blocks(4));
  std::tie(c.max_num_batched_tokens, c.max_num_seqs) = GENERATE(Limits{64, 8}, Limits{9, 3});
  Engine<AnyModel, TestType> engine(c);
  SamplingParams sampled;
  sampled.temperature = 0.f;
  sampled.max_tokens = 9;
  const std::vector<Output> outputs = engine.generate(
      std::vector<Prompt>{prompt, prompt_of(5), prompt_of(20), prompt},
      std::vector<SamplingParams>{beams(3, 12), sampled, beams(2, 9), beams(3, 12)});
  CHECK(tokens_of(outputs[0]) == wide);
  CHECK(tokens_of(outputs[2]) == narrow);
  CHECK(tokens_of(outputs[3]) == wide);
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  CHECK(engine.stats().num_finished == 9);
  CHECK(engine.stats().num_waiting == 0);
  const bool is_tiny = engine.stats().num_kv_blocks < 60;
  CHECK((engine.stats().num_preemptions > 0 || !is_tiny));
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
  // The prompt; the beams that started after it computed one token each in their first step.
  CHECK(engine.stats().num_prefill_tokens == kWhole * 16 + 8 + kWidth - 1);
  CHECK(engine.stats().num_decode_tokens == kWidth * 7 - (kWidth - 1));
  CHECK(engine.stats().num_sampled_by_decodes == engine.stats().num_decode_tokens);
}

TEST_CASE("a beam search that is aborted leaves nothing behind", "[beams]") {
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  c.kv_size = GENERATE(KvSize::blocks(60), KvSize::blocks(6));
  Engine<AnyModel, Float32Policy> engine(c);
  for (int num_steps = 0; num_steps < 12; ++num_steps) {
    Output output;
    const RequestId id = engine.submit(prompt_of(37), beams(4, 30), [&](const TokenEvent& event) {
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
    CHECK(completion.token_ids.size() ==
          4 * static_cast<std::size_t>(Float32Policy::kv.block_size) - 59);
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
  CHECK(error([](auto& p) { p.beam_width = 3; }) == "beam_width must be at least n = 4, got 3");
  CHECK(error([](auto& p) { p.beam_width = 129; }) == "beam_width must be in [1, 128], got 129");
  CHECK(error([](auto& p) { p.best_of = 4; }) == "beam_width cannot be combined with best_of");
  CHECK(error([](auto& p) { p.temperature = 1.f; }) ==
        "beam_width cannot be combined with a temperature other than 0");
  CHECK(error([](auto& p) { p.top_k = 4; }) == "beam_width cannot be combined with top_k");
  CHECK(error([](auto& p) { p.top_p = 1.f; }) == "beam_width cannot be combined with top_p");
  CHECK(error([](auto& p) { p.min_p = 0.f; }) == "beam_width cannot be combined with min_p");
  CHECK(error([](auto& p) { p.logprobs = 0; }) == "beam_width cannot be combined with logprobs");
  CHECK(error([](auto& p) { p.stop = {"x"}; }) ==
        "beam_width cannot be combined with stop strings");
  CHECK(error([](auto& p) { p.length_penalty = std::nanf(""); }) ==
        "length_penalty must be finite, got nan");
  CHECK(error([](auto& p) { p.beam_width.reset(), p.length_penalty = 2; }) ==
        "length_penalty and early_stopping are of a beam search and need beam_width");
  CHECK(error([](auto& p) { p.beam_width.reset(), p.early_stopping = EarlyStopping::never; }) ==
        "length_penalty and early_stopping are of a beam search and need beam_width");
  CHECK(error([](auto& p) {
          p.beam_width = 128;
          for (TokenId i = 0; i < 8; ++i) p.stop_token_ids.push_back(i);
        }) ==
        "beam_width 128 with 8 end tokens needs the 1152 likeliest tokens of every beam, but "
        "there are at most 1024");
}
