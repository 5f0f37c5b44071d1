// Steps under way: two at a time, tokens that the step before draws, and errors.

#include "nanovllm/engine/runner/runner.hpp"

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using Policy = Float32Policy;

struct TestRunner : RunnerOf<Policy> {
  TestRunner()
      : Runner(Qwen3Config::load(model_directory("group1_tied_yarn")),
               {.num_threads = 1,
                .limits = {.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 64},
                .block_size = Policy::kv.block_size},
               [](auto& weights, auto& backend, int) {
                 weights.load(Checkpoint(model_directory("group1_tied_yarn")), backend);
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

TEST_CASE("two steps under way give what one after the other gives", "[runner]") {
  constexpr int kNumSteps = 12;
  TestRunner runner;
  std::vector<std::vector<float>> expected, got;
  Steps one(3), two(3);
  for (int i = 0; i < kNumSteps; ++i) {
    const StepResults results = runner.run(one.next());
    expected.push_back(numbers(results));
    one.append_drawn(results);
  }
  runner.launch(two.next());
  two.append_pending();
  for (int i = 1; i < kNumSteps; ++i) {
    runner.launch(two.next());
    two.append_pending();
    const StepResults results = runner.wait();
    got.push_back(numbers(results));
    two.settle(results);
  }
  got.push_back(numbers(runner.wait()));
  CHECK(got == expected);
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
