#pragma once
/// What the comparisons with Hugging Face transformers share, whatever the model: expected
/// log-probabilities and greedy tokens, made by the scripts in tests/oracle, and the model's own.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/io/safetensors.hpp"

namespace nanovllm::test {

/// The expected results of one model in one element type.
class Reference {
 public:
  Reference(const std::string& model, std::string dtype)
      : dtype_(std::move(dtype)), file_("tests/fixtures/parity/" + model + ".safetensors") {
    std::ifstream stream("tests/fixtures/parity/" + model + ".json");
    info_ = nlohmann::json::parse(stream);
  }

  std::size_t num_prompts() const { return info_["prompts"].size(); }
  std::vector<TokenId> prompt(std::size_t p) const { return info_["prompts"][p]; }
  std::vector<std::int64_t> full_positions(std::size_t p) const {
    return info_["full_positions"][p];
  }
  std::int64_t vocab_size() const { return info_["vocab_size"]; }
  /// Of checkpoints whose weights are a formula: what config.json says, and the formula's seed.
  nlohmann::json config() const { return info_["config"]; }
  nlohmann::json texts() const { return info_["texts"]; }
  std::uint64_t seed() const { return info_["seeds"]["weights"]; }
  /// Of mixtures of experts: one text a layer with experts, see make_qwen3_moe_fixtures.py.
  std::vector<std::string> experts(std::size_t p) const { return info_["experts"][p]; }
  std::size_t num_greedy() const { return info_["num_greedy"]; }
  /// Difference between transformers' two attention implementations in bfloat16: mean, largest.
  double own_disagreement() const { return agreement()["mean_abs"]; }
  double own_largest_disagreement() const { return agreement()["max_abs"]; }
  /// Mean difference between transformers' own float32 and bfloat16.
  double own_rounding() const { return info_["agreement"]["float32 / bfloat16"]["mean_abs"]; }

  template <class T>
  std::vector<T> values(std::size_t p, const char* key) const {
    const TensorInfo* tensor = file_.find(dtype_ + "." + std::to_string(p) + "." + key);
    REQUIRE(tensor != nullptr);
    const std::span<const std::byte> bytes = file_.data(*tensor);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  nlohmann::json agreement() const { return info_["agreement"]["bfloat16 / bfloat16 eager"]; }

  std::string dtype_;
  SafetensorsFile file_;
  nlohmann::json info_;
};

inline std::vector<double> log_softmax(const float* logits, std::int64_t n) {
  const double max = *std::max_element(logits, logits + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(logits[i] - max);
  std::vector<double> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(logits[i] - max - std::log(sum));
  return out;
}

/// Log-probabilities over the vocabulary after each prefix of `prompt`: all prefixes run as the
/// sequences of one step, so that a single step prefills lengths 1 … L side by side.
template <class Policy, class RunnerT>
std::vector<std::vector<double>> prefix_log_probs(RunnerT& runner,
                                                  const std::vector<TokenId>& prompt,
                                                  std::int64_t vocab) {
  constexpr int kBlock = Policy::kv.block_size;
  std::vector<Sequence> sequences(prompt.size());
  StepPlan plan;
  BlockId next_block = 0;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    Sequence& s = sequences[i];
    s.id = i;
    s.tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    for (int block = 0; block <= static_cast<int>(i) / kBlock; ++block)
      s.block_table.push_back(next_block++);
    plan.sequences.push_back({.sequence = &s,
                              .end = s.num_tokens(),
                              .rows = {{nanovllm::RowKind::draw, s.num_tokens() - 1, 1}}});
    plan.num_tokens += s.num_tokens();
  }
  HostSamplingBatch sampling;
  for (std::size_t i = 0; i < prompt.size(); ++i) append_sample(sampling, {});
  StepInputs inputs;
  inputs.build(plan, kBlock, sampling);
  std::vector<float> logits(prompt.size() * static_cast<std::size_t>(vocab), std::nanf(""));
  runner.run_logits(inputs, {logits.data(), {static_cast<std::int64_t>(prompt.size()), vocab}});
  std::vector<std::vector<double>> out;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    out.push_back(log_softmax(logits.data() + i * static_cast<std::size_t>(vocab), vocab));
  }
  return out;
}

template <class Model, class Policy>
Runner<Model, RunnerPolicyOf<Policy>> load_runner(const std::filesystem::path& directory,
                                                  std::int64_t max_model_len, int num_ranks = 1) {
  const Checkpoint checkpoint(directory);
  return Runner<Model, RunnerPolicyOf<Policy>>(
      Model::Config::load(directory),
      {.num_ranks = num_ranks,
       .num_threads = 2,
       .limits = {.max_num_batched_tokens = 2048,
                  .max_num_seqs = 64,
                  .max_model_len = max_model_len},
       .block_size = Policy::kv.block_size},
      [&](auto& weights, auto& backend, int) { weights.load(checkpoint, backend); });
}

struct Difference {
  double largest = 0, sum = 0;
  std::size_t count = 0;
  void add(double a, double b) {
    const double d = std::abs(a - b);
    REQUIRE(std::isfinite(d));
    largest = std::max(largest, d);
    sum += d;
    ++count;
  }
  double mean() const { return count ? sum / static_cast<double>(count) : 0; }
};

/// Compares every prefix of every prompt; `full` over the stored vocabularies, `likely` over the
/// eight most likely tokens and the one that follows, at every position.
template <class Model, class Policy>
void compare_prefixes(const std::filesystem::path& directory, std::int64_t max_model_len,
                      const Reference& reference, Difference& full, Difference& likely) {
  auto runner = load_runner<Model, Policy>(directory, max_model_len);
  runner.allocate_kv(512);
  const auto vocab = reference.vocab_size();
  for (std::size_t p = 0; p < reference.num_prompts(); ++p) {
    const auto prompt = reference.prompt(p);
    const auto got = prefix_log_probs<Policy>(runner, prompt, vocab);
    const auto expected = reference.template values<float>(p, "log_probs");
    const auto positions = reference.full_positions(p);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      for (std::int64_t v = 0; v < vocab; ++v) {
        full.add(got[static_cast<std::size_t>(positions[i])][static_cast<std::size_t>(v)],
                 expected[i * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(v)]);
      }
    }
    const auto top_ids = reference.template values<std::int32_t>(p, "top_ids");
    const auto top = reference.template values<float>(p, "top_log_probs");
    const auto next = reference.template values<float>(p, "next_log_probs");
    const auto greedy = reference.template values<std::int32_t>(p, "greedy_ids");
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      for (std::size_t k = 0; k < 8; ++k) {
        likely.add(got[i][static_cast<std::size_t>(top_ids[8 * i + k])], top[8 * i + k]);
      }
      const TokenId id = i + 1 < prompt.size() ? prompt[i + 1] : greedy[0];
      likely.add(got[i][static_cast<std::size_t>(id)], next[i]);
    }
  }
}

/// Greedy tokens and their log-probabilities, which must be the reference's.
template <class Engine>
void compare_greedy(Engine& engine, const Reference& reference) {
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t p = 0; p < reference.num_prompts(); ++p) prompts.push_back(reference.prompt(p));
  const auto outputs =
      engine.generate(prompts, {.temperature = 0.f,
                                .max_tokens = static_cast<std::int32_t>(reference.num_greedy()),
                                .ignore_eos = true,
                                .logprobs = 0});
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    INFO("prompt " << p << " " << outputs[p].error);
    CHECK(outputs[p].token_ids == reference.values<std::int32_t>(p, "greedy_ids"));
    const auto expected = reference.values<float>(p, "greedy_log_probs");
    REQUIRE(outputs[p].logprobs.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(std::abs(outputs[p].logprobs[i].logprob - expected[i]) < 1e-4);
    }
  }
}

/// Of the greedy steps, where tokens differ from the reference's.
struct Mismatches {
  std::size_t num_steps = 0, count = 0;
  double widest_gap = 0;  ///< by which the reference prefers its own token
};

/// Every step starts from the reference's tokens, so that one mismatch does not hide the rest.
template <class Engine>
Mismatches greedy_mismatches(Engine& engine, const Reference& reference) {
  Mismatches out;
  for (std::size_t p = 0; p < reference.num_prompts(); ++p) {
    const auto greedy = reference.values<std::int32_t>(p, "greedy_ids");
    const auto gaps = reference.values<float>(p, "greedy_gaps");
    std::vector<std::vector<TokenId>> prompts(1, reference.prompt(p));
    for (std::size_t i = 0; i + 1 < greedy.size(); ++i) {
      prompts.push_back(prompts.back());
      prompts.back().push_back(greedy[i]);
    }
    const auto outputs = engine.generate(prompts, {.temperature = 0.f, .max_tokens = 1});
    for (std::size_t i = 0; i < greedy.size(); ++i, ++out.num_steps) {
      if (outputs[i].token_ids[0] == greedy[i]) continue;
      ++out.count;
      out.widest_gap = std::max(out.widest_gap, static_cast<double>(gaps[i]));
    }
  }
  return out;
}

}  // namespace nanovllm::test
