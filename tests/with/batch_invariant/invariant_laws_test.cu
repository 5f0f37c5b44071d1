// The engine's laws in batch-invariant mode: bfloat16 on CUDA, bit for bit.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"
#include "nanovllm/full_policy.hpp"

struct InvariantFullPolicy : nanovllm::CudaBatchInvariantPolicy {
  using Tiers = nanovllm::DiskTier;
};
using BackendFloat32 = InvariantFullPolicy;  // the laws' first policy; bfloat16 here
using BackendBfloat16 = InvariantFullPolicy;
static constexpr float kShardedBound = 1.f;  // two ranks round where one does not
static constexpr bool kBitEqual = true;
static int num_devices() {
  if (!nanovllm::test::has_gpu()) return 0;
  cudaDeviceProp device{};
  cudaGetDeviceProperties(&device, 0);
  if (10 * device.major + device.minor == 90) return 1;
  std::cout << "skipped: the mode needs compute capability 9.0\n";
  return 0;
}

#include "engine/laws/laws_cases.hpp"

namespace {

/// FNV-1a over the bits of tokens and log-probabilities.
std::uint64_t hash_of(const std::vector<Trace>& traces) {
  std::uint64_t hash = 14695981039346656037u;
  const auto add = [&](const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  };
  for (const Trace& trace : traces) {
    add(trace.tokens.data(), trace.tokens.size() * sizeof(TokenId));
    add(trace.logprobs.data(), trace.logprobs.size() * sizeof(float));
  }
  return hash;
}

/// `count` requests of up to 700 tokens, of which every other one is drawn.
Workload long_workload(const std::string& model, std::size_t count) {
  Workload work;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t length = i % 20 == 7 ? 300 + 17 * (i % 23) : 1 + (i * 37) % 190;
    work.prompts.push_back(random_prompt(500 + i, length, vocab_of(model)));
    SamplingParams params{.max_tokens = 8 + static_cast<std::int32_t>(i % 9),
                          .ignore_eos = true,
                          .logprobs = static_cast<std::int32_t>(i % 3)};
    params.temperature = i % 2 == 0 ? 0.f : 0.9f;
    params.seed = i;
    if (i % 8 == 3) params.top_k = 30;
    if (i % 8 == 5) params.top_p = 0.8f;
    work.params.push_back(params);
  }
  return work;
}

EngineConfig long_config(const std::string& model) {
  EngineConfig config = config_for(model);
  config.max_model_len = 768;
  config.max_num_seqs = 256;
  return config;
}

template <class Policy>
std::vector<Trace> run_once(const EngineConfig& config, const Workload& work) {
  Engine<AnyModel, Policy> engine(config);
  std::vector<Trace> out;
  for (const Output& output : engine.generate(work.prompts, work.params)) {
    REQUIRE(output.error == "");
    out.push_back(trace_of(output));
  }
  return out;
}

}  // namespace

TEST_CASE("200 requests, alone and in every company", "[laws][invariant]") {
  if (num_devices() < 1) return;
  using Policy = CudaBatchInvariantPolicy;
  const std::string model = "fairytale";
  const Workload work = long_workload(model, 200);
  EngineConfig config = long_config(model);
  config.prefix_caching = false;
  std::vector<Trace> alone;
  {
    Engine<AnyModel, Policy> engine(config);
    for (std::size_t i = 0; i < work.prompts.size(); ++i)
      alone.push_back(trace_of(engine.generate(work.prompts[i], work.params[i])));
  }
  std::cout << model << ", tokens and log-probabilities: " << std::hex << hash_of(alone) << std::dec
            << "\n";
  const auto check = [&](const char* what, const EngineConfig& changed) {
    INFO(what);
    check_same(run_once<Policy>(changed, work), alone);
  };
  check("256 at a time", config);
  for (const int most : {2, 7, 33, 100}) {
    EngineConfig few = config;
    few.max_num_seqs = most;
    INFO(most << " at a time");
    check("fewer at a time", few);
  }
  for (const int chunk : {33, 129, 300}) {
    EngineConfig chunked = config;
    chunked.max_num_seqs = std::min(chunk, 256);
    chunked.max_num_batched_tokens = chunk;
    INFO("steps of " << chunk << " tokens");
    check("chunked", chunked);
  }
  EngineConfig changed = config;
  changed.overlap = false;
  check("one step after the other", changed);
  changed = config;
  changed.prefix_caching = true;
  check("with a prefix cache", changed);
  changed = config;
  changed.kv_size = KvSize::blocks(24);
  check("in a pool of 24 blocks", changed);
}

// Steps of few rows have residuals added by the products' kernels, and norms inside that of qkv, where
// others have not: rows of one request come through both.
TEST_CASE("a model as wide as published ones, alone and in every company", "[laws][invariant]") {
  if (num_devices() < 1) return;
  const Workload work = long_workload("fairytale", 60);
  for (const std::int64_t width : {1024, 2048}) {
    Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
    model.hidden_size = width;
    model.intermediate_size = 1536;
    EngineConfig config = long_config("fairytale");
    config.model.clear();
    config.prefix_caching = false;
    const auto run = [&](int most, std::int64_t chunk) {
      EngineConfig changed = config;
      changed.max_num_seqs = most;
      if (chunk > 0) changed.max_num_batched_tokens = chunk;
      Engine<AnyModel, CudaBatchInvariantPolicy> engine(model, RandomWeights{.seed = 3}, changed);
      std::vector<Trace> out;
      for (const Output& output : engine.generate(work.prompts, work.params)) {
        REQUIRE(output.error == "");
        out.push_back(trace_of(output));
      }
      return out;
    };
    const std::vector<Trace> alone = run(1, 0);
    std::cout << "hidden " << width << ", tokens and log-probabilities: " << std::hex
              << hash_of(alone) << std::dec << "\n";
    for (const int most : {2, 8, 20, 31, 60}) {
      INFO("hidden " << width << ", " << most << " at a time");
      check_same(run(most, 0), alone);
    }
    INFO("hidden " << width << ", steps of 48 tokens");
    check_same(run(40, 48), alone);
  }
}

TEST_CASE("the default backend does not pass for a batch-invariant one", "[laws][invariant]") {
  if (num_devices() < 1) return;
  const Workload work = long_workload("fairytale", 60);
  EngineConfig config = long_config("fairytale");
  config.prefix_caching = false;
  const auto together = run_once<CudaPolicy>(config, work);
  config.max_num_seqs = 1;
  const auto alone = run_once<CudaPolicy>(config, work);
  std::size_t different = 0;
  for (std::size_t i = 0; i < alone.size(); ++i)
    different += alone[i].logprobs != together[i].logprobs;
  CHECK(different > 10);
}
