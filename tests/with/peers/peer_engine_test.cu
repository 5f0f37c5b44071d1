// Engines whose sums go through the memory of peers, with rows as wide as those of published
// models: the kernel that sums, adds and norms takes no others.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

#if __has_include(<nccl.h>)

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/ranks_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Base>
struct OverPeers : Base {
  using Communicator = PeerMemory;
};

/// Makes sums of more than 128 rows beside other ops.
struct OverlappingPeers : PeerMemory {
  explicit OverlappingPeers(PeerMemory end) : PeerMemory(std::move(end)) {}
  static std::vector<OverlappingPeers> make(int num_ranks) {
    std::vector<OverlappingPeers> out;
    for (auto& end : PeerMemory::make(num_ranks, {.min_overlapped_bytes = 1}))
      out.emplace_back(std::move(end));
    return out;
  }
  template <class T>
  void begin_sum(MatrixView<T> x, std::int64_t max_rows) {
    ++num_sums;
    PeerMemory::begin_sum(x, max_rows);
  }
  inline static std::atomic<int> num_sums = 0;
};

template <class Base>
struct Overlapping : Base {
  using Communicator = OverlappingPeers;
};

/// Computes the same steps for the same requests.
struct RepeatingPolicy : Overlapping<CudaPolicy> {
  template <int kBlockSize>
  using PrefixCache = NoPrefixCache<kBlockSize>;
};

Qwen3Config wide_model() {
  Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  model.hidden_size = 1024;
  model.intermediate_size = 1536;
  return model;
}

EngineConfig two_ranks(int max_num_batched_tokens) {
  EngineConfig config = ranks_config("fairytale", 2);
  config.model.clear();
  config.max_num_batched_tokens = max_num_batched_tokens;
  return config;
}

template <class Policy>
std::vector<Trace> run(int max_num_batched_tokens = 64, const PeerOptions& peers = {}) {
  EngineConfig config = two_ranks(max_num_batched_tokens);
  config.extras.set(peers);
  Engine<AnyModel, Policy> engine(wide_model(), RandomWeights{.seed = 3}, config);
  return serve(engine);
}

}  // namespace

TEST_CASE("over the memory of peers TP 2 is what it is over NCCL", "[ranks]") {
  if (!has_gpus(2)) return;
  check_near(run<OverPeers<CudaFloat32Policy>>(), run<CudaFloat32Policy>(), 1e-4);
  check_alike(run<OverPeers<CudaPolicy>>(), run<CudaPolicy>(), 2e-2);
  check_near(run<OverPeers<CudaFloat32Policy>>(64, {.max_bytes = 0}), run<CudaFloat32Policy>(),
             1e-4);
  // Steps of several prompts, in halves.
  check_near(run<Overlapping<CudaFloat32Policy>>(300), run<CudaFloat32Policy>(), 1e-4);
  CHECK(OverlappingPeers::num_sums > 0);
}

TEST_CASE("two ranks in bfloat16 have the same bits again, and after a reset", "[ranks]") {
  if (!has_gpus(2)) return;
  Engine<AnyModel, RepeatingPolicy> engine(wide_model(), RandomWeights{.seed = 3}, two_ranks(300));
  const std::vector<Trace> expected = serve(engine);
  for (const bool resets : {false, true}) {
    if (resets) engine.reset();
    OverlappingPeers::num_sums = 0;
    const std::vector<Trace> got = serve(engine);
    CHECK(OverlappingPeers::num_sums > 0);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (i % 3 == 2) continue;  // draws, each time by another seed
      CHECK(got[i].tokens == expected[i].tokens);
      CHECK(got[i].logprobs == expected[i].logprobs);
    }
  }
}

// The second adds by NCCL, until it is reset when the first is gone.
TEST_CASE("two engines on the same GPUs at once give what each gives alone", "[ranks]") {
  if (!has_gpus(2)) return;
  using TwoRanks = Engine<AnyModel, Overlapping<CudaFloat32Policy>>;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 12; ++i) {
    prompts.push_back(random_prompt(i, 3 + 7 * i, 250));
    params.push_back({.temperature = i % 3 == 2 ? 0.8f : 0.f, .max_tokens = 30});
    params.back().seed = i;
    params.back().ignore_eos = true;
  }
  using Tokens = std::vector<std::vector<TokenId>>;
  const auto generate = [&](TwoRanks& engine) {
    Tokens out;  // none of a request that failed: CHECK is for one thread
    for (const Output& output : engine.generate(prompts, params))
      out.push_back(output.error.empty() ? output.token_ids : std::vector<TokenId>{});
    return out;
  };
  std::vector<std::unique_ptr<TwoRanks>> engines;
  std::vector<Tokens> alone;
  for (int e = 0; e < 2; ++e) {
    engines.push_back(
        std::make_unique<TwoRanks>(wide_model(), RandomWeights{.seed = 3}, two_ranks(300)));
    OverlappingPeers::num_sums = 0;
    alone.push_back(generate(*engines.back()));
    CHECK((OverlappingPeers::num_sums > 0) == (e == 0));
    for (const auto& tokens : alone.back()) REQUIRE(tokens.size() == 30);
  }
  std::vector<Tokens> together[2];
  std::vector<std::thread> threads;
  for (std::size_t e = 0; e < 2; ++e) {
    threads.emplace_back([&, e] {
      for (int round = 0; round < 5; ++round) together[e].push_back(generate(*engines[e]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t e = 0; e < 2; ++e) {
    for (const Tokens& round : together[e]) CHECK(round == alone[e]);
  }
  engines[0].reset();
  engines[1]->reset();
  OverlappingPeers::num_sums = 0;
  CHECK(generate(*engines[1]) == alone[1]);
  CHECK(OverlappingPeers::num_sums > 0);
}

#endif
