// The policy slot `Guesses`: what steps make of guessed tokens, whoever guesses them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/odd_and_even.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/policy.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Guesses that sequences go on as `text` does, with every `wrong`-th token another.
struct Guesser final : StepObserver {
  [[nodiscard]] bool prepare(std::span<Sequence* const> running, bool is_behind) override {
    if (is_behind) return true;
    for (Sequence* s : running) {
      s->guesses.clear();
      for (auto i = s->tokens.size(); i < std::min(text.size(), s->tokens.size() + 3); ++i)
        s->guesses.push_back((i + 1) % wrong == 0 ? text[i] ^ 1 : text[i]);
    }
    return false;
  }

  inline static std::vector<TokenId> text;
  inline static std::size_t wrong = 1000;
};

struct Guessing : NoGuesses {
  [[nodiscard]] static std::int32_t num_logits(const EngineConfig&, const BatchConfig& batch) {
    return 4 * batch.max_num_seqs;
  }
  [[nodiscard]] static std::unique_ptr<StepObserver> observer(const GuessSetup& setup) {
    CHECK(setup.batch.num_logits() == 4 * setup.batch.max_num_seqs);
    CHECK(setup.vocab_size > 1000);
    CHECK(setup.max_model_len == 128);
    return std::make_unique<Guesser>();
  }
};

struct GuessingPolicy : Float32Policy {
  using Guesses = Guessing;
};

EngineConfig config(bool overlap) {
  return {.model = model_directory("fairytale"),
          .num_threads = 1,
          .max_num_seqs = 2,
          .max_model_len = 128,
          .overlap = overlap};
}

}  // namespace

TEST_CASE("a request gets with guesses what it gets without", "[guesses]") {
  const std::vector<TokenId> prompt = random_prompt(8, 6, 4000);
  std::vector<SamplingParams> all(4, {.max_tokens = 24, .ignore_eos = true, .logprobs = 2});
  for (SamplingParams& params : all) params.temperature = 0.9f, params.seed = 5;
  all[0].temperature = 0;
  all[1].frequency_penalty = 0.7f, all[1].repetition_penalty = 1.2f;
  all[2].bad_words = {" the king", " a"}, all[2].min_tokens = 5;
  all[3].ignore_eos = false;
  all[3].token_masks = std::make_shared<OddAndEven>(4096);
  all[3].stop_token_ids = {4095};
  Engine<AnyModel, Float32Policy> plain(config(false));
  for (const SamplingParams& params : all) {
    const Output expected = plain.generate(prompt, params);
    Guesser::text = prompt;
    Guesser::text.insert(Guesser::text.end(), expected.token_ids.begin(), expected.token_ids.end());
    for (const std::size_t wrong : {1000, 1, 3}) {
      for (const bool overlap : {false, true}) {
        CAPTURE(&params - all.data(), wrong, overlap);
        Guesser::wrong = wrong;
        Engine<AnyModel, GuessingPolicy> engine(config(overlap));
        const Output output = engine.generate(prompt, params);
        engine.check_invariants();
        CHECK(output.error == "");
        CHECK(output.token_ids == expected.token_ids);
        CHECK(output.text == expected.text);
        CHECK(output.cumulative_logprob == expected.cumulative_logprob);
        const auto num_tokens = static_cast<std::int64_t>(expected.token_ids.size());
        if (wrong == 1) CHECK(engine.stats().num_steps == num_tokens);
        if (wrong == 1000) CHECK(engine.stats().num_steps == 1 + (num_tokens + 2) / 4);
        if (wrong == 3) CHECK(engine.stats().num_steps < num_tokens);
        CHECK(engine.stats().num_sampled_tokens == num_tokens);
      }
    }
  }
}
