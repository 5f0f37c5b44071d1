// Sampling from logits of Qwen3's vocabulary, with the settings that people use. The work counted
// is one reading of the logits.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "options.hpp"

namespace {

using namespace nanovllm;

constexpr std::int64_t kVocab = 151936, kMaxRows = 32, kMaxLogprobs = 20;

/// A bulk of unlikely tokens and a few likely ones, about as a language model gives them.
const std::vector<float>& model_like_logits() {
  static const std::vector<float> logits = [] {
    std::mt19937 random(7);
    std::normal_distribution<float> bulk(0.f, 2.5f);
    std::vector<float> out(static_cast<std::size_t>(kMaxRows * kVocab));
    for (float& x : out) x = bulk(random);
    for (std::int64_t row = 0; row < kMaxRows; ++row) {
      for (int i = 0; i < 8; ++i) {
        const std::int64_t token = static_cast<std::int64_t>(random()) % kVocab;
        out[static_cast<std::size_t>(row * kVocab + token)] = 14.f - 0.7f * static_cast<float>(i);
      }
    }
    return out;
  }();
  return logits;
}

void sample_rows(benchmark::State& state, const SamplingRow& settings, std::int64_t n) {
  std::vector<float> logits(model_like_logits().begin(), model_like_logits().begin() + n * kVocab);
  std::vector<SamplingRow> rows(static_cast<std::size_t>(n), settings);
  const std::vector<std::int32_t> starts(rows.size() + 1, 0);
  std::vector<TokenId> tokens(rows.size()), top_tokens(rows.size() * kMaxLogprobs);
  std::vector<float> logprobs(rows.size()), top_logprobs(rows.size() * kMaxLogprobs);
  SampleArgs args;
  args.logits = {logits.data(), {n, kVocab}};
  args.batch.rows = {rows.data(), {n}};
  args.batch.banned.starts = {starts.data(), {n + 1}};
  args.tokens = {tokens.data(), {n}};
  args.logprobs = {logprobs.data(), {n}};
  args.top_tokens = {top_tokens.data(), {n, kMaxLogprobs}};
  args.top_logprobs = {top_logprobs.data(), {n, kMaxLogprobs}};
  cpu_ops::measure(
      state, static_cast<double>(n * kVocab) * sizeof(float), "GB/s",
      [] { return cpu_ops::read_bandwidth(cpu_ops::context()); },
      [&] {
        for (SamplingRow& row : rows) ++row.position;
        cpu::sample(args, cpu_ops::context());
        benchmark::DoNotOptimize(tokens.data());
      });
}

void register_all() {
  const struct {
    const char* name;
    SamplingRow settings;
  } cases[] = {
      {"greedy", {.temperature = 0.f}},
      {"greedy_logprobs_5", {.temperature = 0.f, .num_logprobs = 5}},
      {"top_k_20_top_p_95", {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
      {"top_k_1000", {.top_k = 1000}},
      {"top_p_95", {.temperature = 0.8f, .top_p = 0.95f}},
      {"top_p_95_hot", {.temperature = 2.f, .top_p = 0.95f}},
      {"min_p_5", {.min_p = 0.05f}},
      {"unfiltered", {}},
  };
  for (const auto& c : cases) {
    for (std::int64_t n : {1, 32}) {
      const SamplingRow settings = c.settings;
      const std::string label = std::string("sampler/") + c.name + "/n:" + std::to_string(n);
      benchmark::RegisterBenchmark(
          label.c_str(), [=](benchmark::State& state) { sample_rows(state, settings, n); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
