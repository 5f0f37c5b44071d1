#pragma once
// What steps that check drafts cost and give. The model has random weights and a bias that makes it
// draw one token always, so that a drafter can be right as often as it is told to.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/with/speculation.hpp"
#include "speculation/random_head.hpp"

namespace speculation_bench {

namespace nv = nanovllm;

inline constexpr nv::TokenId kDrawn = 1000, kOther = 1001;

/// Drafts what is drawn with a probability, and what is not with the rest.
class Told {
 public:
  inline static std::int32_t length = 0;  ///< of a draft
  inline static double rate = 1;

  void write(std::span<const nv::DraftRequest> requests, std::span<nv::Draft> drafts) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      drafts[i].tokens.clear();
      const std::int32_t count = std::min(length, requests[i].max_tokens);
      for (std::int32_t j = 0; j < count; ++j) {
        const auto word = nv::philox4x32(requests[i].sequence, {++num_calls_, 0, 0, 0})[0];
        drafts[i].tokens.push_back(word < rate * 0x1p32 ? kDrawn : kOther);
      }
    }
  }

 private:
  std::uint32_t num_calls_ = 0;
};

/// A drafter that costs nothing.
class ToldDrafter final : public nv::Drafter {
 public:
  static constexpr std::string_view kMethod = "told";
  explicit ToldDrafter(const nv::DraftSetup&) {}
  void propose(std::span<const nv::DraftRequest> requests, std::span<nv::Draft> drafts) override {
    told_.write(requests, drafts);
  }

 private:
  Told told_;
};

/// An EAGLE-3 head, which drafts as ever, and whose drafts are exchanged for those.
class ToldHead final : public nv::Eagle3Drafter {
 public:
  using Eagle3Drafter::Eagle3Drafter;
  void propose(std::span<const nv::DraftRequest> requests, std::span<nv::Draft> drafts) override {
    Eagle3Drafter::propose(requests, drafts);
    told_.write(requests, drafts);
  }

 private:
  Told told_;
};

struct Result {
  double step_ms, tokens_per_step, tokens_per_second;
};

/// Decodes `num_sequences` after prompts of `context` tokens: the median step of those in which all
/// decode, and tokens over the time of all such steps.
template <class Engine>
Result decode(Engine& engine, int num_sequences, int context, int max_tokens, int vocab_size) {
  std::int64_t num_tokens = 0;
  for (int i = 0; i < num_sequences; ++i) {
    std::vector<nv::TokenId> prompt;
    for (int j = 0; j < context; ++j)
      prompt.push_back((i * 7919 + j * 104729 + 13) % (vocab_size - 10));
    engine.submit(
        prompt,
        {.temperature = 0.f,
         .logit_bias = {{kDrawn, 100.f}},
         .max_tokens = max_tokens,
         .ignore_eos = true},
        [&](const nv::TokenEvent& event) { num_tokens += event.token != nullptr ? 1 : 0; });
  }
  while (num_tokens < 4 * num_sequences && engine.step()) {
  }
  std::vector<double> seconds;
  const std::int64_t first = num_tokens;
  const auto begin = std::chrono::steady_clock::now();
  auto last = begin;
  // Until the first of them may end.
  const std::int64_t most = std::int64_t{num_sequences} * (max_tokens - 24);
  while (num_tokens < most * 3 / 4 && engine.step()) {
    const auto now = std::chrono::steady_clock::now();
    seconds.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  }
  const double total = std::chrono::duration<double>(last - begin).count();
  const auto given = static_cast<double>(num_tokens - first);
  while (engine.step()) {
  }
  const double steps = static_cast<double>(seconds.size());
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return {.step_ms = 1e3 * seconds[seconds.size() / 2],
          .tokens_per_step = given / steps / num_sequences,
          .tokens_per_second = given / total};
}

struct Row {
  std::string format, drafts;
  int num_sequences, length;
  double rate;
  Result result;
};

template <class Policy, class Drafter>
struct DraftedPolicy : Policy {
  using Guesses = nv::DraftedBy<Drafter>;
};

/// All rows of a policy of 8B's shape, or a smaller one's.
template <class Policy, class ModelConfig>
void measure(const char* format, const ModelConfig& model, const nv::EngineConfig& base,
             std::vector<Row>& rows) {
  using Model = nv::Qwen3<nv::shapes::qwen3_any>;
  using Engine = nv::Engine<Model, DraftedPolicy<Policy, ToldDrafter>>;
  const auto vocab = static_cast<int>(model.vocab_size);
  const auto add = [&](const char* drafts, int n, const Result& result) {
    rows.push_back({format, drafts, n, Told::length, Told::rate, result});
    std::printf(
        "%-5s %-9s %3d sequences, %d drafts, rate %.1f: %7.3f ms a step, %5.2f tokens a "
        "step, %8.0f tokens/s\n",
        format, drafts, n, Told::length, Told::rate, result.step_ms, result.tokens_per_step,
        result.tokens_per_second);
    std::fflush(stdout);
  };
  const auto engine_with = [&](int most, bool adaptive) {
    nv::EngineConfig config = base;
    config.extras.set(nv::SpeculativeConfig{.num_speculative_tokens = most, .adaptive = adaptive});
    return Engine(model, nv::RandomWeights{}, config);
  };
  {
    Engine engine = engine_with(0, false);
    Told::length = 0;
    for (const int n : {1, 8, 64, 256}) add("none", n, decode(engine, n, 512, 400, vocab));
  }
  {
    Engine engine = engine_with(15, false);
    for (const int n : {1, 8, 64}) {
      for (const int length : {1, 3, 7, 15}) {
        if (n * (length + 1) > 256) continue;
        Told::length = length;
        for (const double rate : {1., .7}) {
          Told::rate = rate;
          add("fixed", n, decode(engine, n, 512, 160 * (length + 1) / 2, vocab));
        }
      }
    }
  }
  {
    Engine engine = engine_with(7, true);
    for (const int n : {1, 8, 64, 256}) {
      for (const double rate : {.7, 0.}) {
        Told::length = 7, Told::rate = rate;
        decode(engine, n, 512, 400, vocab);  // what it costs is known after that
        add("adaptive", n, decode(engine, n, 512, 400, vocab));
      }
    }
  }
  nv::EngineConfig config = base;
  const auto head = std::filesystem::temp_directory_path() / "speculation_bench_head";
  write_random_head(model, 32000, head);
  config.extras.set(nv::SpeculativeConfig{
      .method = "eagle3", .model = head, .num_speculative_tokens = 7, .adaptive = false});
  nv::Engine<Model, DraftedPolicy<Policy, ToldHead>> engine(model, nv::RandomWeights{}, config);
  std::filesystem::remove_all(head);
  for (const int n : {1, 8, 64}) {
    for (const int length : {1, 3, 5, 7}) {
      if (n * (length + 1) > 256) continue;
      Told::length = length, Told::rate = .7;
      add("eagle3", n, decode(engine, n, 512, 160 * (length + 1) / 2, vocab));
    }
  }
}

/// Writes the rows as JSON.
inline void write(const std::vector<Row>& rows, const char* path) {
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return;
  std::fprintf(file, "[\n");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::fprintf(file,
                 "  {\"format\": \"%s\", \"drafts\": \"%s\", \"sequences\": %d, \"length\": %d, "
                 "\"rate\": %.2f, \"step_ms\": %.4f, \"tokens_per_step\": %.4f, "
                 "\"tokens_per_second\": %.1f}%s\n",
                 row.format.c_str(), row.drafts.c_str(), row.num_sequences, row.length, row.rate,
                 row.result.step_ms, row.result.tokens_per_step, row.result.tokens_per_second,
                 i + 1 < rows.size() ? "," : "");
  }
  std::fprintf(file, "]\n");
  std::fclose(file);
}

}  // namespace speculation_bench
