// Steps that cannot be computed: they cost the requests in them, and no others.

#include <algorithm>
#include <chrono>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/api/serve/health_report.hpp"
#include "nanovllm/engine/any_engine.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// A CPU that fails in the step after `steps_left` more.
class FailingBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;

  template <class T, class Matrix>
  void run(const EmbeddingArgs<T, Matrix>& args) {
    if (steps_left-- == 0) throw Error("the machine is on fire");
    CpuBackend::run(args);
  }

  inline static int steps_left = -1;
};

struct FailingPolicy : TestPolicy<Float32Policy, 16> {
  using Backend = FailingBackend;
};

using TestEngine = Engine<AnyModel, FailingPolicy>;

EngineConfig small_config(bool overlap) {
  return {.model = model_directory("fairytale"),
          .num_threads = 1,
          .max_num_seqs = 2,
          .max_model_len = 64,
          .overlap = overlap};
}

SamplingParams greedy(std::int32_t max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
}

}  // namespace

TEST_CASE("a step that fails costs the requests in it, and no others", "[engine]") {
  const bool overlap = GENERATE(false, true);
  const int failing_step = GENERATE(0, 1, 2, 3, 6);
  TestEngine engine(small_config(overlap));
  FailingBackend::steps_left = -1;
  const std::vector<std::string> prompts{"Once upon", "The fox", "The wolf", "The queen"};
  const std::vector<SamplingParams> params{greedy(3), greedy(9), greedy(5), greedy(4)};
  const std::vector<Output> expected = engine.generate(prompts, params);
  FailingBackend::steps_left = failing_step;
  const std::vector<Output> outputs = engine.generate(prompts, params);
  // The first two run; the third takes the place of the first in the fourth step, the fourth
  // request that of the third in the ninth.
  const int first_failed = failing_step <= 2 ? 0 : 1;
  const int last_failed = failing_step <= 2 ? 1 : 2;
  for (int i = 0; i < 4; ++i) {
    INFO("request " << i << ", failing step " << failing_step << ", overlap " << overlap);
    const Output& output = outputs[static_cast<std::size_t>(i)];
    if (i >= first_failed && i <= last_failed) {
      CHECK(output.finish_reason == FinishReason::error);
      CHECK(output.error == "the machine is on fire");
      CHECK(output.token_ids.size() ==
            static_cast<std::size_t>(i == 2 ? failing_step - 3 : failing_step));
    } else {
      CHECK(output.finish_reason == FinishReason::length);
      CHECK(output.token_ids == expected[static_cast<std::size_t>(i)].token_ids);
    }
  }
  engine.check_invariants();
  while (engine.step()) {
  }
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
}

TEST_CASE("a request aborted in a step that fails ends once", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  int num_ends = 0;
  FinishReason reason = FinishReason::none;
  const RequestId id = engine.submit("Once upon", greedy(20), [&](const TokenEvent& event) {
    if (!event.output) return;
    ++num_ends;
    reason = event.output->finish_reason;
  });
  FailingBackend::steps_left = 1;
  CHECK(engine.step());
  engine.abort(id);
  while (engine.step()) {
  }
  FailingBackend::steps_left = -1;
  CHECK(num_ends == 1);
  CHECK(reason == FinishReason::abort);
  CHECK(engine.generate("Once upon", greedy(4)).token_ids.size() == 4);
  engine.check_invariants();
}

TEST_CASE("a step that fails ends a beam search that has beams in it, and leaves nothing behind",
          "[engine][beams]") {
  EngineConfig config = small_config(GENERATE(false, true));
  config.kv_size = GENERATE(KvSize::blocks(20), KvSize::blocks(3));
  TestEngine engine(config);
  FailingBackend::steps_left = -1;
  SamplingParams beams;
  beams.n = 3;
  beams.max_tokens = 12;
  beams.ignore_eos = true;
  beams.beam_width = 3;
  const std::vector<std::string> prompts{"Once upon", "The fox"};
  const std::vector<SamplingParams> params{beams, greedy(9)};
  const std::vector<Output> expected = engine.generate(prompts, params);
  REQUIRE(expected[0].alternatives.size() == 2);
  for (int failing_step = 0; failing_step < 14; ++failing_step) {
    FailingBackend::steps_left = failing_step;
    const std::vector<Output> outputs = engine.generate(prompts, params);
    FailingBackend::steps_left = -1;
    CAPTURE(failing_step);
    CHECK((outputs[0].error == "the machine is on fire" ||
           outputs[1].error == "the machine is on fire"));
    for (std::size_t i = 0; i < 2; ++i) {
      if (outputs[i].error.empty()) {
        CHECK(outputs[i].token_ids == expected[i].token_ids);
      } else if (i == 0) {
        CHECK(outputs[0].token_ids.empty());
      }
    }
    engine.check_invariants();
    while (engine.step()) {
    }
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
    CHECK(engine.stats().num_waiting == 0);
  }
  const std::vector<Output> again = engine.generate(prompts, params);
  for (std::size_t i = 0; i < 2; ++i) CHECK(again[i].token_ids == expected[i].token_ids);
}

TEST_CASE("a step that fails leaves the log-probabilities of the prompt that there are",
          "[engine][prompt_logprobs]") {
  const bool overlap = GENERATE(false, true);
  const int failing_step = GENERATE(0, 1, 2, 3);
  TestEngine engine(small_config(overlap));
  FailingBackend::steps_left = -1;
  const std::vector<TokenId> prompt = random_prompt(4, 9, 4000);
  SamplingParams params = greedy(3);
  params.prompt_logprobs = 1;
  const Output expected = engine.generate(prompt, params);
  REQUIRE(expected.prompt_logprobs.size() == 9);
  FailingBackend::steps_left = failing_step;
  const Output output = engine.generate(prompt, params);
  FailingBackend::steps_left = -1;
  CAPTURE(overlap, failing_step);
  CHECK(output.error == "the machine is on fire");
  REQUIRE(output.prompt_logprobs.size() == 9);
  CHECK_FALSE(output.prompt_logprobs[0]);
  for (std::size_t i = 1; i < 9; ++i) {
    CAPTURE(i);
    const bool is_there = i <= 2 * static_cast<std::size_t>(failing_step);  // two rows a step
    REQUIRE(output.prompt_logprobs[i].has_value() == is_there);
    if (is_there) CHECK(output.prompt_logprobs[i]->logprob == expected.prompt_logprobs[i]->logprob);
  }
  const Output again = engine.generate(prompt, params);
  CHECK(again.token_ids == expected.token_ids);
  CHECK(std::ranges::count_if(again.prompt_logprobs, [](const auto& x) { return !x; }) == 1);
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
}

TEST_CASE("asking for its health, one finds out that an idle engine has recovered", "[engine]") {
  TestEngine engine(small_config(false));
  serve::HealthCheck check(engine, std::chrono::seconds(0));
  FailingBackend::steps_left = 0;
  CHECK(engine.generate("Once upon", greedy(3)).finish_reason == FinishReason::error);
  // It fails once more, by the step that the first question has asked for.
  FailingBackend::steps_left = 0;
  CHECK(check.report().status == 503);
  while (engine.step()) {
  }
  CHECK(FailingBackend::steps_left == -1);
  CHECK(check.report().status == 503);
  while (engine.step()) {
  }
  CHECK(check.report().body == "{\"status\": \"ok\"}");
  CHECK(engine.stats().num_running + engine.stats().num_waiting == 0);
}
