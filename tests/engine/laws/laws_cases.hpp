#pragma once
/// The laws: whatever the engine does with a request - batching, caching, chunking, preempting,
/// sharding, planning ahead - must not show in its tokens. Float32; bit-equal where the order of
/// summation is kept, else within 1e-5.
///
/// Who includes this defines `BackendFloat32` and `BackendBfloat16`, the policies, `kBitEqual`,
/// `kShardedBound`, and `num_devices()`, which says 'skipped' when it is 0, before.

#include <array>
#include <cmath>
#include <iostream>
#include <numeric>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

void skip(const char* why) { std::cout << "skipped: " << why << "\n"; }

template <int kBlockSize = 16, class Scheduling = ContinuousBatching>
using LawPolicy = PolicyWith<BackendFloat32, kBlockSize, Scheduling>;

template <class Base>
struct RadixPolicy : Base {
  template <int kBlockSize>
  using PrefixCache = RadixPrefixCache<kBlockSize>;
};

template <class Base>
struct UncachedPolicy : Base {
  template <int kBlockSize>
  using PrefixCache = NoPrefixCache<kBlockSize>;
};

template <class Base>
struct SwapPolicy : Base {
  using Preemption = SwapPreemption;
};

EngineConfig config_for(const std::string& model) {
  return {.model = model_directory(model), .num_threads = 2, .max_model_len = 128};
}

std::int64_t vocab_of(const std::string& model) {
  return Qwen3Config::load(model_directory(model)).vocab_size;
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

/// Bit-equal, or within 1e-5 where the backend does not keep the order of summation.
void check_logprobs(const std::vector<float>& got, const std::vector<float>& expected) {
  if (kBitEqual) {
    CHECK(got == expected);
    return;
  }
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-5f);
}

void check_same(const std::vector<Trace>& got, const std::vector<Trace>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("request " << i);
    CHECK(got[i].tokens == expected[i].tokens);
    check_logprobs(got[i].logprobs, expected[i].logprobs);
  }
}

/// What the requests give together, which must be the same with steps that follow each other and
/// with steps that are planned ahead. `stats` are of the latter.
template <class Policy>
std::vector<Trace> run_batch(EngineConfig config, const Workload& work,
                             EngineStats* stats = nullptr) {
  std::vector<std::vector<Trace>> out(2);
  for (const bool overlap : {false, true}) {
    config.overlap = overlap;
    Engine<AnyModel, Policy> engine(config);
    for (const Output& output : engine.generate(work.prompts, work.params)) {
      REQUIRE(output.error == "");
      out[overlap].push_back(trace_of(output));
    }
    engine.check_invariants();
    if (stats) *stats = engine.stats();
  }
  INFO("planned ahead = one after the other");
  check_same(out[1], out[0]);
  return out[0];
}

}  // namespace

TEST_CASE("the workload's sampled requests differ from its greedy ones", "[laws]") {
  if (num_devices() < 1) return;
  Workload work = make_workload("fairytale", 4);
  const auto sampled = run_alone<LawPolicy<>>("fairytale", work);
  for (SamplingParams& params : work.params) params.temperature = 0.f;
  const auto greedy = run_alone<LawPolicy<>>("fairytale", work);
  CHECK(sampled[0].tokens == greedy[0].tokens);
  CHECK(sampled[1].tokens != greedy[1].tokens);
  CHECK(sampled[3].tokens != greedy[3].tokens);
}

TEST_CASE("batched = alone, bit for bit, under both scheduling policies", "[laws]") {
  if (num_devices() < 1) return;
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group1_tied_yarn");
  const Workload work = make_workload(model, 12);
  const auto alone = run_alone<LawPolicy<>>(model, work);
  check_same(run_batch<LawPolicy<>>(config_for(model), work), alone);
  check_same(run_batch<LawPolicy<16, PrefillFirst>>(config_for(model), work), alone);
  EngineConfig few = config_for(model);
  few.max_num_seqs = 3;
  check_same(run_batch<LawPolicy<>>(std::move(few), work), alone);
}

TEST_CASE("what a neighbour filters does not matter, nor when it comes and goes", "[laws]") {
  if (num_devices() < 1) return;
  Workload work = make_workload("fairytale", 6);
  const std::int32_t lengths[] = {40, 5, 40, 8, 25, 3};  // with three places
  for (std::size_t i = 0; i < work.params.size(); ++i) {
    SamplingParams& params = work.params[i];
    // Without the checkpoint's filters: steps without those two requests are of plain rows.
    params = {.temperature = params.temperature,
              .top_k = 0,
              .top_p = 1.f,
              .seed = params.seed,
              .max_tokens = lengths[i],
              .ignore_eos = true};
    if (i == 3) params.top_p = 0.9f;
    if (i == 5) params.top_k = 20;
  }
  const auto alone = run_alone<LawPolicy<>>("fairytale", work);
  EngineConfig config = config_for("fairytale");
  config.max_num_seqs = 3;
  check_same(run_batch<LawPolicy<>>(config, work), alone);
}

TEST_CASE("a request's neighbours do not matter in bfloat16 either", "[laws]") {
  if (num_devices() < 1 || !kBitEqual) return skip("the backend chooses kernels by batch size");
  using Policy = PolicyWith<BackendBfloat16, 16>;
  const Workload work = make_workload("fairytale", 12);
  check_same(run_batch<Policy>(config_for("fairytale"), work),
             run_alone<Policy>("fairytale", work));
}

TEST_CASE("the block size does not matter", "[laws]") {
  if (num_devices() < 1) return;
  const Workload work = make_workload("group4_untied_sharded", 8);
  const auto alone = run_alone<LawPolicy<16>>("group4_untied_sharded", work);
  check_same(run_batch<LawPolicy<1>>(config_for("group4_untied_sharded"), work), alone);
  check_same(run_batch<LawPolicy<8>>(config_for("group4_untied_sharded"), work), alone);
  check_same(run_batch<LawPolicy<64>>(config_for("group4_untied_sharded"), work), alone);
}

TEST_CASE("cached = uncached at k * B - 1, k * B and k * B + 1 tokens, each sent twice", "[laws]") {
  if (num_devices() < 1) return;
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
  EngineConfig config = config_for(model);
  config.overlap = GENERATE(false, true);
  Engine<AnyModel, LawPolicy<kBlock>> engine(std::move(config));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      const Output output = engine.generate(work.prompts[i], work.params[i]);
      INFO("round " << round << ", prompt of " << work.prompts[i].size());
      CHECK(output.token_ids == alone[i].tokens);
      check_logprobs(trace_of(output).logprobs, alone[i].logprobs);
      const auto length = static_cast<std::int32_t>(work.prompts[i].size());
      // All full blocks but the one that would leave nothing to compute.
      if (round == 1) CHECK(output.num_cached_tokens == (length - 1) / kBlock * kBlock);
      engine.check_invariants();
    }
  }
}

TEST_CASE("cached = uncached with a radix cache, to the token", "[laws]") {
  if (num_devices() < 1) return;
  const std::string model = "fairytale";
  Workload work;
  const std::vector<TokenId> trunk = random_prompt(7, 50, vocab_of(model));
  for (const std::size_t shared : {50u, 50u, 49u, 33u, 32u, 31u, 17u, 3u, 0u}) {
    std::vector<TokenId> prompt(trunk.begin(), trunk.begin() + static_cast<std::ptrdiff_t>(shared));
    for (const TokenId token : random_prompt(20 + shared, 50 - shared, vocab_of(model)))
      prompt.push_back(token);
    work.prompts.push_back(std::move(prompt));
    work.params.push_back({.temperature = shared % 2 == 0 ? 0.8f : 0.f,
                           .seed = 5,
                           .max_tokens = 9,
                           .ignore_eos = true,
                           .logprobs = 0});
  }
  const auto alone = run_alone<LawPolicy<>>(model, work);
  EngineConfig config = config_for(model);
  config.overlap = GENERATE(false, true);
  Engine<AnyModel, RadixPolicy<LawPolicy<>>> engine(config);
  const std::vector<std::int32_t> cached_first{0, 49, 49, 33, 32, 31, 17, 3, 0};
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      const Output output = engine.generate(work.prompts[i], work.params[i]);
      INFO("round " << round << ", prompt " << i);
      CHECK(output.token_ids == alone[i].tokens);
      check_logprobs(trace_of(output).logprobs, alone[i].logprobs);
      CHECK(output.num_cached_tokens >= (round == 0 ? cached_first[i] : 49));
      engine.check_invariants();
    }
    // A conversation goes on: all that was computed is there, the answer too, less its last token.
    std::vector<TokenId> turn = work.prompts[3];
    const Output first = engine.generate(turn, work.params[3]);
    turn.insert(turn.end(), first.token_ids.begin(), first.token_ids.end());
    const std::int32_t num_computed = static_cast<std::int32_t>(turn.size()) - 1;
    turn.push_back(1);
    CHECK(engine.generate(turn, work.params[3]).num_cached_tokens >= num_computed);
  }
  check_same(run_batch<RadixPolicy<LawPolicy<>>>(config_for(model), work), alone);
  config = config_for(model);
  config.kv_size = KvSize::blocks(7);  // one and a half of them
  EngineStats stats;
  check_same(run_batch<RadixPolicy<LawPolicy<>>>(config, work, &stats), alone);
  CHECK(stats.num_free_kv_blocks == 7);
}

TEST_CASE("chunked = whole, for every chunk size", "[laws]") {
  if (num_devices() < 1) return;
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
    check_same(run_batch<LawPolicy<>>(config, work), whole);
    check_same(run_batch<LawPolicy<16, PrefillFirst>>(config, work), whole);
  }
}

TEST_CASE("preempted = undisturbed, in a pool of a few blocks", "[laws]") {
  if (num_devices() < 1) return;
  const std::string model = "fairytale";
  Workload work = make_workload(model, 6);
  for (SamplingParams& params : work.params) params.max_tokens = 40;
  const auto alone = run_alone<LawPolicy<8>>(model, work);
  for (bool caching : {true, false}) {
    EngineConfig config = config_for(model);
    config.kv_size = KvSize::blocks(14);
    config.prefix_caching = caching;
    EngineStats stats;
    check_same(run_batch<LawPolicy<8>>(config, work, &stats), alone);
    CHECK(stats.num_preemptions > 0);
    CHECK(stats.num_free_kv_blocks == 14);
    check_same(run_batch<LawPolicy<8, PrefillFirst>>(config, work, &stats), alone);
    CHECK(stats.num_preemptions > 0);
    Workload urgent = work;  // the later, the more so
    for (std::size_t i = 0; i < work.params.size(); ++i)
      urgent.params[i].priority = -static_cast<std::int32_t>(i / 2);
    check_same(run_batch<LawPolicy<8, Priority>>(config, urgent, &stats), alone);
    CHECK(stats.num_preemptions > 0);
  }
}

namespace {

/// Swapped = undisturbed, whatever the host's pool has room for.
template <class Policy>
void check_swapping(const Workload& work, const std::vector<Trace>& alone) {
  std::int64_t num_computed = 0;  // when nothing is computed twice; the last tokens never are
  for (std::size_t i = 0; i < work.prompts.size(); ++i) {
    num_computed += static_cast<std::int64_t>(work.prompts[i].size());
    num_computed += work.params[i].max_tokens - 1;
  }
  for (const std::int64_t num_host_blocks : {0, 1, 5, 200}) {
    INFO(num_host_blocks << " blocks in host memory");
    EngineConfig config = config_for("fairytale");
    config.kv_size = KvSize::blocks(14);
    config.extras.set(HostKv{KvSize::blocks(num_host_blocks)});
    EngineStats stats;
    check_same(run_batch<Policy>(config, work, &stats), alone);
    CHECK(stats.num_preemptions > 0);
    CHECK(host_kv(stats).num_swapped_out + host_kv(stats).num_swap_fallbacks ==
          stats.num_preemptions);
    CHECK(stats.num_free_kv_blocks == 14);
    CHECK(host_kv(stats).num_blocks == num_host_blocks);
    if (num_host_blocks <= 1) CHECK(host_kv(stats).num_swapped_out == 0);
    if (num_host_blocks < 200) CHECK(host_kv(stats).num_swap_fallbacks > 0);
    if (num_host_blocks < 200) continue;
    CHECK(host_kv(stats).num_swap_fallbacks == 0);
    CHECK(host_kv(stats).num_swapped_in > 0);
    CHECK(stats.num_prefill_tokens + stats.num_decode_tokens <= num_computed);
    if (stats.num_hit_tokens > 0) continue;
    CHECK(host_kv(stats).num_swapped_in == host_kv(stats).num_swapped_out);
    CHECK(host_kv(stats).num_free_blocks == num_host_blocks);
    CHECK(stats.num_prefill_tokens + stats.num_decode_tokens == num_computed);
  }
}

}  // namespace

TEST_CASE("swapped = undisturbed, with every prefix cache", "[laws][swap]") {
  if (num_devices() < 1) return;
  Workload work = make_workload("fairytale", 6);
  for (SamplingParams& params : work.params) params.max_tokens = 40;
  const auto alone = run_alone<LawPolicy<8>>("fairytale", work);
  check_swapping<SwapPolicy<LawPolicy<8>>>(work, alone);
  check_swapping<SwapPolicy<RadixPolicy<LawPolicy<8>>>>(work, alone);
  check_swapping<SwapPolicy<UncachedPolicy<LawPolicy<8>>>>(work, alone);
}

TEST_CASE("cached in host memory = uncached", "[laws][tier]") {
  if (num_devices() < 1) return;
  const std::string model = "fairytale";
  Workload work;
  for (std::size_t i = 0; i < 8; ++i) {  // every second one goes on after the same 40 tokens
    std::vector<TokenId> prompt = random_prompt(i % 2 == 0 ? 7 : 100 + i, 40, vocab_of(model));
    for (const TokenId token : random_prompt(20 + i, 3 + i, vocab_of(model)))
      prompt.push_back(token);
    work.prompts.push_back(std::move(prompt));
    work.params.push_back({.temperature = i % 3 == 0 ? 0.8f : 0.f,
                           .seed = i,
                           .max_tokens = 9,
                           .ignore_eos = true,
                           .logprobs = 0});
  }
  const auto alone = run_alone<LawPolicy<8>>(model, work);
  const bool overlap = GENERATE(false, true);
  const auto check_tiers = [&]<class Policy>(Policy, std::int64_t num_host_blocks) {
    INFO(num_host_blocks << " blocks in host memory");
    EngineConfig config = config_for(model);
    config.overlap = overlap;
    config.kv_size = KvSize::blocks(9);  // one and a half sequences
    config.extras.set(HostKv{KvSize::blocks(num_host_blocks)});
    Engine<AnyModel, Policy> engine(config);
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < work.prompts.size(); ++i) {
        INFO("round " << round << ", request " << i);
        const Output output = engine.generate(work.prompts[i], work.params[i]);
        CHECK(output.token_ids == alone[i].tokens);
        check_logprobs(trace_of(output).logprobs, alone[i].logprobs);
        engine.check_invariants();
        if (round == 0 || num_host_blocks < 200) continue;  // then all whole blocks are there
        const auto length = static_cast<std::int32_t>(work.prompts[i].size());
        CHECK(output.num_cached_tokens >= (length - 1) / 8 * 8);
      }
    }
    const EngineStats stats = engine.stats();
    CHECK(host_kv(stats).num_hit_tokens <= stats.num_hit_tokens);
    CHECK(host_kv(stats).num_free_blocks == num_host_blocks);
    if (num_host_blocks == 0) CHECK(host_kv(stats).num_hit_tokens == 0);
    if (num_host_blocks == 200) CHECK(host_kv(stats).num_hit_tokens > 100);
    config.kv_size = KvSize::blocks(14);
    check_same(run_batch<Policy>(config, work), alone);
  };
  for (const std::int64_t num_host_blocks : {0, 1, 5, 200}) {
    check_tiers(LawPolicy<8>{}, num_host_blocks);
    check_tiers(RadixPolicy<LawPolicy<8>>{}, num_host_blocks);
    check_tiers(SwapPolicy<RadixPolicy<LawPolicy<8>>>{}, num_host_blocks);
  }
}

TEST_CASE("every rank swaps its part", "[laws][swap]") {
  if (num_devices() < 2) return skip("two devices are needed");
  Workload work = make_workload("fairytale", 6);
  for (SamplingParams& params : work.params) params.max_tokens = 40;
  EngineConfig config = config_for("fairytale");
  config.tensor_parallel = 2;
  config.prefix_caching = false;
  const auto undisturbed = run_batch<SwapPolicy<LawPolicy<8>>>(config, work);
  config.kv_size = KvSize::blocks(14);
  config.extras.set(HostKv{KvSize::blocks(100)});
  EngineStats stats;
  const auto swapped = run_batch<SwapPolicy<LawPolicy<8>>>(config, work, &stats);
  CHECK((host_kv(stats).num_swapped_in > 0 && host_kv(stats).num_swap_fallbacks == 0));
  REQUIRE(swapped.size() == undisturbed.size());
  for (std::size_t i = 0; i < swapped.size(); ++i) {
    CHECK(swapped[i].tokens == undisturbed[i].tokens);
    for (std::size_t j = 0; j < swapped[i].logprobs.size(); ++j)
      CHECK(std::abs(swapped[i].logprobs[j] - undisturbed[i].logprobs[j]) < kShardedBound);
  }
}

TEST_CASE("TP 2 = TP 1: equal tokens, log-probabilities within some 1e-5", "[laws]") {
  if (num_devices() < 2) return skip("two devices are needed");
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
      CHECK(std::abs(sharded[i].logprobs[j] - alone[i].logprobs[j]) < kShardedBound);
    }
  }
}

TEST_CASE("the number of threads does not matter", "[laws]") {
  if (num_devices() < 1) return;
  const Workload work = make_workload("fairytale", 5);
  const auto alone = run_alone<LawPolicy<>>("fairytale", work);
  for (int num_threads : {1, 3}) {
    EngineConfig config = config_for("fairytale");
    config.num_threads = num_threads;
    check_same(run_batch<LawPolicy<>>(std::move(config), work), alone);
  }
}

namespace {

/// Requests that end in every way there is: at once, by length, stop token, end token, stop string.
std::vector<SamplingParams> endings(std::size_t count) {
  Engine<AnyModel, LawPolicy<8>> engine(config_for("fairytale"));
  std::vector<SamplingParams> out;
  for (std::size_t i = 0; i < count; ++i) {
    SamplingParams params{.seed = i, .max_tokens = 40};
    params.temperature = i % 2 == 0 ? 0.f : 1.f;
    if (i % 3 == 0) params.logprobs = static_cast<std::int32_t>(i % 4);
    const Output whole = engine.generate("Once upon a time", params);
    const std::size_t middle = whole.token_ids.size() / 2;
    if (i % 5 == 0) params.max_tokens = 1;
    if (i % 5 == 1) params.stop_token_ids = {whole.token_ids[middle]};
    if (i % 5 == 2) params.stop = {whole.text.substr(whole.text.size() / 2, 3), "never said"};
    if (i % 5 == 3) {
      params.stop_token_ids = {whole.token_ids[middle]};
      params.min_tokens = static_cast<std::int32_t>(middle) + 3;
    }
    out.push_back(params);
  }
  return out;
}

template <class Policy>
std::vector<Output> run_endings(EngineConfig config, const std::vector<SamplingParams>& params) {
  Engine<AnyModel, Policy> engine(std::move(config));
  const std::vector<std::string> prompts(params.size(), "Once upon a time");
  std::vector<Output> out = engine.generate(prompts, params);
  while (engine.step()) {
  }
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  return out;
}

}  // namespace

TEST_CASE("planned ahead = one after the other, whatever ends the requests", "[laws]") {
  if (num_devices() < 1) return;
  const std::vector<SamplingParams> params = endings(20);
  EngineConfig config = config_for("fairytale");
  config.overlap = false;
  const std::vector<Output> expected = run_endings<LawPolicy<8>>(config, params);
  std::array<int, 5> num_reasons{};
  const auto check_equal = [&](const std::vector<Output>& got) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      INFO("request " << i);
      CHECK(got[i].finish_reason == expected[i].finish_reason);
      CHECK(got[i].text == expected[i].text);
      CHECK(got[i].token_ids == expected[i].token_ids);
      check_logprobs(trace_of(got[i]).logprobs, trace_of(expected[i]).logprobs);
      ++num_reasons[static_cast<std::size_t>(got[i].finish_reason)];
    }
  };
  config.overlap = true;
  check_equal(run_endings<LawPolicy<8>>(config, params));
  CHECK(num_reasons[static_cast<std::size_t>(FinishReason::stop)] >= 8);
  CHECK(num_reasons[static_cast<std::size_t>(FinishReason::length)] >= 4);
  config.kv_size = KvSize::blocks(12);
  config.max_num_seqs = 5;
  check_equal(run_endings<LawPolicy<8>>(config, params));
  check_equal(run_endings<LawPolicy<8, PrefillFirst>>(config, params));
  config.max_num_batched_tokens = 5;
  config.prefix_caching = false;
  check_equal(run_endings<LawPolicy<8>>(config, params));
}
