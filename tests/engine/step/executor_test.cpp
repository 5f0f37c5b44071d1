// Executors: graphs and the host that runs ahead give the bits of one step after the other; copies
// of blocks come before the forward pass; nothing that the device still reads is overwritten.

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/step/deferred_backend.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct DirectPolicy : Float32Policy {
  using Tiers = HostTier;
  static constexpr KvConfig kv{.block_size = 16};
};
struct DeferredPolicy : DirectPolicy {
  using Backend = DeferredBackend;
};

struct BesidePolicy : DirectPolicy {
  using Backend = BesideBackend;
};

/// Has not heard of host memory.
struct PlainBackend : CpuBackend {
  using CpuBackend::CpuBackend;
  using CpuBackend::run;
  template <class T>
  void run(const SwapBlocksArgs<T>&) = delete;
};
struct PlainPolicy : DirectPolicy {
  using Backend = PlainBackend;
};

template <class Policy>
struct TestRunner : RunnerOf<Policy> {
  explicit TestRunner(std::int32_t num_host_blocks = 3)
      : RunnerOf<Policy>(
            Qwen3Config::load(model_directory("group1_tied_yarn")),
            {.num_threads = 1,
             .limits = {.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 64},
             .block_size = Policy::kv.block_size},
            [](auto& weights, auto& backend, int) {
              weights.load(Checkpoint(model_directory("group1_tied_yarn")), backend);
            }) {
    static_cast<void>(this->available_memory());
    this->allocate_kv(8, num_host_blocks);
  }
};

std::vector<Output> outputs_of(auto& engine) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 9; ++i) {
    prompts.push_back(random_prompt(i, 1 + i * 7, 100));
    params.push_back({.temperature = i % 2 == 0 ? 0.f : 0.8f,
                      .seed = i,
                      .max_tokens = 5 + static_cast<std::int32_t>(3 * i),
                      .min_tokens = i % 3 == 0 ? 4 : 0,
                      .stop_token_ids = {3, 5, 8, 13, 21, 34, 55, 89}});
    if (i % 4 == 1) params.back().logprobs = 2;
    // More than a graph has room for: these steps run kernel by kernel.
    if (i == 6) params.back().stop_token_ids.resize(200, 7);
  }
  return engine.generate(prompts, params);
}

/// A prompt of `tokens` with its blocks, all of its logits' last row sampled.
struct OneStep {
  OneStep(std::vector<TokenId> tokens, std::vector<BlockId> blocks, std::int32_t begin = 0) {
    sequence.tokens = std::move(tokens);
    sequence.block_table = std::move(blocks);
    plan.sequences.push_back({.sequence = &sequence,
                              .begin = begin,
                              .end = sequence.num_tokens(),
                              .rows = {{RowKind::draw, sequence.num_tokens() - 1, 1}}});
    plan.num_tokens = sequence.num_tokens() - begin;
  }
  const StepInputs& inputs() {
    HostSamplingBatch sampling;
    append_sample(sampling, {.temperature = 0.f, .num_logprobs = 1});
    inputs_.build(plan, 16, sampling);
    return inputs_;
  }

  Sequence sequence;
  StepPlan plan;

 private:
  StepInputs inputs_;
};

/// What a step with `blocks` gives when the KV of its first 16 tokens is in block 0. `down` is done
/// by the step before it if `early`.
struct Swaps {
  std::vector<BlockCopy> down{};
  std::vector<BlockCopy> up{};
  bool early = false;
};
template <class Policy>
float logprob_after(const std::vector<BlockId>& blocks, std::vector<BlockCopy> copies, bool decode,
                    Swaps swaps = {}) {
  TestRunner<Policy> runner;
  const std::vector<TokenId> prompt = random_prompt(3, 17, 100);
  OneStep first({prompt.begin(), prompt.begin() + 16}, {0});
  static_cast<void>(runner.run(first.inputs()));
  if (swaps.early) {
    OneStep between({1, 2, 3}, {7});
    between.plan.copies_down = std::exchange(swaps.down, {});
    static_cast<void>(runner.run(between.inputs()));
    OneStep over({prompt.rbegin(), prompt.rbegin() + 16}, {0});  // block 0 is another's now
    static_cast<void>(runner.run(over.inputs()));
  }
  OneStep second(prompt, blocks, 16);
  second.plan.copies_down = std::move(swaps.down);
  second.plan.copies_up = std::move(swaps.up);
  second.plan.block_copies = std::move(copies);
  second.plan.num_decodes = decode ? 1 : 0;
  const StepResults results = runner.run(second.inputs());
  return *results.logprobs.at(0);
}

}  // namespace

TEST_CASE("graphs give the bits of steps that are done at once", "[executor]") {
  const auto config = [] {
    return EngineConfig{.model = model_directory("group1_tied_yarn"),
                        .num_threads = 1,
                        .max_num_seqs = 6,
                        .max_model_len = 128,
                        .kv_size = KvSize::blocks(40)};
  };
  Engine<AnyModel, DirectPolicy> direct(config());
  const auto expected = outputs_of(direct);
  const auto check_policy = [&]<class Policy>(Policy) {
    DeferredBackend::num_overwritten = DeferredBackend::num_replays = 0;
    Engine<AnyModel, Policy> deferred(config());
    const auto got = outputs_of(deferred);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO("request " << i);
      REQUIRE(expected[i].error == "");
      CHECK(got[i].error == "");
      CHECK(got[i].token_ids == expected[i].token_ids);
      CHECK(trace_of(got[i]).logprobs == trace_of(expected[i]).logprobs);
    }
    CHECK(DeferredBackend::num_replays > 10);
    CHECK(DeferredBackend::num_overwritten == 0);
    CHECK(DeferredBackend::num_broken_promises == 0);
  };
  check_policy(DeferredPolicy{});
  BesideBackend::num_early = BesideBackend::num_published = BesideBackend::num_with_inputs = 0;
  check_policy(BesidePolicy{});
  CHECK(BesideBackend::num_early >= DeferredBackend::num_replays);
  CHECK(BesideBackend::num_published == DeferredBackend::num_replays);
  CHECK(BesideBackend::num_with_inputs == DeferredBackend::num_replays);

  // Graphs that do not begin with what unpacks their inputs.
  BesideBackend::num_with_inputs = 0;
  BesideBackend::graphs_take_inputs = false;
  check_policy(BesidePolicy{});
  BesideBackend::graphs_take_inputs = true;
  CHECK(BesideBackend::num_with_inputs == 0);
}

TEST_CASE("steps have the graphs of plain rows while all rows are plain", "[executor]") {
  DeferredBackend::num_plain = DeferredBackend::num_replays = 0;
  DeferredBackend::num_broken_promises = 0;
  EngineConfig config{.model = model_directory("group1_tied_yarn"),
                      .num_threads = 1,
                      .max_num_seqs = 3,
                      .max_model_len = 128,
                      .kv_size = KvSize::blocks(40),
                      .overlap = false};
  Engine<AnyModel, DeferredPolicy> engine(std::move(config));
  // The profile run, and each of the graphs, of 1 to 3 rows, before it is recorded.
  CHECK(DeferredBackend::num_plain == 4);
  const auto count_plain = [&](std::vector<SamplingParams> params) {
    const int plain = DeferredBackend::num_plain, replays = DeferredBackend::num_replays;
    std::vector<std::vector<TokenId>> prompts;
    for (std::size_t i = 0; i < params.size(); ++i) {
      params[i].ignore_eos = true;
      prompts.push_back(random_prompt(i, 9, 100));
    }
    for (const Output& output : engine.generate(prompts, params)) REQUIRE(output.error == "");
    CHECK(DeferredBackend::num_replays - replays == 9);
    return DeferredBackend::num_plain - plain;
  };
  const SamplingParams greedy{.temperature = 0.f, .max_tokens = 10};
  const SamplingParams drawn{.temperature = 0.8f, .max_tokens = 10};
  CHECK(count_plain({greedy, drawn, drawn}) == 10);  // one for the prompts, nine for the graphs
  for (const auto change : std::vector<void (*)(SamplingParams&)>{
           [](SamplingParams& params) { params.top_k = 5; },
           [](SamplingParams& params) { params.top_p = 0.5f; },
           [](SamplingParams& params) { params.min_p = 0.1f; },
           [](SamplingParams& params) { params.logprobs = 0; },
           [](SamplingParams& params) { params.min_tokens = 4, params.stop_token_ids = {3}; }}) {
    SamplingParams other = drawn;
    other.max_tokens = 4;
    change(other);
    CHECK(count_plain({greedy, other, drawn}) == 6);
  }
  SamplingParams filtered = greedy;
  filtered.top_p = 0.5f, filtered.top_k = 3;
  CHECK(count_plain({filtered}) == 10);
  CHECK(DeferredBackend::num_broken_promises == 0);
}

TEST_CASE("copies of blocks are made before the forward pass", "[executor][copy_blocks]") {
  const bool decode = GENERATE(false, true);
  INFO((decode ? "in front of a graph" : "in front of kernels"));
  const auto check_copies = [&]<class Policy>(Policy) {
    const float expected = logprob_after<Policy>({0, 1}, {}, decode);
    CHECK(logprob_after<Policy>({5, 1}, {}, decode) != expected);
    CHECK(logprob_after<Policy>({5, 1}, {{.from = 0, .to = 5}, {.from = 0, .to = 6}}, decode) ==
          expected);
    CHECK_THROWS_WITH(logprob_after<Policy>({5, 1}, {{0, 5}, {5, 6}}, decode),
                      Catch::Matchers::Contains("read and written"));
    CHECK_THROWS_WITH(logprob_after<Policy>({5, 1}, {{0, 8}}, decode),
                      Catch::Matchers::Contains("[0, 8)"));
  };
  check_copies(DirectPolicy{});
  DeferredBackend::num_block_copies = 0;
  check_copies(DeferredPolicy{});
  CHECK(DeferredBackend::num_block_copies == 1);
}

TEST_CASE("inputs are not refilled before the device has copied them", "[executor]") {
  DeferredBackend::num_overwritten = 0;
  TestRunner<DeferredPolicy> runner;
  // Logits of no row: nothing waits for this step.
  OneStep unsampled(random_prompt(1, 20, 100), {0, 1});
  unsampled.plan.sequences[0].rows = {};
  StepInputs inputs;
  inputs.build(unsampled.plan, 16, {});
  runner.run_logits(
      inputs, {nullptr, {0, Qwen3Config::load(model_directory("group1_tied_yarn")).vocab_size}});
  OneStep next(random_prompt(2, 20, 100), {2, 3});
  static_cast<void>(runner.run(next.inputs()));
  CHECK(DeferredBackend::num_overwritten == 0);
}

TEST_CASE("blocks go down to host memory, then within the device, then up", "[executor][swap]") {
  const bool decode = GENERATE(false, true);
  INFO((decode ? "in front of a graph" : "in front of kernels"));
  const auto check_swaps = [&]<class Policy>(Policy) {
    const float expected = logprob_after<Policy>({0, 1}, {}, decode);
    CHECK(logprob_after<Policy>({5, 1}, {}, decode, {.down = {{0, 2}}, .up = {{2, 5}}}) ==
          expected);
    // Saved by one step, brought back by a later one, when the block is another's.
    CHECK(logprob_after<Policy>({0, 1}, {}, decode, {.down = {{0, 2}}, .early = true}) != expected);
    CHECK(logprob_after<Policy>({0, 1}, {}, decode,
                                {.down = {{0, 2}}, .up = {{2, 0}}, .early = true}) == expected);
    // Block 0 is overwritten by a copy after it was saved.
    CHECK(logprob_after<Policy>({5, 1}, {{.from = 3, .to = 0}}, decode,
                                {.down = {{0, 2}, {3, 1}}, .up = {{2, 5}}}) == expected);
    CHECK(logprob_after<Policy>({5, 1}, {{.from = 0, .to = 5}}, decode, {.down = {{3, 2}}}) ==
          expected);
    CHECK_THROWS_WITH(logprob_after<Policy>({0, 1}, {}, decode, {.down = {{0, 3}}}),
                      Catch::Matchers::Contains("written must be in [0, 3)"));
    CHECK_THROWS_WITH(logprob_after<Policy>({0, 1}, {}, decode, {.up = {{1, 8}}}),
                      Catch::Matchers::Contains("written must be in [0, 8)"));
    CHECK_THROWS_WITH(logprob_after<Policy>({0, 1}, {}, decode, {.up = {{1, 4}, {2, 4}}}),
                      Catch::Matchers::Contains("written twice: 4"));
  };
  check_swaps(DirectPolicy{});
  check_swaps(DeferredPolicy{});
}

TEST_CASE("a backend without swap_blocks serves those that swap nothing", "[executor][swap]") {
  STATIC_REQUIRE_FALSE(RunsOp<PlainBackend, SwapBlocksArgs<float>>);
  STATIC_REQUIRE(BackendLike<PlainBackend, float>);
  CHECK_THROWS_WITH(TestRunner<PlainPolicy>(3),
                    Catch::Matchers::Contains("HostKv::size: 3 blocks in host memory") &&
                        Catch::Matchers::Contains("'SwapBlocksArgs'"));
  CHECK_THROWS_AS(TestRunner<PlainPolicy>(1), ConfigError);
  TestRunner<PlainPolicy> runner(0);
  OneStep step({1, 2, 3}, {7});
  CHECK(runner.run(step.inputs()).tokens.extent(0) == 1);
  OneStep swapping({1, 2, 3}, {7});
  swapping.plan.copies_down = {{.from = 0, .to = 0}};
  CHECK_THROWS_WITH(runner.run(swapping.inputs()), Catch::Matchers::Contains("Backend has none"));
}
