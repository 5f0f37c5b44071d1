// Steps that hang, on a rank or on a device: found, named, and the process lives.

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/step/deferred_backend.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Seconds = std::chrono::duration<double>;

namespace nanovllm::test {

/// A backend of which one rank's next op hangs until it is let go.
class HangingBackend : public CpuBackend {
 public:
  explicit HangingBackend(const BackendConfig& config)
      : CpuBackend(config), device_(config.device) {}

  template <class Args>
  requires RunsOp<CpuBackend, Args>
  void run(const Args& args) {
    if (device_ == hanging_device) {
      is_hanging = true;
      while (device_ == hanging_device) std::this_thread::sleep_for(milliseconds(1));
      is_hanging = false;
    }
    CpuBackend::run(args);
  }

  inline static std::atomic<int> hanging_device = -1;
  inline static std::atomic<bool> is_hanging = false;

 private:
  int device_;
};

struct HangingPolicy : FullFloat32Policy {
  using Backend = HangingBackend;
};

}  // namespace nanovllm::test

namespace {

struct DeferredPolicy : FullFloat32Policy {
  using Backend = DeferredBackend;
};

template <class Policy>
std::unique_ptr<RunnerOf<Policy>> make_runner(int num_ranks, std::optional<Seconds> step_timeout) {
  Qwen3Config config = Qwen3Config::load(model_directory("fairytale"));
  config.num_key_value_heads = config.num_attention_heads;  // 4: as many ranks can share them
  auto runner = std::make_unique<RunnerOf<Policy>>(
      config,
      RunnerConfig{.num_ranks = num_ranks,
                   .num_threads = num_ranks,
                   .limits = {.max_num_batched_tokens = 32, .max_num_seqs = 2, .max_model_len = 32},
                   .block_size = Policy::kv.block_size,
                   .step_timeout = step_timeout},
      [](auto& weights, auto& backend, int) { weights.randomize(3, backend); });
  static_cast<void>(runner->available_memory());
  runner->allocate_kv(4);
  return runner;
}

/// A prompt, computed in one step.
class PromptStep {
 public:
  PromptStep() {
    sequence_.tokens = random_prompt(1, 9, 250);
    sequence_.block_table = {0, 1};
    StepPlan plan;
    plan.num_tokens = 9;
    plan.sequences.push_back({.sequence = &sequence_, .end = 9, .rows = {{RowKind::draw, 8, 1}}});
    HostSamplingBatch sampling;
    append_sample(sampling, {.temperature = 0.f, .num_logprobs = 1});
    inputs_.build(plan, FullFloat32Policy::kv.block_size, sampling);
  }
  template <class AnyRunner>
  float logprob_from(AnyRunner& runner) const {
    return *runner.run(inputs_).logprobs.at(0);
  }
  [[nodiscard]] const StepInputs& inputs() const { return inputs_; }

 private:
  Sequence sequence_;
  StepInputs inputs_;
};

void let_go() {
  HangingBackend::hanging_device = -1;
  while (HangingBackend::is_hanging) std::this_thread::sleep_for(milliseconds(1));
}

}  // namespace

TEST_CASE("defect 16: a rank that hangs is named in time, and is reset when it comes back",
          "[watchdog]") {
  const int num_ranks = GENERATE(1, 2), device = GENERATE(0, 1);
  if (device >= num_ranks) return;
  const PromptStep prompt;
  const auto runner = make_runner<HangingPolicy>(num_ranks, Seconds(1.5));
  const float expected = prompt.logprob_from(*runner);
  CHECK(runner->health().state == Health::State::ok);
  CHECK(runner->health().seconds == 0);

  HangingBackend::hanging_device = device;
  std::atomic<bool> was_hung = false, ended = false;
  std::thread observer([&] {
    while (!ended) {
      const Health health = runner->health();
      if (health.state == Health::State::hung && health.seconds > 1.5) was_hung = true;
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  const std::string expected_error =
      "rank " + std::to_string(device) + " hangs: a step has not ended after ";
  CHECK_THROWS_WITH(prompt.logprob_from(*runner),
                    Contains(expected_error) && Contains("its limit (step_timeout) is 1.50 s"));
  CHECK(std::chrono::steady_clock::now() - begin < seconds(10));
  ended = true;
  observer.join();
  CHECK(was_hung);
  CHECK(runner->health().state == Health::State::failed);
  CHECK_THAT(runner->health().reason, Contains(expected_error));
  CHECK_THROWS_WITH(prompt.logprob_from(*runner), Contains(expected_error));
  CHECK_THROWS_WITH(runner->reset(),
                    Contains("reset: rank " + std::to_string(device) + " still hangs"));

  let_go();
  for (int i = 0; i < 5000; ++i) {
    try {
      runner->reset();
      break;
    } catch (const Error&) {  // it is on its way
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  CHECK(runner->health().state == Health::State::ok);
  CHECK(runner->health().is_unproven);
  CHECK(prompt.logprob_from(*runner) == expected);
  CHECK_FALSE(runner->health().is_unproven);
}

TEST_CASE("defect 16: a runner goes while one of its ranks hangs", "[watchdog]") {
  const int device = GENERATE(0, 1);
  const PromptStep prompt;
  {
    const auto runner = make_runner<HangingPolicy>(2, Seconds(0.1));
    HangingBackend::hanging_device = device;
    CHECK_THROWS_WITH(prompt.logprob_from(*runner), Contains("hangs"));
  }
  let_go();
  std::this_thread::sleep_for(milliseconds(50));  // it goes on, with what it was left
}

TEST_CASE("defect 16: a device that does not finish is named in time", "[watchdog]") {
  const PromptStep prompt;
  const auto runner = make_runner<DeferredPolicy>(1, Seconds(0.2));
  CHECK_THROWS_WITH(prompt.logprob_from(*runner), Contains("rank 0 hangs: a step has not ended"));
  CHECK(runner->health().state == Health::State::failed);
  CHECK_THROWS_WITH(runner->reset(), Contains("a device still computes"));
}

TEST_CASE("steps in time are the same bits with a limit", "[watchdog]") {
  const PromptStep prompt;
  const int num_ranks = GENERATE(1, 2);
  const auto without = make_runner<FullFloat32Policy>(num_ranks, std::nullopt);
  const auto with = make_runner<FullFloat32Policy>(num_ranks, Seconds(60));
  const float expected = prompt.logprob_from(*without);
  for (int i = 0; i < 20; ++i) REQUIRE(prompt.logprob_from(*with) == expected);
}

TEST_CASE("without a limit health says how long a step runs", "[watchdog]") {
  const PromptStep prompt;
  const auto runner = make_runner<FullFloat32Policy>(1, std::nullopt);
  runner->launch(prompt.inputs());
  std::this_thread::sleep_for(milliseconds(20));
  CHECK(runner->health().state == Health::State::ok);
  CHECK(runner->health().seconds >= 0.02);
  static_cast<void>(runner->wait());
  CHECK(runner->health().seconds == 0);
}

TEST_CASE("a limit that makes no sense is a ConfigError", "[watchdog]") {
  CHECK_THROWS_AS(make_runner<FullFloat32Policy>(1, Seconds(0)), ConfigError);
  CHECK_THROWS_AS(make_runner<FullFloat32Policy>(1, Seconds(-1)), ConfigError);
}

TEST_CASE("defect 8: a runner whose ranks get too few threads is an Error", "[watchdog]") {
  detail::threads_left = 1;
  try {
    static_cast<void>(make_runner<FullFloat32Policy>(4, std::nullopt));
    CHECK(false);
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Contains("3 threads were wanted, 1 could be started"));
  }
  detail::threads_left = -1;
}
