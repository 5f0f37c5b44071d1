// What is special about an engine on a GPU: overlap, graphs and eager steps side by side, memory
// that comes back, errors that name what was there and what was needed.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/spend_time.cuh"
#include "engine/models.hpp"

namespace nanovllm::test {

namespace {

/// Times its kernels unless it is told not to: then all engines choose the same, by rule.
struct ChoosingBackend : CudaBackend {
  using CudaBackend::CudaBackend;
  template <class Network>
  requires TunableBackend<CudaBackend, Network>
  void tune(const Network& network) {
    if (measures) CudaBackend::tune(network);
  }
  inline static bool measures = true;
};

struct ChoosingPolicy : CudaPolicy {
  using Backend = ChoosingBackend;
};

using CudaEngine = Engine<AnyModel, ChoosingPolicy>;

__global__ void occupy_kernel(unsigned long long nanoseconds) { spend_time(nanoseconds); }

EngineConfig fairytale() {
  return {.model = model_directory("fairytale"), .max_num_seqs = 20, .max_model_len = 256};
}

std::vector<std::vector<TokenId>> make_prompts(std::size_t count) {
  std::vector<std::vector<TokenId>> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(random_prompt(i, 1 + 17 * i % 90, 4000));
  return out;
}

std::vector<SamplingParams> make_params(std::size_t count) {
  std::vector<SamplingParams> out;
  for (std::size_t i = 0; i < count; ++i) {
    SamplingParams params{
        .seed = i, .max_tokens = 30 + static_cast<std::int32_t>(i % 7), .ignore_eos = true};
    params.temperature = i % 2 == 0 ? 0.f : 0.8f;
    if (i % 3 == 1) params.top_k = 20;
    if (i % 5 == 2) params.top_p = 0.9f;
    if (i % 4 == 3) params.min_tokens = 5;
    out.push_back(params);
  }
  return out;
}

/// Greedy rows and draws from the whole vocabulary: steps of such have graphs of their own.
std::vector<SamplingParams> make_plain_params(std::size_t count) {
  std::vector<SamplingParams> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back({.temperature = i % 3 == 0 ? 0.f : 0.8f,
                   .top_k = 0,
                   .top_p = 1.f,
                   .seed = i,
                   .max_tokens = 20 + static_cast<std::int32_t>(i % 7),
                   .ignore_eos = true});
  return out;
}

std::vector<std::vector<TokenId>> tokens_of(const std::vector<Output>& outputs) {
  std::vector<std::vector<TokenId>> out;
  for (const Output& output : outputs) {
    REQUIRE(output.error == "");
    out.push_back(output.token_ids);
  }
  return out;
}

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

struct MemoryTaken {
  std::int64_t bytes = 0;  ///< of the GPU, by all programs; below 0: more is free than before
  bool is_alone = true;    ///< none was taken or given back while this program did nothing
};

/// Makes a hundred engines, one after another: what is taken after the last one.
MemoryTaken run_hundred_engines() {
  EngineConfig config = fairytale();
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 256;
  config.kv_size = KvSize::blocks(16);
  MemoryTaken out;
  std::size_t before = 0;
  for (int i = 0; i <= 100; ++i) {
    // Measuring takes most of a start. The last engine does not, as when `before` was read.
    ChoosingBackend::measures = i % 10 == 0 && i < 100;
    CudaEngine engine(config);
    const Output output = engine.generate(
        make_prompts(2)[1], {.temperature = 0.f, .max_tokens = 3, .ignore_eos = true});
    REQUIRE(output.token_ids.size() == 3);
    const std::size_t now = free_memory();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (free_memory() != now) out.is_alone = false;
    if (i == 5) before = now;
    out.bytes = static_cast<std::int64_t>(before) - static_cast<std::int64_t>(now);
  }
  ChoosingBackend::measures = true;
  return out;
}

}  // namespace

TEST_CASE("shared reads and chunks as rows are what each request is alone", "[cuda][engine]") {
  if (!has_gpu()) return;
  const std::vector<TokenId> common = random_prompt(99, 700, 4000);
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 10; ++i) {
    std::vector<TokenId> prompt = common;
    const std::vector<TokenId> own = random_prompt(i, 1 + 13 * i, 4000);
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(std::move(prompt));
  }
  const SamplingParams greedy{
      .temperature = 0.f, .max_tokens = 12, .ignore_eos = true, .logprobs = 0};
  EngineConfig config = fairytale();
  config.max_model_len = 1024;
  config.max_num_seqs = 128;
  config.share_reads_from = std::nullopt;
  config.prefix_caching = false;
  std::vector<Output> alone;
  {
    CudaEngine engine(config);
    for (const auto& prompt : prompts) alone.push_back(engine.generate(prompt, greedy));
  }
  config.prefix_caching = true;
  config.share_reads_from = GENERATE(as<std::optional<std::int64_t>>{}, 0, 1'000'000);
  CudaEngine engine(config);
  static_cast<void>(engine.generate(common, greedy));
  // All at once, and one after the other: decodes and graphs among the rows, and none.
  std::vector<Output> together = engine.generate(prompts, greedy);
  for (const auto& prompt : prompts) together.push_back(engine.generate(prompt, greedy));
  {
    const cuda::WaitingGroup one, other;  // steps share no more
    CHECK_FALSE(CudaBackend::may_share_prefixes());
    for (Output& output : engine.generate(prompts, greedy)) together.push_back(std::move(output));
  }
  CHECK(CudaBackend::may_share_prefixes());
  std::size_t num_compared = 0;
  for (std::size_t i = 0; i < together.size(); ++i) {
    const Output& expected = alone[i % prompts.size()];
    REQUIRE(together[i].error == "");
    CHECK(together[i].num_cached_tokens >= 640);
    for (std::size_t t = 0; t < 12; ++t) {
      CAPTURE(i, t);
      if (together[i].token_ids[t] != expected.token_ids[t]) break;  // two were as good
      CHECK(together[i].logprobs[t].logprob == Approx(expected.logprobs[t].logprob).margin(0.1));
      ++num_compared;
    }
  }
  CHECK(num_compared > together.size() * 8);
  engine.check_invariants();
}

TEST_CASE("overlap on = overlap off in bfloat16", "[cuda][engine]") {
  if (!has_gpu()) return;
  // Two engines that time their kernels may choose others, and round otherwise.
  ChoosingBackend::measures = false;
  const auto run = [](bool overlap) {
    EngineConfig config = fairytale();
    config.overlap = overlap;
    CudaEngine engine(config);
    auto out = tokens_of(engine.generate(make_prompts(40), make_params(40)));
    engine.check_invariants();
    return out;
  };
  const auto one_by_one = run(false);
  for (int i = 0; i < 2; ++i) CHECK(run(true) == one_by_one);
  ChoosingBackend::measures = true;
}

TEST_CASE("steps without a graph draw what steps with one draw", "[cuda][engine]") {
  if (!has_gpu()) return;
  // Graphs have room for 16 banned tokens a row: 20 rows, so 320. One request with 300 runs in
  // graphs, and twelve of them together do not.
  Engine<AnyModel, CudaFloat32Policy> engine(fairytale());
  const auto prompts = make_prompts(12);
  std::vector<SamplingParams> params = make_params(12);
  for (std::size_t i = 0; i < params.size(); ++i) {
    params[i].min_tokens = params[i].max_tokens;
    params[i].logprobs = 5;
    for (TokenId token = 0; token < 300; ++token)
      params[i].stop_token_ids.push_back(10 * token + static_cast<TokenId>(i % 10));
  }
  std::vector<Output> alone;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    alone.push_back(engine.generate(prompts[i], params[i]));
  const std::vector<Output> together = engine.generate(prompts, params);
  CHECK(tokens_of(together) == tokens_of(alone));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::size_t j = 0; j < together[i].token_ids.size(); ++j) {
      const TokenId token = together[i].token_ids[j];
      CHECK((token >= 3000 || token % 10 != static_cast<TokenId>(i % 10)));
      CHECK(std::abs(together[i].logprobs[j].logprob - alone[i].logprobs[j].logprob) < 1e-5f);
    }
  }
}

TEST_CASE("filters hold in graphs, alone and among plain rows that come and go", "[cuda][engine]") {
  if (!has_gpu()) return;
  Engine<AnyModel, CudaFloat32Policy> engine(fairytale());
  constexpr std::size_t kCount = 15;
  const auto prompts = make_prompts(kCount);
  std::vector<SamplingParams> greedy(kCount,
                                     {.temperature = 0.f, .max_tokens = 30, .ignore_eos = true});
  const auto expected = tokens_of(engine.generate(prompts, greedy));
  // Filters that leave one token, at a temperature at which other rows hardly draw it.
  enum Kind { top_k, top_p, min_p, allowed, plain };
  const auto kind_of = [](std::size_t i) { return static_cast<Kind>(i % 5); };
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < kCount; ++i) {
    SamplingParams one{.temperature = 3.f,
                       .top_k = 0,
                       .top_p = 1.f,
                       .seed = i,
                       .max_tokens = 5 + static_cast<std::int32_t>(9 * i % 25),
                       .ignore_eos = true};
    switch (kind_of(i)) {
      case top_k: one.top_k = 1; break;
      case top_p: one.top_p = 1e-6f; break;
      case min_p: one.min_p = 1.f; break;
      case allowed: one.allowed_token_ids = {7}; break;  // a step of its rows is drawn apart
      case plain: break;
    }
    params.push_back(one);
  }
  const auto check = [&](const Output& output, std::size_t i) {
    CAPTURE(i);
    REQUIRE(output.error == "");
    const std::vector<TokenId>& got = output.token_ids;
    const bool is_best = std::equal(got.begin(), got.end(), expected[i].begin());
    const bool is_allowed = std::count(got.begin(), got.end(), TokenId{7}) == std::ssize(got);
    CHECK(is_best == (kind_of(i) < allowed));
    CHECK(is_allowed == (kind_of(i) == allowed));
  };
  // All together; without those that are drawn apart, whose steps have other graphs; one by one.
  const std::vector<Output> together = engine.generate(prompts, params);
  for (std::size_t i = 0; i < kCount; ++i) check(together[i], i);
  std::vector<std::vector<TokenId>> others;
  std::vector<SamplingParams> params_of_others;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (kind_of(i) == allowed) continue;
    others.push_back(prompts[i]);
    params_of_others.push_back(params[i]);
  }
  const std::vector<Output> in_graphs = engine.generate(others, params_of_others);
  for (std::size_t i = 0, next = 0; i < kCount; ++i) {
    if (kind_of(i) != allowed) check(in_graphs[next++], i);
    check(engine.generate(prompts[i], params[i]), i);
  }
}

TEST_CASE("ops after an early upload find what it brings", "[cuda][engine]") {
  if (!has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  constexpr std::size_t kSize = std::size_t{1} << 24;  // takes longer than an op takes to begin
  CudaBackend::HostBuffer<std::int32_t> from(kSize);
  cuda::DeviceBuffer<std::int32_t> to(kSize);
  for (std::int32_t i = 0; i < 4; ++i) {
    std::fill_n(from.data(), kSize, i);
    backend.upload_early(from.data(), to.data(), kSize);
    std::int32_t last = -1;
    backend.download(to.data() + kSize - 1, &last, 1);
    CHECK(last == i);
    backend.synchronize();
  }
}

TEST_CASE("an early download does not wait for ops under way", "[cuda][engine]") {
  if (!has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  cudaStream_t const stream = backend.context().stream;
  const std::vector<std::int64_t> values(48 * 128, 7);  // counts of 48 layers of 128 experts
  cuda::DeviceBuffer<std::int64_t> counts(values.size());
  backend.upload(values.data(), counts.data(), values.size());
  const auto occupy = [&] {
    occupy_kernel<<<2048, 256, 0, stream>>>(200'000'000);
    cuda::check_cuda(cudaGetLastError(), "occupy_kernel");
  };
  std::vector<std::int64_t> early(values.size());
  const auto read = [&] { backend.download_early(counts.data(), early.data(), early.size()); };
  const auto graph = backend.capture(occupy);
  occupy(), backend.replay(graph), backend.synchronize();  // loads the kernel
  read();
  CHECK(early == values);
  for (const bool in_graph : {false, true}) {
    INFO((in_graph ? "in a graph" : "by itself"));
    std::fill(early.begin(), early.end(), 0);
    in_graph ? backend.replay(graph) : occupy();
    read();
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK(early == values);
    backend.synchronize();
  }
}

TEST_CASE("a hundred engines leave no memory behind", "[cuda][engine]") {
  if (!has_gpu()) return;
  // What the driver keeps for itself may move by some pages, an engine takes far more.
  constexpr std::int64_t kSlack = std::int64_t{8} << 20;
  // Other programs use the GPU, too. What engines leave behind, they leave behind every time.
  MemoryTaken found;
  bool is_alone = true;
  for (int i = 0; i < 3; ++i) {
    found = run_hundred_engines();
    is_alone = is_alone && found.is_alone;
    if (std::abs(found.bytes) <= kSlack) break;
  }
  if (found.bytes > kSlack && !is_alone) {
    std::printf("skipped: needs the GPU alone: its free memory changed while this test waited\n");
    return;
  }
  CHECK(found.bytes <= kSlack);
}

TEST_CASE("an engine that is destroyed while steps are under way", "[cuda][engine]") {
  if (!has_gpu()) return;
  for (int i = 0; i < 5; ++i) {
    CudaEngine engine(fairytale());
    for (const auto& prompt : make_prompts(8)) engine.submit(prompt, {.max_tokens = 50});
    for (int j = 0; j < i; ++j) engine.step();
  }
  SUCCEED();
}

TEST_CASE("a KV pool that does not fit is refused with what is there and what is needed",
          "[cuda][engine]") {
  if (!has_gpu()) return;
  EngineConfig config = fairytale();
  config.kv_size = KvSize::blocks(20'000'000);
  try {
    CudaEngine engine(config);
    FAIL("the engine was made");
  } catch (const Error& error) {
    const std::string message = error.what();
    INFO(message);
    CHECK(message.find("bytes") != std::string::npos);
    CHECK(message.find("are available") != std::string::npos);
  }
  config.kv_size = KvSize::bytes(1000);
  CHECK_THROWS_AS(CudaEngine(config), ConfigError);
  CudaEngine engine(fairytale());  // the device is as good as before
  CHECK(engine.generate(make_prompts(2)[1], {.max_tokens = 2}).error == "");
}

TEST_CASE("two engines on one device do not disturb each other", "[cuda][engine]") {
  if (!has_gpu()) return;
  EngineConfig config = fairytale();
  config.kv_size = KvSize::blocks(400);
  const auto prompts = make_prompts(10);
  const auto params = make_params(10);
  CudaEngine one(config), two(config);
  // Against itself: beside other programs the engines may measure other kernels as the faster ones.
  const auto expected = tokens_of(two.generate(prompts, params));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    one.submit(prompts[i], params[i]);
    two.submit(prompts[i], params[i]);
  }
  bool busy = true;
  while (busy) {
    const bool first = one.step(), second = two.step();
    busy = first || second;
  }
  CHECK(tokens_of(two.generate(prompts, params)) == expected);
}

TEST_CASE("two engines at the same time give what each gives alone", "[cuda][engine]") {
  if (!has_gpu()) return;
  EngineConfig config = fairytale();
  config.kv_size = KvSize::blocks(800);
  config.max_num_seqs = 72;
  // Made at the same time, too, so that each finds its kernels while the other does.
  std::unique_ptr<CudaEngine> engines[2];
  std::vector<std::thread> threads;
  for (auto& engine : engines)
    threads.emplace_back([&] { engine = std::make_unique<CudaEngine>(config); });
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  // Batches of all families of kernels run beside each other, with graphs of plain rows and others.
  using Tokens = std::vector<std::vector<TokenId>>;
  const auto run_all = [](CudaEngine& engine) {
    std::vector<Tokens> out;
    for (const std::size_t size : {1, 2, 5, 8, 11, 16, 40, 72}) {
      for (const bool plain : {false, true}) {
        Tokens& tokens =
            out.emplace_back();  // none of a request that failed: CHECK is for one thread
        const auto params = plain ? make_plain_params(size) : make_params(size);
        for (const Output& output : engine.generate(make_prompts(size), params))
          tokens.push_back(output.error.empty() ? output.token_ids : std::vector<TokenId>{});
      }
    }
    return out;
  };
  std::vector<Tokens> alone[2], together[2][3];
  for (int e = 0; e < 2; ++e) {
    // The first time fills the prefix cache, so that all later ones compute the same rows: in bfloat16
    // a row's bits may depend on what is computed with it.
    run_all(*engines[e]);
    alone[e] = run_all(*engines[e]);
    for (const Tokens& batch : alone[e]) {
      for (const auto& tokens : batch) REQUIRE(!tokens.empty());
    }
  }
  for (int e = 0; e < 2; ++e) {
    threads.emplace_back([&, e] {
      for (auto& round : together[e]) round = run_all(*engines[e]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int e = 0; e < 2; ++e) {
    for (const auto& round : together[e]) CHECK(round == alone[e]);
  }
}

}  // namespace nanovllm::test
