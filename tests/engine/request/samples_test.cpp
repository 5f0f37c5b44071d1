// Several samples of one prompt: n and best_of.

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

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

EngineConfig config() {
  return {.model = model_directory("fairytale"), .num_threads = 2, .max_model_len = 128};
}

std::vector<TokenId> prompt_of(std::size_t length) { return random_prompt(3, length, 4000); }

SamplingParams sampled(std::int32_t n, std::int32_t max_tokens = 12) {
  return {.temperature = 1.f, .seed = 7, .n = n, .max_tokens = max_tokens, .ignore_eos = true};
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

void serve(Engine<AnyModel, Float32Policy>& engine) {
  while (engine.step()) engine.check_invariants();
}

}  // namespace

TEST_CASE("sample i of a seed is the same whatever n is, and samples differ", "[samples]") {
  Engine<AnyModel, Float32Policy> engine(config());
  for (const std::size_t length : {1u, 16u, 17u, 40u}) {
    const std::vector<TokenId> prompt = prompt_of(length);
    const auto five = tokens_of(engine.generate(prompt, sampled(5)));
    REQUIRE(five.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(five[i].size() == 12);
      for (std::size_t j = 0; j < i; ++j) CHECK(five[i] != five[j]);
    }
    for (const int n : {1, 2, 4}) {
      const auto few = tokens_of(engine.generate(prompt, sampled(n)));
      CHECK(few == std::vector(five.begin(), five.begin() + n));
    }
  }
  engine.check_invariants();
}

TEMPLATE_TEST_CASE("samples are the same with every cache, in every pool, planned ahead or not",
                   "[samples]", Float32Policy, RadixPolicy, UncachedPolicy) {
  Engine<AnyModel, Float32Policy> plain(config());
  const std::vector<TokenId> prompt = prompt_of(37);
  const auto expected = tokens_of(plain.generate(prompt, sampled(4, 40)));
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  c.kv_size = GENERATE(KvSize::blocks(40), KvSize::blocks(9));
  c.max_num_batched_tokens = GENERATE(64, 9);
  c.max_num_seqs = GENERATE(8, 3);
  Engine<AnyModel, TestType> engine(c);
  const std::vector<Output> outputs =
      engine.generate(std::vector<Prompt>{prompt, prompt_of(5), prompt},
                      std::vector<SamplingParams>{sampled(4, 40), sampled(1, 30), sampled(3, 40)});
  CHECK(tokens_of(outputs[0]) == expected);
  CHECK(tokens_of(outputs[2]) == std::vector(expected.begin(), expected.begin() + 3));
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  CHECK(engine.stats().num_finished == 8);
}

TEST_CASE("samples hold their prompt once, but for one block that is copied", "[samples]") {
  constexpr int kN = 8, kWhole = 4;  // blocks of the prompt, and half of one more
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(60);
  c.overlap = GENERATE(false, true);
  c.prefix_caching = GENERATE(false, true);
  Engine<AnyModel, CachePolicy<HashPrefixCache<16>>> engine(c);
  const RequestId id = engine.submit(prompt_of(kWhole * 16 + 8), sampled(kN, 6));
  REQUIRE(id == 1);
  std::int64_t least_free = 60;
  while (engine.step()) {
    engine.check_invariants();
    least_free = std::min(least_free, engine.stats().num_free_kv_blocks);
  }
  CHECK(60 - least_free == kWhole + kN);
  // The prompt, and of each sample but the first the prompt's last token and what it generated.
  CHECK(engine.stats().num_prefill_tokens == kWhole * 16 + 8 + kN - 1);
}

TEST_CASE("best_of keeps the likeliest samples, best first", "[samples]") {
  Engine<AnyModel, Float32Policy> engine(config());
  SamplingParams params = sampled(6);
  params.logprobs = 0;
  std::vector<Completion> all = completions(engine.generate(prompt_of(20), params));
  for (const Completion& c : all) {
    double sum = 0;
    for (const TokenLogprobs& l : c.logprobs) sum += l.logprob;
    CHECK(c.cumulative_logprob == Approx(sum));
  }
  std::stable_sort(all.begin(), all.end(), [](const Completion& a, const Completion& b) {
    return a.cumulative_logprob > b.cumulative_logprob;
  });
  params.logprobs.reset();
  params.n = 2;
  params.best_of = 6;
  int num_events = 0;
  Output streamed;
  engine.submit(prompt_of(20), params, [&](const TokenEvent& event) {
    ++num_events;
    CHECK(event.text == "");
    CHECK(event.token == nullptr);
    if (event.output != nullptr) streamed = *event.output;
  });
  serve(engine);
  CHECK(num_events == 1);
  for (const Output& output : {engine.generate(prompt_of(20), params), streamed}) {
    const std::vector<Completion> best = completions(output);
    REQUIRE(best.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(best[i].token_ids == all[i].token_ids);
      CHECK(best[i].text == all[i].text);
      CHECK(best[i].logprobs.empty());
      CHECK(best[i].cumulative_logprob == Approx(all[i].cumulative_logprob));
    }
  }
}

TEST_CASE("what is streamed of each sample is its text, however the request ends", "[samples]") {
  enum class End { well, abort, throwing };
  const End how = GENERATE(End::well, End::abort, End::throwing);
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  Engine<AnyModel, Float32Policy> engine(c);
  SamplingParams params = sampled(4, 30);
  params.stop = {"the"};  // samples end at different times, and text is held back
  params.min_tokens = 5;
  std::map<int, std::string> texts;
  std::map<int, FinishReason> reasons;
  int num_calls = 0;
  bool is_over = false;
  Output output;
  const auto hear = [&](const TokenEvent& event) {
    texts[event.sample] += event.text;
    if (event.finish_reason != FinishReason::none) {
      CHECK(reasons.count(event.sample) == 0);
      reasons[event.sample] = event.finish_reason;
    }
    if (event.output != nullptr) output = *event.output;
    ++num_calls;
    if (num_calls < 22 || event.finish_reason != FinishReason::none || is_over) return;
    is_over = true;
    if (how == End::abort) engine.abort(event.id);
    if (how == End::throwing) throw std::runtime_error("enough");
  };
  engine.submit(prompt_of(20), params, hear);
  serve(engine);
  REQUIRE(output.id == 1);
  CHECK(output.error == (how == End::throwing ? "the request's callback threw: enough" : ""));
  std::vector<Completion> all{output};
  all.insert(all.end(), output.alternatives.begin(), output.alternatives.end());
  REQUIRE(all.size() == 4);
  REQUIRE(reasons.size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(texts[i] == all[static_cast<std::size_t>(i)].text);
    // All of an output with an error says so, samples that had ended before, too.
    CHECK(all[static_cast<std::size_t>(i)].finish_reason ==
          (how == End::throwing ? FinishReason::error : reasons[i]));
  }
  const auto cut_off = std::count_if(all.begin(), all.end(), [](const Completion& completion) {
    return completion.finish_reason == FinishReason::abort ||
           completion.finish_reason == FinishReason::error;
  });
  CHECK((cut_off > 0) == (how != End::well));
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  CHECK(engine.stats().num_finished == 4);
  CHECK(tokens_of(engine.generate(prompt_of(20), sampled(2))).size() == 2);
}

TEST_CASE("numbers of samples that make no sense are refused", "[samples]") {
  Engine<AnyModel, Float32Policy> engine(config());
  const auto error = [&](std::int32_t n, std::optional<std::int32_t> best_of) {
    SamplingParams params = sampled(n);
    params.best_of = best_of;
    return engine.generate(prompt_of(4), params).error;
  };
  CHECK(error(0, {}) == "n must be in [1, 128], got 0");
  CHECK(error(129, {}) == "n must be in [1, 128], got 129");
  CHECK(error(3, 2) == "best_of must be at least n = 3, got 2");
  CHECK(error(3, 1000) == "best_of must be in [1, 128], got 1000");
  CHECK(error(128, 128) == "");
}
