// Steps under way: two at a time, tokens that the step before draws, and errors.

#include "nanovllm/engine/runner/runner.hpp"

#include <chrono>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Policy : Float32Policy {
  using Ranks = ThreadRanks;
};

using Limit = std::optional<std::chrono::duration<double>>;

struct TestRunner : RunnerOf<Policy> {
  explicit TestRunner(int num_ranks = 1, Limit limit = {}, const char* model = "group1_tied_yarn")
      : Runner(Qwen3Config::load(model_directory(model)),
               {.num_ranks = num_ranks,
                .num_threads = 1,
                .limits = {.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 64},
                .block_size = Policy::kv.block_size,
                .step_timeout = limit},
               [&](auto& weights, auto& backend, int) {
                 weights.load(Checkpoint(model_directory(model)), backend);
               }) {
    allocate_kv(8);
  }
};

/// Sequences of up to 32 tokens: a prompt is computed whole, then token by token.
class Steps {
 public:
  explicit Steps(int num_sequences) : sequences_(static_cast<std::size_t>(num_sequences)) {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      sequences_[i].tokens = random_prompt(i, 3 + i, 100);
      const auto first = static_cast<BlockId>(2 * i);
      sequences_[i].block_table = {first, first + 1};
    }
  }

  /// What sequence i has not computed yet, in reverse order so that samples and sequences differ.
  const StepInputs& next() {
    StepPlan plan;
    for (std::size_t i = sequences_.size(); i-- > 0;) {
      Sequence& s = sequences_[i];
      plan.sequences.push_back({.sequence = &s,
                                .begin = s.num_computed_tokens,
                                .end = s.num_tokens(),
                                .rows = {{RowKind::draw, s.num_tokens() - 1, 1}}});
      plan.num_tokens += plan.sequences.back().num_tokens();
      s.num_computed_tokens = s.num_tokens();
    }
    HostSamplingBatch sampling;
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      append_sample(sampling, {.temperature = 0.f, .num_logprobs = 2});
    inputs_.build(plan, 16, sampling);
    return inputs_;
  }

  /// Appends the sampled tokens.
  void append_drawn(const StepResults& results) {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      sequences_[i].tokens.push_back(
          *results.tokens.at(static_cast<std::int64_t>(sequences_.size() - 1 - i)));
    }
  }
  /// Appends what the step just launched draws: its sample i for the last sequence but i.
  void append_pending(std::int32_t first = 0) {
    for (std::size_t i = sequences_.size(); i-- > 0;) sequences_[i].pending.push(first++, 1);
  }
  /// The oldest pending tokens become known.
  void settle(const StepResults& results) {
    append_drawn(results);
    for (Sequence& s : sequences_) s.pending.pop_oldest();
  }

 private:
  std::vector<Sequence> sequences_;
  StepInputs inputs_;
};

std::vector<float> numbers(const StepResults& results) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < results.tokens.extent(0); ++i) {
    out.push_back(static_cast<float>(*results.tokens.at(i)));
    out.push_back(*results.logprobs.at(i));
    for (std::int64_t j = 0; j < 2; ++j) {
      out.push_back(static_cast<float>(*results.top_tokens.at(i, j)));
      out.push_back(*results.top_logprobs.at(i, j));
    }
  }
  return out;
}

}  // namespace

namespace {

constexpr int kNumSteps = 12;

std::vector<std::vector<float>> in_turn(TestRunner& runner) {
  std::vector<std::vector<float>> out;
  Steps steps(3);
  for (int i = 0; i < kNumSteps; ++i) {
    const StepResults results = runner.run(steps.next());
    out.push_back(numbers(results));
    steps.append_drawn(results);
  }
  return out;
}

/// The next step's inputs come where those of the step before were.
std::vector<std::vector<float>> two_at_a_time(TestRunner& runner) {
  std::vector<std::vector<float>> out;
  Steps steps(3);
  runner.launch(steps.next());
  steps.append_pending();
  for (int i = 1; i < kNumSteps; ++i) {
    runner.launch(steps.next());
    steps.append_pending();
    const StepResults results = runner.wait();
    out.push_back(numbers(results));
    steps.settle(results);
  }
  out.push_back(numbers(runner.wait()));
  return out;
}

}  // namespace

TEST_CASE("two steps under way give what one after the other gives", "[runner]") {
  TestRunner runner, other;
  CHECK(two_at_a_time(runner) == in_turn(other));
}

TEST_CASE("ranks with threads give the same steps, and errors in their wait", "[runner]") {
  constexpr const char* kModel = "group4_untied_sharded";
  for (const int num_ranks : {1, 2}) {
    TestRunner other(num_ranks, {}, kModel);
    const auto expected = in_turn(other);
    for (const Limit limit : {Limit(), Limit(10)}) {
      CAPTURE(num_ranks, limit.has_value());
      TestRunner runner(num_ranks, limit, kModel);
      CHECK(two_at_a_time(runner) == expected);
      Steps good(2), bad(2), later(2);
      bad.append_pending(3);  // there are no such samples
      CHECK_NOTHROW(runner.launch(good.next()));
      CHECK_NOTHROW(runner.launch(bad.next()));
      // Of several ranks one that fails ends what the others compute.
      if (num_ranks == 1) CHECK_NOTHROW(runner.wait());
      if (num_ranks == 2) CHECK_THROWS_WITH(runner.wait(), Catch::Matchers::Contains("sample 3"));
      CHECK_THROWS_WITH(runner.wait(), Catch::Matchers::Contains("sample 3"));
      if (num_ranks == 2) {
        CHECK_THROWS_WITH(runner.run(later.next()), Catch::Matchers::Contains("sample 3"));
        runner.reset();
      }
      CHECK(two_at_a_time(runner) == expected);
      CHECK_NOTHROW(runner.launch(later.next()));  // and goes with it under way
    }
  }
}

TEST_CASE("results stay until the next launch but one", "[runner]") {
  TestRunner runner;
  Steps steps(2);
  runner.launch(steps.next());
  const StepResults first = runner.wait();
  const auto before = numbers(first);
  steps.append_drawn(first);
  runner.launch(steps.next());
  CHECK(numbers(first) == before);
  static_cast<void>(runner.wait());
  CHECK(numbers(first) == before);
}

TEST_CASE("a step's error comes from its wait, and takes along the step after it", "[runner]") {
  TestRunner runner;
  Steps bad(2), good(2), later(2);
  bad.append_pending(3);  // there are no such samples
  CHECK_NOTHROW(runner.launch(bad.next()));
  CHECK_NOTHROW(runner.launch(good.next()));
  CHECK_THROWS_WITH(runner.wait(), Catch::Matchers::Contains("sample 3"));
  CHECK_THROWS_WITH(runner.wait(), Catch::Matchers::Contains("sample 3"));
  CHECK_NOTHROW(runner.run(later.next()));
}

TEST_CASE("a third step under way and a wait for none are refused", "[runner]") {
  TestRunner runner;
  Steps steps(1);
  CHECK_THROWS_AS(runner.wait(), Error);
  runner.launch(steps.next());
  CHECK_THROWS_WITH(runner.run(steps.next()), Catch::Matchers::Contains("under way"));
  steps.append_pending();
  runner.launch(steps.next());
  steps.append_pending();
  CHECK_THROWS_WITH(runner.launch(steps.next()), Catch::Matchers::Contains("two steps"));
  CHECK_NOTHROW(runner.wait());
  CHECK_NOTHROW(runner.wait());
}
