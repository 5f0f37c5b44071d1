// The laws: whatever the engine does with a request - batching, caching, chunking, preempting,
// sharding - must not show in its tokens. Float32; bit-equal where the order of summation is kept,
// which on the CPU is everywhere but across tensor-parallel ranks.

#include <cmath>
#include <numeric>

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <int kBlockSize = 16, class Scheduling = ContinuousBatching>
using LawPolicy = TestPolicy<Float32Policy, kBlockSize, Scheduling>;

EngineConfig config_for(const std::string& model) {
  return {.model = model_directory(model), .num_threads = 2, .max_model_len = 128};
}

std::int64_t vocab_of(const std::string& model) {
  return ModelConfig::load(model_directory(model)).vocab_size;
}

/// Requests of mixed lengths, every other one greedy, the rest sampled with seeds.
struct Workload {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
};

Workload make_workload(const std::string& model, std::size_t count) {
  Workload work;
  for (std::size_t i = 0; i < count; ++i) {
    work.prompts.push_back(random_prompt(100 + i, 1 + (i * 13) % 53, vocab_of(model)));
    SamplingParams params{
        .max_tokens = 12 + static_cast<std::int32_t>(i % 5), .ignore_eos = true, .logprobs = 3};
    params.temperature = i % 2 == 0 ? 0.f : 0.9f;
    params.seed = 1000 + i;
    if (i % 4 == 1) params.top_k = 40;
    if (i % 4 == 3) params.top_p = 0.9f;
    work.params.push_back(params);
  }
  return work;
}

/// What every request gives when it has an engine to itself and nothing is cached.
template <class Policy>
std::vector<Trace> run_alone(const std::string& model, const Workload& work) {
  EngineConfig config = config_for(model);
  config.prefix_caching = false;
  Engine<AnyModel, Policy> engine(std::move(config));
  std::vector<Trace> out;
  for (std::size_t i = 0; i < work.prompts.size(); ++i) {
    const Output output = engine.generate(work.prompts[i], work.params[i]);
    REQUIRE(output.error == "");
    REQUIRE(output.token_ids.size() == static_cast<std::size_t>(work.params[i].max_tokens));
    out.push_back(trace_of(output));
  }
  return out;
}

template <class Policy>
std::vector<Trace> run_batch(EngineConfig config, const Workload& work,
                             EngineStats* stats = nullptr) {
  Engine<AnyModel, Policy> engine(std::move(config));
  std::vector<Trace> out;
  for (const Output& output : engine.generate(work.prompts, work.params)) {
    REQUIRE(output.error == "");
    out.push_back(trace_of(output));
  }
  engine.check_invariants();
  if (stats) *stats = engine.stats();
  return out;
}

void check_bit_equal(const std::vector<Trace>& got, const std::vector<Trace>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("request " << i);
    CHECK(got[i].tokens == expected[i].tokens);
    CHECK(got[i].logprobs == expected[i].logprobs);
  }
}

}  // namespace

TEST_CASE("the workload's sampled requests differ from its greedy ones", "[laws]") {
  Workload work = make_workload("fairytale", 4);
  const auto sampled = run_alone<LawPolicy<>>("fairytale", work);
  for (SamplingParams& params : work.params) params.temperature = 0.f;
  const auto greedy = run_alone<LawPolicy<>>("fairytale", work);
  CHECK(sampled[0].tokens == greedy[0].tokens);
  CHECK(sampled[1].tokens != greedy[1].tokens);
  CHECK(sampled[3].tokens != greedy[3].tokens);
}

TEST_CASE("batched = alone, bit for bit, under both scheduling policies", "[laws]") {
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group1_tied_yarn");
  const Workload work = make_workload(model, 12);
  const auto alone = run_alone<LawPolicy<>>(model, work);
  check_bit_equal(run_batch<LawPolicy<>>(config_for(model), work), alone);
  check_bit_equal(run_batch<LawPolicy<16, PrefillFirst>>(config_for(model), work), alone);
  EngineConfig few = config_for(model);
  few.max_num_seqs = 3;
  check_bit_equal(run_batch<LawPolicy<>>(std::move(few), work), alone);
}

TEST_CASE("a request's neighbours do not matter in bfloat16 either", "[laws]") {
  using Policy = TestPolicy<DefaultPolicy, 16>;
  const Workload work = make_workload("fairytale", 12);
  check_bit_equal(run_batch<Policy>(config_for("fairytale"), work),
                  run_alone<Policy>("fairytale", work));
}

TEST_CASE("the block size does not matter", "[laws]") {
  const Workload work = make_workload("group4_untied_sharded", 8);
  const auto alone = run_alone<LawPolicy<16>>("group4_untied_sharded", work);
  check_bit_equal(run_batch<LawPolicy<1>>(config_for("group4_untied_sharded"), work), alone);
  check_bit_equal(run_batch<LawPolicy<8>>(config_for("group4_untied_sharded"), work), alone);
  check_bit_equal(run_batch<LawPolicy<64>>(config_for("group4_untied_sharded"), work), alone);
}

TEST_CASE("cached = uncached at k * B - 1, k * B and k * B + 1 tokens, each sent twice", "[laws]") {
  constexpr int kBlock = 16;
  const std::string model = "fairytale";
  Workload work;
  for (int k = 1; k <= 3; ++k) {
    for (int delta : {-1, 0, 1}) {
      work.prompts.push_back(
          random_prompt(7, static_cast<std::size_t>(k * kBlock + delta), vocab_of(model)));
      work.params.push_back({.temperature = delta == 0 ? 0.8f : 0.f,
                             .seed = 5,
                             .max_tokens = 9,
                             .ignore_eos = true,
                             .logprobs = 0});
    }
  }
  const auto alone = run_alone<LawPolicy<kBlock>>(model, work);
  Engine<AnyModel, LawPolicy<kBlock>> engine(config_for(model));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      const Output output = engine.generate(work.prompts[i], work.params[i]);
      INFO("round " << round << ", prompt of " << work.prompts[i].size());
      CHECK(output.token_ids == alone[i].tokens);
      CHECK(trace_of(output).logprobs == alone[i].logprobs);
      const auto length = static_cast<std::int32_t>(work.prompts[i].size());
      // All full blocks but the one that would leave nothing to compute.
      if (round == 1) CHECK(output.num_cached_tokens == (length - 1) / kBlock * kBlock);
      engine.check_invariants();
    }
  }
}

TEST_CASE("chunked = whole, for every chunk size", "[laws]") {
  const std::string model = "group8_untied_yarn_4x";
  Workload work;
  for (std::size_t length : {37u, 5u, 53u}) {
    work.prompts.push_back(random_prompt(length, length, vocab_of(model)));
    work.params.push_back({.temperature = 0.f, .max_tokens = 6, .ignore_eos = true, .logprobs = 0});
  }
  work.params[1].temperature = 0.7f;
  work.params[1].seed = 3;
  const auto whole = run_alone<LawPolicy<>>(model, work);
  for (int chunk = 1; chunk <= 54; chunk += chunk < 20 ? 1 : 7) {
    INFO("chunks of " << chunk);
    EngineConfig config = config_for(model);
    config.max_num_seqs = std::min(chunk, 3);
    config.max_num_batched_tokens = chunk;
    check_bit_equal(run_batch<LawPolicy<>>(config, work), whole);
    check_bit_equal(run_batch<LawPolicy<16, PrefillFirst>>(config, work), whole);
  }
}

TEST_CASE("preempted = undisturbed, in a pool of a few blocks", "[laws]") {
  const std::string model = "fairytale";
  Workload work = make_workload(model, 6);
  for (SamplingParams& params : work.params) params.max_tokens = 40;
  const auto alone = run_alone<LawPolicy<8>>(model, work);
  for (bool caching : {true, false}) {
    EngineConfig config = config_for(model);
    config.kv_size = KvSize::blocks(14);
    config.prefix_caching = caching;
    EngineStats stats;
    check_bit_equal(run_batch<LawPolicy<8>>(config, work, &stats), alone);
    CHECK(stats.num_preemptions > 0);
    CHECK(stats.num_free_kv_blocks == 14);
    check_bit_equal(run_batch<LawPolicy<8, PrefillFirst>>(config, work, &stats), alone);
    CHECK(stats.num_preemptions > 0);
  }
}

TEST_CASE("TP 2 = TP 1: equal tokens, log-probabilities within 1e-5", "[laws]") {
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded");
  const Workload work = make_workload(model, 8);
  const auto alone = run_alone<LawPolicy<>>(model, work);
  EngineConfig config = config_for(model);
  config.tensor_parallel = 2;
  const auto sharded = run_batch<LawPolicy<>>(std::move(config), work);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    INFO(model << ", request " << i);
    CHECK(sharded[i].tokens == alone[i].tokens);
    for (std::size_t j = 0; j < alone[i].logprobs.size(); ++j) {
      CHECK(std::abs(sharded[i].logprobs[j] - alone[i].logprobs[j]) < 1e-5f);
    }
  }
}

TEST_CASE("the number of threads does not matter", "[laws]") {
  const Workload work = make_workload("fairytale", 5);
  const auto alone = run_alone<LawPolicy<>>("fairytale", work);
  for (int num_threads : {1, 3}) {
    EngineConfig config = config_for("fairytale");
    config.num_threads = num_threads;
    check_bit_equal(run_batch<LawPolicy<>>(std::move(config), work), alone);
  }
}
