#pragma once
/// Edited logits in an engine, on any backend: against transformers (the generations of
/// tests/oracle/make_edits_fixture.py), and the laws: who is beside a request, how its prompt is cut
/// and whether it was preempted, cached or planned ahead must not show in its tokens.
///
/// Who includes this defines `BackendFloat32`, the policy, and `backend_present()` before.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/with/beams.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct EditsPolicy : BackendFloat32 {
  static constexpr KvConfig kv{.block_size = 16};
};
using EditsEngine = Engine<AnyModel, EditsPolicy>;

/// Wants a residue of tokens that the token before and the position say.
struct Alternating {
  NANOVLLM_HD static bool is_wanted(TokenId previous, std::uint64_t position, TokenId token) {
    return static_cast<std::uint64_t>(token) % 5 ==
           (static_cast<std::uint64_t>(previous) + position) % 5;
  }
  NANOVLLM_HD float operator()(float logit, TokenId token, const FunctorContext& context) const {
    return is_wanted(context.previous, context.position, token) ? logit + context.argument : logit;
  }
};
struct AlternatingPolicy : EditsPolicy {
  using LogitsFunctor = Alternating;
};

EngineConfig edits_config(bool overlap = true) {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .overlap = overlap};
}

/// A constraint that reads what was drawn: after token t comes one of t + 1 … t + `kStride`, modulo
/// `modulus`, and after `length` tokens the end. It throws instead at `fails_at`.
class Ladder final : public TokenMaskSource {
 public:
  static constexpr TokenId kStride = 40;
  Ladder(int vocab, TokenId end, std::int32_t length, std::int32_t fails_at = -1)
      : vocab_(vocab), end_(end), length_(length), fails_at_(fails_at) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(*this);
  }
  [[nodiscard]] int vocab_size() const override { return vocab_; }

  [[nodiscard]] bool allows(TokenId before, TokenId token) const {
    for (TokenId i = 1; i <= kStride; ++i) {
      if (next(before, i) == token) return true;
    }
    return false;
  }
  [[nodiscard]] TokenId next(TokenId before, TokenId i) const { return (before + i) % modulus(); }
  [[nodiscard]] TokenId modulus() const { return std::min<TokenId>(end_, 1000); }
  static constexpr TokenId kFirst = 100;

 private:
  struct Matcher final : TokenMatcher {
    explicit Matcher(const Ladder& of) : source(of) {}
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId token) override {
      if (!source.allows(last, token)) return false;
      last = token;
      ++count;
      return true;
    }
    void fill(std::span<std::uint32_t> bits) const override {
      if (count == source.fails_at_) throw Error("the ladder breaks");
      for (TokenId i = 1; i <= kStride; ++i) {
        const auto token = static_cast<std::size_t>(source.next(last, i));
        bits[token / 32] |= 1u << (token % 32);
      }
    }
    [[nodiscard]] bool is_finished() const override { return count >= source.length_; }

    const Ladder& source;
    TokenId last = kFirst;
    std::int32_t count = 0;
  };

  int vocab_;
  TokenId end_;
  std::int32_t length_, fails_at_;
};

/// One sequence of tokens, and then the end.
class Path final : public TokenMaskSource {
 public:
  Path(int vocab, std::vector<TokenId> tokens) : vocab_(vocab), tokens_(std::move(tokens)) {}
  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(tokens_);
  }
  [[nodiscard]] int vocab_size() const override { return vocab_; }

 private:
  struct Matcher final : TokenMatcher {
    explicit Matcher(const std::vector<TokenId>& of) : tokens(of) {}
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId token) override {
      if (is_finished() || token != tokens[count]) return false;
      ++count;
      return true;
    }
    void fill(std::span<std::uint32_t> bits) const override { allow_token(bits, tokens[count]); }
    [[nodiscard]] bool is_finished() const override { return count == tokens.size(); }
    const std::vector<TokenId>& tokens;
    std::size_t count = 0;
  };

  int vocab_;
  std::vector<TokenId> tokens_;
};

/// Breaks at one place, with what is no std::exception where it throws.
class Thrower final : public TokenMaskSource {
 public:
  enum Where : std::uint8_t { making, null, fill, accept, nothing_allowed, refuses };
  Thrower(int vocab, Where where) : vocab_(vocab), where_(where) {}
  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    if (where_ == Where::making) throw 42;
    if (where_ == Where::null) return nullptr;
    return std::make_unique<Matcher>(where_);
  }
  [[nodiscard]] int vocab_size() const override { return vocab_; }

 private:
  struct Matcher final : TokenMatcher {
    explicit Matcher(Where at) : where(at) {}
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId) override {
      if (++count < 3) return true;
      if (where == Where::accept) throw 42;
      return where != Where::refuses;
    }
    void fill(std::span<std::uint32_t> bits) const override {
      if (where == Where::fill && count == 2) throw 42;
      if (where == Where::nothing_allowed && count == 2) return;
      for (TokenId token = 100; token < 300; ++token) allow_token(bits, token);
    }
    [[nodiscard]] bool is_finished() const override { return false; }
    Where where;
    int count = 0;
  };

  int vocab_;
  Where where_;
};

/// Requests of every kind, in turn: plain, each of the edits, and some together.
struct EditedWork {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
};

EditedWork edited_work(const Qwen3Config& model, std::size_t count, bool with_logprobs) {
  const auto vocab = static_cast<int>(model.vocab_size);
  const auto ladder = std::make_shared<Ladder>(vocab, model.eos_token_ids.at(0), 20);
  EditedWork work;
  const std::vector<TokenId> common = random_prompt(1, 37, vocab);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<TokenId> prompt = i % 2 == 0 ? common : std::vector<TokenId>{};
    const std::vector<TokenId> own = random_prompt(10 + i, 1 + i * 7 % 23, vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    SamplingParams params{
        .seed = 700 + i, .max_tokens = 28 + static_cast<std::int32_t>(i % 9), .ignore_eos = true};
    params.temperature = i % 3 == 0 ? 0.f : 0.8f;
    if (with_logprobs && i % 2 == 1) params.logprobs = static_cast<std::int32_t>(i % 4);
    switch (i % 7) {
      case 0: break;
      case 1: params.repetition_penalty = 1.4f; break;
      case 2: params.frequency_penalty = 0.6f, params.presence_penalty = 0.5f; break;
      case 3:
        params.logit_bias = {{static_cast<TokenId>(5 + i), 6.f}, {7, -100.f}};
        params.repetition_penalty = 1.2f;
        break;
      case 4: params.allowed_token_ids = random_prompt(90 + i, 50, vocab); break;
      case 5:
        params.token_masks = ladder;
        params.ignore_eos = false;
        params.presence_penalty = -0.5f;
        break;
      case 6:
        params.bad_words = {"the king", "a", "forest"};
        params.n = 3;
        params.repetition_penalty = 1.1f;
        if (with_logprobs) params.logprob_token_ids = {3, 3, static_cast<TokenId>(i), 0};
        break;
    }
    work.prompts.push_back(std::move(prompt));
    work.params.push_back(std::move(params));
  }
  return work;
}

/// All completions of a request: tokens, and log-probabilities in their order.
struct EditedAnswer {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<float> logprobs;
};

EditedAnswer edited_answer(const Output& output) {
  EditedAnswer answer;
  const auto add = [&](const Completion& completion) {
    answer.tokens.push_back(completion.token_ids);
    for (const TokenLogprobs& entry : completion.logprobs) {
      answer.logprobs.push_back(entry.logprob);
      for (const auto& [token, logprob] : entry.top) answer.logprobs.push_back(logprob);
      for (const auto& [token, logprob] : entry.chosen) answer.logprobs.push_back(logprob);
    }
  };
  add(output);
  for (const Completion& other : output.alternatives) add(other);
  return answer;
}

void check_same(const EditedAnswer& answer, const EditedAnswer& expected) {
  CHECK(answer.tokens == expected.tokens);
  REQUIRE(answer.logprobs.size() == expected.logprobs.size());
  float worst = 0;
  for (std::size_t i = 0; i < answer.logprobs.size(); ++i) {
    if (answer.logprobs[i] == expected.logprobs[i]) continue;  // -inf, too
    worst = std::max(worst, std::abs(answer.logprobs[i] - expected.logprobs[i]));
  }
  CHECK(worst <= 2e-5f);
}

std::vector<EditedAnswer> answers_of(EditsEngine& engine, const EditedWork& work) {
  std::vector<EditedAnswer> answers;
  for (const Output& output : engine.generate(work.prompts, work.params)) {
    REQUIRE(output.error == "");
    answers.push_back(edited_answer(output));
  }
  return answers;
}

}  // namespace

TEST_CASE("edited generations are those of transformers", "[edits][parity]") {
  if (!backend_present()) return;
  std::ifstream file("tests/fixtures/edits.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (const auto& entry : fixture.at("cases")) {
    SamplingParams p{.temperature = 0.f, .ignore_eos = true};
    p.max_tokens = p.min_tokens = static_cast<std::int32_t>(entry.at("tokens").size());
    p.ignore_eos = false;  // the fixture has end tokens banned
    if (entry.contains("repetition_penalty")) p.repetition_penalty = entry["repetition_penalty"];
    p.frequency_penalty = entry.value("frequency_penalty", 0.f);
    p.presence_penalty = entry.value("presence_penalty", 0.f);
    for (const auto& bias : entry.value("logit_bias", nlohmann::json::array()))
      p.logit_bias.push_back({bias.at(0), bias.at(1)});
    p.allowed_token_ids = entry.value("allowed_token_ids", std::vector<TokenId>{});
    p.bad_words = entry.value("bad_words", std::vector<std::string>{});
    if (entry.contains("num_beams")) p.beam_width = entry["num_beams"];
    prompts.push_back(entry.at("prompt"));
    params.push_back(std::move(p));
  }
  REQUIRE(prompts.size() >= 10);
  for (const bool overlap : {false, true}) {
    EditsEngine engine(edits_config(overlap));
    const auto outputs = engine.generate(prompts, params);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto& entry = fixture["cases"][i];
      CAPTURE(overlap, entry.at("name").get<std::string>());
      CHECK(outputs[i].error == "");
      CHECK(outputs[i].token_ids == entry.at("tokens").get<std::vector<TokenId>>());
    }
  }
}

TEST_CASE("what is beside a request does not show in its edits", "[edits][laws]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const EditedWork work = edited_work(model, 21, true);
  std::vector<EditedAnswer> alone;
  {
    EngineConfig config = edits_config(false);
    config.prefix_caching = false;
    EditsEngine engine(std::move(config));
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      CAPTURE(i);
      const Output output = engine.generate(work.prompts[i], work.params[i]);
      REQUIRE(output.error == "");
      alone.push_back(edited_answer(output));
    }
  }
  const auto check_engine = [&](EngineConfig config, bool preempts) {
    CAPTURE(*config.overlap, preempts);
    EditsEngine engine(std::move(config));
    for (int round = 0; round < 2; ++round) {  // the second finds a warm cache
      const std::vector<EditedAnswer> together = answers_of(engine, work);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        CAPTURE(round, i);
        check_same(together[i], alone[i]);
      }
    }
    engine.check_invariants();
    CHECK((engine.stats().num_preemptions > 0) == preempts);
  };
  for (const bool overlap : {false, true}) {
    check_engine(edits_config(overlap), false);
    EngineConfig small = edits_config(overlap);
    small.max_num_batched_tokens = 29;  // chunks
    small.max_num_seqs = 16;
    small.kv_size = KvSize::blocks(7);
    check_engine(small, true);
  }
}

TEST_CASE("a mask that reads tokens rules its own request alone", "[edits][masks]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const auto vocab = static_cast<int>(model.vocab_size);
  const TokenId end = model.eos_token_ids.at(0);
  const auto ladder = std::make_shared<Ladder>(vocab, end, 12);
  EditsEngine engine(edits_config());
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 8; ++i) {
    prompts.push_back(random_prompt(50 + i, 5 + i, vocab));
    params.push_back({.temperature = 1.f, .seed = i, .max_tokens = 30});
    if (i % 2 == 0) params.back().token_masks = ladder;
  }
  const auto outputs = engine.generate(prompts, params);
  for (std::size_t i = 0; i < 8; i += 2) {
    CAPTURE(i);
    REQUIRE(outputs[i].error == "");
    CHECK(outputs[i].finish_reason == FinishReason::stop);
    REQUIRE(outputs[i].token_ids.size() == 13);
    TokenId last = Ladder::kFirst;
    for (std::size_t t = 0; t < 12; ++t) {
      CHECK(ladder->allows(last, outputs[i].token_ids[t]));
      last = outputs[i].token_ids[t];
    }
    CHECK(std::count(model.eos_token_ids.begin(), model.eos_token_ids.end(),
                     outputs[i].token_ids.back()) == 1);
  }
}

TEST_CASE("log-probabilities are the model's whatever is edited", "[edits][logprobs]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  EditsEngine engine(edits_config());
  const std::vector<TokenId> prompt = random_prompt(3, 9, model.vocab_size);
  SamplingParams plain{.temperature = 0.f, .max_tokens = 1, .ignore_eos = true, .logprobs = 20};
  const TokenLogprobs own = engine.generate(prompt, plain).logprobs.at(0);
  SamplingParams edited = plain;
  edited.logit_bias = {{own.top[4].first, 100.f}};
  edited.logprob_token_ids = {own.top[7].first, own.top[0].first};
  edited.repetition_penalty = 1.7f;
  const TokenLogprobs other = engine.generate(prompt, edited).logprobs.at(0);
  CHECK(other.token_id == own.top[4].first);
  CHECK(std::abs(other.logprob - own.top[4].second) <= 2e-5f);
  REQUIRE(other.top.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) CHECK(other.top[i].first == own.top[i].first);
  REQUIRE(other.chosen.size() == 2);
  CHECK(other.chosen[0].first == own.top[7].first);
  CHECK(std::abs(other.chosen[0].second - own.top[7].second) <= 2e-5f);
  CHECK(std::abs(other.chosen[1].second - own.top[0].second) <= 2e-5f);
}

TEST_CASE("a functor of the policy's is applied to the requests that ask", "[edits][functor]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const auto vocab = static_cast<TokenId>(model.vocab_size);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 12; ++i) {
    prompts.push_back(random_prompt(60 + i, 3 + 2 * i, vocab));
    params.push_back({.temperature = i % 2 == 0 ? 0.f : 1.f,
                      .seed = i,
                      .max_tokens = 15 + static_cast<std::int32_t>(i % 4),
                      .ignore_eos = true});
  }
  EditsEngine plain(edits_config());
  const auto expected = plain.generate(prompts, params);
  for (std::size_t i = 0; i < 12; ++i) params[i].functor_argument = i % 3 == 0 ? 50.f : 0.f;
  CHECK_THROWS_WITH(plain.submit(prompts[0], params[0], nullptr),
                    Catch::Matchers::Contains("functor_argument needs a LogitsFunctor"));
  for (const bool overlap : {false, true}) {
    Engine<AnyModel, AlternatingPolicy> engine(edits_config(overlap));
    const auto outputs = engine.generate(prompts, params);
    for (std::size_t i = 0; i < 12; ++i) {
      CAPTURE(overlap, i);
      REQUIRE(outputs[i].error == "");
      if (i % 3 != 0) {
        CHECK(outputs[i].token_ids == expected[i].token_ids);
        continue;
      }
      // Each token knows the one before it and its position.
      TokenId last = prompts[i].back();
      std::int64_t position = std::ssize(prompts[i]);
      bool follows = true;
      for (const TokenId token : outputs[i].token_ids) {
        follows =
            follows && Alternating::is_wanted(last, static_cast<std::uint64_t>(position), token);
        last = token;
        ++position;
      }
      CHECK(follows);
    }
  }
}

TEST_CASE("a constraint that throws ends its request and no other", "[edits][faults]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const auto vocab = static_cast<int>(model.vocab_size);
  const EditedWork work = edited_work(model, 9, false);
  EditsEngine engine(edits_config());
  const std::vector<EditedAnswer> expected = answers_of(engine, work);
  for (std::int32_t fails_at = 0; fails_at < 6; ++fails_at) {
    CAPTURE(fails_at);
    EditedWork with = work;
    with.prompts.push_back(random_prompt(8, 120, vocab));  // more blocks than any other has
    with.params.push_back({.temperature = 0.5f, .max_tokens = 30});
    with.params.back().token_masks =
        std::make_shared<Ladder>(vocab, model.eos_token_ids.at(0), 25, fails_at);
    std::string streamed;
    Output broken;
    std::vector<Output> outputs(with.prompts.size());
    for (std::size_t i = 0; i < with.prompts.size(); ++i) {
      engine.submit(with.prompts[i], with.params[i], [&, i](const TokenEvent& event) {
        if (i + 1 == with.prompts.size()) streamed += event.text;
        if (event.output != nullptr) outputs[i] = *event.output;
      });
    }
    while (engine.step()) engine.check_invariants();
    const Output& last = outputs.back();
    CHECK(last.finish_reason == FinishReason::error);
    CHECK(last.error.find("the ladder breaks") != std::string::npos);
    CHECK(static_cast<std::int32_t>(last.token_ids.size()) == fails_at);
    CHECK(streamed == last.text);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      check_same(edited_answer(outputs[i]), expected[i]);
    }
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  }
}

TEST_CASE("what constraints throw, of any kind, costs their own requests", "[edits][faults]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const auto vocab = static_cast<int>(model.vocab_size);
  EditsEngine engine(edits_config());
  const SamplingParams plain{.temperature = 0.f, .max_tokens = 10, .ignore_eos = true};
  const std::vector<TokenId> prompt = random_prompt(4, 6, vocab),
                             other = random_prompt(5, 70, vocab);
  const std::vector<TokenId> expected = engine.generate(prompt, plain).token_ids;
  for (const Thrower::Where where : {Thrower::making, Thrower::null, Thrower::fill, Thrower::accept,
                                     Thrower::nothing_allowed, Thrower::refuses}) {
    CAPTURE(static_cast<int>(where));
    SamplingParams bad{.temperature = 0.f, .max_tokens = 10};
    bad.token_masks = std::make_shared<Thrower>(vocab, where);
    const auto outputs = engine.generate(std::vector<std::vector<TokenId>>{prompt, other, prompt},
                                         std::vector<SamplingParams>{plain, bad, plain});
    CHECK(outputs[0].token_ids == expected);
    CHECK(outputs[2].token_ids == expected);
    CHECK(outputs[0].error == "");
    CHECK(outputs[1].finish_reason == FinishReason::error);
    CHECK(outputs[1].error != "");
    engine.check_invariants();
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  }
  SamplingParams none = plain;
  none.allowed_token_ids = {7};
  none.token_masks = std::make_shared<Ladder>(vocab, model.eos_token_ids.at(0), 5);
  none.ignore_eos = false;
  const Output output = engine.generate(prompt, none);
  CHECK(output.error.find("no token is left that may come") != std::string::npos);
  CHECK(output.token_ids.empty());
}

TEST_CASE("beams keep to a constraint or say that they cannot", "[edits][beams]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const auto vocab = static_cast<int>(model.vocab_size);
  const TokenId end = model.eos_token_ids.at(0);
  EditsEngine engine(edits_config());
  const std::vector<TokenId> prompt = random_prompt(4, 6, vocab);
  SamplingParams params;
  params.beam_width = 4;
  params.n = 3;
  params.max_tokens = 12;
  const auto ladder = std::make_shared<Ladder>(vocab, end, 6);
  params.token_masks = ladder;
  const Output free_choice = engine.generate(prompt, params);
  CHECK(free_choice.error == "");
  std::vector<Completion> all{free_choice};
  all.insert(all.end(), free_choice.alternatives.begin(), free_choice.alternatives.end());
  REQUIRE(all.size() == 3);
  for (const Completion& completion : all) {
    REQUIRE(completion.token_ids.size() == 7);
    TokenId last = Ladder::kFirst;
    for (std::size_t t = 0; t < 6; ++t) {
      CHECK(ladder->allows(last, completion.token_ids[t]));
      last = completion.token_ids[t];
    }
  }
  // One text and no other, with each of the end tokens there are.
  params.token_masks = std::make_shared<Path>(vocab, std::vector<TokenId>{11, 12, 13});
  const Output one = engine.generate(prompt, params);
  CHECK(one.error == "");
  REQUIRE(one.token_ids.size() == 4);
  CHECK(one.token_ids[2] == 13);
  for (const Completion& completion : one.alternatives) {
    if (completion.finish_reason == FinishReason::error) {
      CHECK(completion.token_ids.empty());
    } else {
      REQUIRE(completion.token_ids.size() == 4);
      CHECK(completion.token_ids[0] == 11);
    }
  }
  const std::string none = "beam search: no text was found that the constraints allow";
  params.min_tokens = 8;
  CHECK(engine.generate(prompt, params).error == none);
  params.min_tokens = 0;
  params.allowed_token_ids = {14};
  CHECK(engine.generate(prompt, params).error == none);
  params.allowed_token_ids = {};
  params.token_masks = std::make_shared<Thrower>(vocab, Thrower::refuses);
  CHECK(engine.generate(prompt, params).finish_reason == FinishReason::error);
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
}

TEST_CASE("edited requests that are aborted leave nothing behind", "[edits][faults]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const EditedWork work = edited_work(model, 14, false);
  EditsEngine engine(edits_config());
  const std::vector<EditedAnswer> expected = answers_of(engine, work);
  for (int when = 1; when < 8; ++when) {
    CAPTURE(when);
    std::vector<Output> outputs(work.prompts.size());
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      ids.push_back(engine.submit(work.prompts[i], work.params[i], [&, i](const TokenEvent& event) {
        if (event.output != nullptr) outputs[i] = *event.output;
      }));
    }
    for (int step = 0; step < when; ++step) engine.step();
    for (std::size_t i = 0; i < ids.size(); i += 3) engine.abort(ids[i]);
    while (engine.step()) engine.check_invariants();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      if (i % 3 == 0) {
        CHECK(outputs[i].finish_reason == FinishReason::abort);
      } else {
        check_same(edited_answer(outputs[i]), expected[i]);
      }
    }
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  }
  // An engine that goes with deferred steps under way.
  {
    EditsEngine other(edits_config());
    for (std::size_t i = 0; i < work.prompts.size(); ++i)
      other.submit(work.prompts[i], work.params[i], [](const TokenEvent&) {});
    for (int step = 0; step < 3; ++step) other.step();
  }
}

TEST_CASE("what cannot be edited is refused by name", "[edits][errors]") {
  if (!backend_present()) return;
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  const auto vocab = static_cast<TokenId>(model.vocab_size);
  EditsEngine engine(edits_config());
  const auto refuses = [&](const auto& change, const char* text) {
    SamplingParams params;
    change(params);
    CAPTURE(text);
    CHECK_THROWS_WITH(engine.submit(std::vector<TokenId>{1, 2}, params, nullptr),
                      Catch::Matchers::Contains(text));
  };
  using P = SamplingParams;
  refuses([](P& p) { p.repetition_penalty = 0.f; }, "repetition_penalty must be > 0");
  refuses([](P& p) { p.repetition_penalty = std::nanf(""); }, "repetition_penalty must be > 0");
  refuses([](P& p) { p.frequency_penalty = 2.5f; },
          "frequency_penalty must be in [-2, 2], got 2.5");
  refuses([](P& p) { p.presence_penalty = -3; }, "presence_penalty must be in [-2, 2], got -3");
  refuses([](P& p) { p.logit_bias = {{1, 101.f}}; }, "logit_bias must be in [-100, 100], got 101");
  refuses([](P& p) { p.logit_bias = {{1, 1.f}, {2, 1.f}, {1, 3.f}}; }, "token 1 twice");
  refuses([&](P& p) { p.logit_bias = {{vocab, 1.f}}; }, "in logit_bias is not in [0, vocab_size");
  refuses([&](P& p) { p.allowed_token_ids = {0, vocab}; }, "in allowed_token_ids is not in [0");
  refuses([](P& p) { p.logprob_token_ids = {-1}; }, "in logprob_token_ids is not in [0");
  refuses([](P& p) { p.bad_words = {""}; }, "bad_words: a string must not be empty");
  refuses([&](P& p) { p.token_masks = std::make_shared<Ladder>(vocab + 1, 0, 3); },
          "token_masks are for a vocabulary of");
  refuses(
      [&](P& p) {
        p.token_masks = std::make_shared<Ladder>(vocab, 0, 3);
        p.ignore_eos = true;
      },
      "token_masks need an end token");
  refuses([](P& p) { p.beam_width = 2, p.logprob_token_ids = {1}; },
          "beam_width cannot be combined with logprob_token_ids");
  CHECK(engine.generate(std::vector<TokenId>{1, 2}, {.max_tokens = 3}).error == "");
}
