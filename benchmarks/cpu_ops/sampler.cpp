// Sampling from logits of Qwen3's vocabulary, with the settings that people use. The work counted
// is one reading of the logits.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ceilings.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "options.hpp"

namespace {

using namespace nanovllm;

constexpr std::int64_t kVocab = 151936, kMaxRows = 32, kMaxLogprobs = 20;

/// What rows of logits look like.
enum class Shape {
  model,  ///< a bulk of unlikely tokens and a few likely ones, about as a language model gives them
  normal,  ///< N(0, 3), without likely ones
  peaked,  ///< one token has nearly all of the mass
  flat,    ///< N(0, 0.1): no token is more likely than others
  equal,   ///< all logits are the same
};

std::vector<float> make_logits(Shape shape) {
  std::mt19937 random(7);
  const float deviation = shape == Shape::model    ? 2.5f
                          : shape == Shape::normal ? 3.f
                          : shape == Shape::peaked ? 1.f
                                                   : 0.1f;
  std::normal_distribution<float> bulk(0.f, deviation);
  std::vector<float> out(static_cast<std::size_t>(kMaxRows * kVocab));
  for (float& x : out) x = shape == Shape::equal ? 1.25f : bulk(random);
  const int num_likely = shape == Shape::model ? 8 : shape == Shape::peaked ? 1 : 0;
  const float most = shape == Shape::peaked ? 25.f : 14.f;
  for (std::int64_t row = 0; row < kMaxRows; ++row) {
    for (int i = 0; i < num_likely; ++i) {
      const std::int64_t token = static_cast<std::int64_t>(random()) % kVocab;
      out[static_cast<std::size_t>(row * kVocab + token)] = most - 0.7f * static_cast<float>(i);
    }
  }
  return out;
}

const std::vector<float>& logits_of(Shape shape) {
  static std::map<Shape, std::vector<float>> all;
  const auto [at, is_new] = all.try_emplace(shape);
  if (is_new) at->second = make_logits(shape);
  return at->second;
}

void sample_rows(benchmark::State& state, Shape shape, const SamplingRow& settings,
                 std::int64_t n) {
  const std::vector<float>& all = logits_of(shape);
  std::vector<float> logits(all.begin(), all.begin() + n * kVocab);
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

void add(const std::string& label, Shape shape, const SamplingRow& settings, std::int64_t n) {
  benchmark::RegisterBenchmark(
      ("sampler/" + label + "/n:" + std::to_string(n)).c_str(),
      [=](benchmark::State& state) { sample_rows(state, shape, settings, n); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
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
    for (std::int64_t n : {1, 32}) add(c.name, Shape::model, c.settings, n);
  }
  // top_p alone, on rows whose nucleus is one token up to nearly all.
  const struct {
    const char* name;
    Shape shape;
  } shapes[] = {{"model", Shape::model},
                {"normal", Shape::normal},
                {"peaked", Shape::peaked},
                {"flat", Shape::flat},
                {"equal", Shape::equal}};
  for (const auto& [name, shape] : shapes) {
    for (const auto& [text, top_p] : {std::pair{"0.01", 0.01f},
                                      {"0.5", 0.5f},
                                      {"0.9", 0.9f},
                                      {"0.95", 0.95f},
                                      {"0.999", 0.999f},
                                      {"1", 1.f}}) {
      add(std::string("top_p/") + name + "/p:" + text, shape, {.top_p = top_p}, 1);
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
