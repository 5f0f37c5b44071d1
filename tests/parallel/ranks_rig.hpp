#pragma once
/// What tests of tensor-parallel engines share, on any backend: requests, comparisons, and a backend
/// that fails.

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/odd_and_even.hpp"

namespace nanovllm::test {

template <class Args>
inline constexpr bool kIsEmbedding = false;
template <class... Ts>
inline constexpr bool kIsEmbedding<EmbeddingArgs<Ts...>> = true;

/// A backend that fails on one device: in the step after `steps_left` more, or at the op or graph
/// after `points_left` more. A step is one embedding, or one replay of a graph that holds it.
template <class Base>
class FailingBackend : public Base {
 public:
  explicit FailingBackend(const BackendConfig& config) : Base(config), device_(config.device) {}

  template <class Args>
  requires RunsOp<Base, Args>
  void run(const Args& args) {
    if (kIsEmbedding<Args>) step();
    point();
    Base::run(args);
  }
  template <class Graph, class... Inputs>
  requires requires(Base& base, const Graph& graph, const Inputs&... inputs) {
    base.replay(graph, inputs...);
  }
  void replay(const Graph& graph, const Inputs&... inputs) {
    step();
    point();
    Base::replay(graph, inputs...);
  }

  inline static std::atomic<int> failing_device = -1;
  inline static std::atomic<int> steps_left = -1;
  inline static std::atomic<int> points_left = -1;
  /// What to do instead of throwing.
  inline static void (*failure)(FailingBackend&) = nullptr;

 private:
  void step() {
    if (device_ == failing_device && steps_left-- == 0) fail();
  }
  void point() {
    if (device_ == failing_device && points_left-- == 0) fail();
  }
  void fail() {
    if (failure != nullptr) return failure(*this);
    throw Error("the machine is on fire");
  }

  int device_;
};

inline EngineConfig ranks_config(const std::string& model, int num_ranks,
                                 std::shared_ptr<ProcessGroup> processes = {}) {
  return {.model = model_directory(model),
          .tensor_parallel = num_ranks,
          .num_threads = 2,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 64,
          .max_model_len = 128,
          .kv_size = KvSize::blocks(64),
          .processes = std::move(processes),
          .seed = 7};
}

/// Greedy and sampled requests, of which some wait for others and prompts are computed in chunks.
template <class Engine>
std::vector<Trace> serve(Engine& engine) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 12; ++i) {
    prompts.push_back(random_prompt(i, 3 + 7 * i, 250));
    params.push_back({.temperature = i % 3 == 2 ? 0.8f : 0.f,
                      .max_tokens = 24,
                      .ignore_eos = true,
                      .logprobs = static_cast<std::int32_t>(i % 2)});
    SamplingParams& edited = params.back();
    if (i % 4 == 1) edited.repetition_penalty = 1.3f;
    if (i % 4 == 3) {
      edited.logit_bias = {{static_cast<TokenId>(i), 4.f}};
      edited.presence_penalty = 1;
    }
    if (i % 6 == 2) {
      edited.token_masks = std::make_shared<OddAndEven>(250);
      edited.stop_token_ids = {249};
    }
  }
  std::vector<Trace> out;
  for (const Output& output : engine.generate(prompts, params)) {
    CHECK(output.error.empty());
    out.push_back(trace_of(output));
  }
  return out;
}

/// Requests that ranks draw from their shards of the vocabulary: plain ones, then filtered ones and
/// ones with log-probabilities among them.
template <class Engine>
std::vector<Trace> serve_by_shard(Engine& engine) {
  std::vector<Trace> out;
  for (const bool plain : {true, false}) {
    std::vector<std::vector<TokenId>> prompts;
    std::vector<SamplingParams> params;
    for (std::size_t i = 0; i < 12; ++i) {
      prompts.push_back(random_prompt(i, 3 + 7 * i, 250));
      params.push_back(
          {.temperature = i % 3 == 0 ? 0.f : 0.9f, .max_tokens = 24, .ignore_eos = true});
      if (plain) continue;
      if (i % 2 == 0) params.back().top_k = 20;
      if (i % 4 == 0) params.back().top_p = 0.9f;
      if (i % 4 == 1) params.back().min_p = 0.05f;
      if (i % 4 > 1) params.back().logprobs = static_cast<std::int32_t>(i);
    }
    for (const Output& output : engine.generate(prompts, params)) {
      CHECK(output.error.empty());
      out.push_back(trace_of(output));
    }
  }
  return out;
}

inline void check_near(const std::vector<Trace>& got, const std::vector<Trace>& expected,
                       double bound) {
  REQUIRE(got.size() == expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].tokens == expected[i].tokens);
    REQUIRE(got[i].logprobs.size() == expected[i].logprobs.size());
    for (std::size_t j = 0; j < got[i].logprobs.size(); ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(got[i].logprobs[j]) -
                                           static_cast<double>(expected[i].logprobs[j])));
    }
  }
  CHECK(largest < bound);
}

/// Rounding differs, so tokens part at near ties; until then the log-probabilities are near.
inline void check_alike(const std::vector<Trace>& got, const std::vector<Trace>& expected,
                        double bound) {
  double sum = 0;
  std::size_t count = 0, num_parted = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    std::size_t j = 0;
    for (; j < got[i].tokens.size() && got[i].tokens[j] == expected[i].tokens[j]; ++j, ++count)
      sum += std::abs(got[i].logprobs[j] - expected[i].logprobs[j]);
    num_parted += j < got[i].tokens.size() ? 1 : 0;
  }
  INFO("mean difference " << sum / static_cast<double>(count) << " over " << count << " tokens, "
                          << num_parted << " of " << got.size() << " requests part");
  CHECK(count > got.size() * 6);
  CHECK(sum / static_cast<double>(count) < bound);
}

inline SamplingParams greedy(std::int32_t max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
}

}  // namespace nanovllm::test
