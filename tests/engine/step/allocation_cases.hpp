#pragma once
/// The law of steps in which memory runs out: whichever allocation fails in whichever step, every
/// request ends once, with its result or with an error, and what comes later is right.
///
/// Who includes this has `failing_new.hpp` and `engine/models.hpp`.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "failing_new.hpp"
#include "kv_stats.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/with/beams.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/sessions.hpp"

namespace nanovllm::test {

/// Allows every second token, and one less of them after each.
class Halves final : public TokenMaskSource {
 public:
  explicit Halves(int vocab) : vocab_(vocab) {}
  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(vocab_);
  }
  [[nodiscard]] int vocab_size() const override { return vocab_; }

 private:
  struct Matcher final : TokenMatcher {
    explicit Matcher(int vocab) : num_tokens(vocab) {}
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId token) override {
      said.push_back(token);
      return true;
    }
    void fill(std::span<std::uint32_t> bits) const override {
      for (auto token = static_cast<TokenId>(said.size()); token < num_tokens; token += 2)
        allow_token(bits, token);
    }
    [[nodiscard]] bool is_finished() const override { return false; }
    int num_tokens;
    std::vector<TokenId> said{};
  };

  int vocab_;
};

/// Requests that are served together.
struct Kind {
  const char* name;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  bool is_session = false;  ///< they are turns of a conversation, one after the other
};

struct AllocationRig {
  Qwen3Config model;  ///< with noise for weights
  EngineConfig config;
  std::int64_t stride = 1;       ///< of the allocations that fail on a warm engine
  std::int64_t cold_stride = 0;  ///< and on a new one; 0: none

  [[nodiscard]] std::vector<TokenId> prompt(std::uint64_t seed, std::size_t length) const {
    return random_prompt(seed, length, model.vocab_size);
  }

  [[nodiscard]] SamplingParams drawn(std::int32_t max_tokens, std::uint64_t seed) const {
    return {.temperature = seed == 0 ? 0.f : 0.9f,
            .seed = seed,
            .max_tokens = max_tokens,
            .ignore_eos = true};
  }

  [[nodiscard]] std::vector<Kind> kinds() const;
};

inline std::vector<Kind> AllocationRig::kinds() const {
  const std::vector<TokenId> a = prompt(1, 5), b = prompt(2, 21);
  SamplingParams edits = drawn(3, 0), logprobs = drawn(3, 0), beams = drawn(3, 0);
  edits.frequency_penalty = 1.f;
  edits.repetition_penalty = 1.2f;
  edits.logit_bias = {{5, 1.f}, {9, 1.f}};
  edits.min_tokens = 2;
  edits.stop_token_ids = {7};
  logprobs.logprobs = 3;
  logprobs.logprob_token_ids = {1, 4};
  logprobs.prompt_logprobs = 2;
  beams.beam_width = 3;
  beams.n = 2;
  SamplingParams pooled, samples = drawn(3, 4), best = drawn(3, 5), masked = drawn(3, 6);
  pooled.pooler = std::make_shared<LastTokenPooler>(true);
  samples.n = 2;
  best.n = 2;
  best.best_of = 4;
  masked.token_masks = std::make_shared<Halves>(static_cast<int>(model.vocab_size));
  masked.stop_token_ids = {3};
  SamplingParams masked_beams = beams;
  masked_beams.token_masks = masked.token_masks;
  masked_beams.stop_token_ids = {3};
  std::vector<TokenId> begins_as_b = b;
  begins_as_b.push_back(8);
  return {{"plain", {a, b}, {drawn(3, 0), drawn(4, 2)}},
          {"edits", {a, b}, {edits, drawn(4, 0)}},
          {"log-probabilities", {a, b}, {logprobs, drawn(4, 0)}},
          {"hidden states", {a, b, a}, {pooled, pooled, drawn(3, 0)}},
          {"shared reads", {b, begins_as_b}, {drawn(3, 0), drawn(3, 2)}},
          {"beams", {a, b}, {beams, drawn(4, 0)}},
          {"samples", {b, a}, {samples, drawn(4, 0)}},
          {"best_of", {b, a}, {best, drawn(4, 0)}},
          {"constraints", {a, b, b}, {masked, edits, drawn(4, 0)}},
          {"constrained beams", {a, b}, {masked_beams, drawn(4, 0)}},
          {"sessions", {a, b}, {drawn(3, 0), drawn(3, 0)}, true}};
}

/// What came of a request: its outputs, in the order of their ends.
using Ends = std::vector<Output>;

/// Serves a kind's requests, and lets allocation `n` of call `faulty_call` of `step` fail.
template <class Engine>
class FaultyRun {
 public:
  FaultyRun(Engine& engine, const Kind& kind) : engine_(engine), kind_(kind) {
    if (kind.is_session) session_.emplace(engine);
    ends_.resize(kind.prompts.size());
  }

  /// Returns whether there were so many allocations in it, or so many calls.
  bool run(int faulty_call, std::int64_t n) {
    for (std::size_t i = 0; i < kind_.prompts.size(); ++i) {
      submit(i);
      if (kind_.is_session) serve(faulty_call, n);
    }
    if (!kind_.is_session) serve(faulty_call, n);
    return was_reached_;
  }

  [[nodiscard]] bool had_call() const { return had_call_; }
  [[nodiscard]] const std::vector<Ends>& ends() const { return ends_; }

 private:
  void submit(std::size_t i) {
    const auto hear = [this, i](const TokenEvent& event) {
      const PausedFailures paused;
      if (event.output != nullptr) ends_[i].push_back(*event.output);
    };
    if (session_)
      session_->submit(kind_.prompts[i], kind_.params[i], hear);
    else
      engine_.submit(kind_.prompts[i], kind_.params[i], hear);
  }

  void serve(int faulty_call, std::int64_t n) {
    for (bool goes_on = true; goes_on; ++call_) {
      REQUIRE(call_ < 200);
      const bool is_faulty = call_ == faulty_call;
      had_call_ |= is_faulty;
      if (is_faulty) allocations_left = n;
      try {
        goes_on = engine_.step();
      } catch (const std::bad_alloc&) {  // before anything was planned
      }
      const bool failed = is_faulty && allocations_left < 0;
      allocations_left = -1;
      was_reached_ |= failed;
    }
  }

  Engine& engine_;
  const Kind& kind_;
  std::optional<Session> session_;
  std::vector<Ends> ends_;
  int call_ = 0;
  bool was_reached_ = false, had_call_ = false;
};

inline void check_same(const Output& got, const Output& expected) {
  CHECK(got.token_ids == expected.token_ids);
  CHECK(got.pooled == expected.pooled);
  CHECK(got.finish_reason == expected.finish_reason);
  REQUIRE(got.alternatives.size() == expected.alternatives.size());
  for (std::size_t i = 0; i < got.alternatives.size(); ++i)
    CHECK(got.alternatives[i].token_ids == expected.alternatives[i].token_ids);
  REQUIRE(got.logprobs.size() == expected.logprobs.size());
  for (std::size_t i = 0; i < got.logprobs.size(); ++i) {
    CHECK(got.logprobs[i].token_id == expected.logprobs[i].token_id);
    CHECK(got.logprobs[i].chosen.size() == expected.logprobs[i].chosen.size());
  }
}

template <class Engine>
void check_idle_engine(const Engine& engine) {
  engine.check_invariants();
  const EngineStats stats = engine.stats();
  CHECK(stats.num_waiting == 0);
  CHECK(stats.num_running == 0);
  CHECK(stats.num_free_kv_blocks + session_kv(stats).num_blocks == stats.num_kv_blocks);
}

/// What a kind and the control give on an engine of these settings.
template <class Engine>
class Law {
 public:
  Law(const AllocationRig& rig, const Kind& kind)
      : rig_(rig), kind_(kind), engine_(make()), control_(rig.prompt(3, 4)) {
    expected_control_ = engine_->generate(control_, greedy_).token_ids;
    FaultyRun<Engine> whole(*engine_, kind);
    whole.run(-1, 0);
    expected_ = whole.ends();
    for (const Ends& ends : expected_) {
      REQUIRE(ends.size() == 1);
      REQUIRE(ends[0].error == "");
    }
  }

  /// Each allocation of each call, on one engine, which keeps memory from step to step.
  void check_warm() {
    for (int call = 0; had_call_; ++call) {
      bool was_reached = true;
      for (std::int64_t n = call % rig_.stride; was_reached; n += rig_.stride) {
        was_reached = check_one(*engine_, call, n);
        if (!was_reached || n % 4 == 0) check_whole();
      }
    }
  }

  /// Each allocation of the first calls, each on an engine that has no memory of steps yet.
  void check_cold() {
    if (rig_.cold_stride == 0) return;
    for (int call = 0; call < 2; ++call) {
      bool was_reached = true;
      for (std::int64_t n = call % rig_.cold_stride; was_reached; n += rig_.cold_stride)
        was_reached = check_one(*make(), call, n);
    }
  }

 private:
  [[nodiscard]] std::unique_ptr<Engine> make() const {
    return std::make_unique<Engine>(rig_.model, RandomWeights{7}, rig_.config);
  }

  /// Returns whether call `call` has allocation `n`, which then fails.
  bool check_one(Engine& engine, int call, std::int64_t n) {
    INFO(kind_.name << ", allocation " << n << " of call " << call);
    bool was_reached = false;
    {
      FaultyRun<Engine> run(engine, kind_);
      was_reached = run.run(call, n);
      had_call_ = run.had_call();
      for (std::size_t i = 0; i < run.ends().size(); ++i) {
        INFO("request " << i);
        const Ends& ends = run.ends()[i];
        REQUIRE(ends.size() == 1);
        if (ends[0].finish_reason == FinishReason::error) {
          CHECK(was_reached);
          CHECK(ends[0].error != "");
        } else if (!kind_.is_session) {
          check_same(ends[0], expected_[i][0]);
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      const Output after = engine.generate(control_, greedy_);
      CHECK(after.error == "");
      CHECK(after.token_ids == expected_control_);
    }
    check_idle_engine(engine);
    return was_reached;
  }

  /// The kind itself is as it was.
  void check_whole() {
    FaultyRun<Engine> again(*engine_, kind_);
    again.run(-1, 0);
    for (std::size_t i = 0; i < again.ends().size(); ++i) {
      REQUIRE(again.ends()[i].size() == 1);
      check_same(again.ends()[i][0], expected_[i][0]);
    }
  }

  const AllocationRig& rig_;
  const Kind& kind_;
  std::unique_ptr<Engine> engine_;
  const std::vector<TokenId> control_;
  const SamplingParams greedy_{.temperature = 0.f, .max_tokens = 2, .ignore_eos = true};
  std::vector<TokenId> expected_control_;
  std::vector<Ends> expected_;
  bool had_call_ = true;
};

/// The law for all kinds.
template <class Engine>
void check_all_kinds(AllocationRig rig) {
  std::int64_t total = 0;
  for (const bool overlap : {true, false}) {
    rig.config.overlap = overlap;
    if (!overlap) rig.cold_stride *= 6;  // its steps differ in what is behind them alone
    for (const Kind& kind : rig.kinds()) {
      const std::int64_t before = num_failed_allocations;
      INFO(kind.name << ", overlap " << overlap);
      Law<Engine> law(rig, kind);
      law.check_warm();
      law.check_cold();
      CHECK(num_failed_allocations - before > 0);
      total += num_failed_allocations - before;
    }
  }
  std::cout << total << " allocations have failed, each alone, in steps of " << rig.kinds().size()
            << " kinds\n";
}

}  // namespace nanovllm::test
