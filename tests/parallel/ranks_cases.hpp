#pragma once
/// Engines with tensor-parallel ranks in threads and in processes, on any backend. Who includes
/// this defines `BackendFloat32` and `BackendBfloat16`, the policies, `ranks_present(n)`, the bound
/// `kFloat32Bound` of log-probabilities, whether engines are `kReproducible`, and how many
/// `kFailures` a test makes, before.

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <thread>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/odd_and_even.hpp"
#include "parallel/process_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace nanovllm::test {

template <class Args>
inline constexpr bool kIsEmbedding = false;
template <class... Ts>
inline constexpr bool kIsEmbedding<EmbeddingArgs<Ts...>> = true;

/// A backend that fails on one device: in the step after `steps_left` more, or at the op or graph
/// after `points_left` more. A step is one embedding, or one replay of a graph that holds it.
template <class Base>
class FailingBackend : public Base {
 public:
  explicit FailingBackend(const BackendConfig& config) : Base(config), device_(config.device) {}

  template <class Args>
  requires RunsOp<Base, Args>
  void run(const Args& args) {
    if (kIsEmbedding<Args>) step();
    point();
    Base::run(args);
  }
  template <class Graph, class... Inputs>
  requires requires(Base& base, const Graph& graph, const Inputs&... inputs) {
    base.replay(graph, inputs...);
  }
  void replay(const Graph& graph, const Inputs&... inputs) {
    step();
    point();
    Base::replay(graph, inputs...);
  }

  inline static std::atomic<int> failing_device = -1;
  inline static std::atomic<int> steps_left = -1;
  inline static std::atomic<int> points_left = -1;
  /// What to do instead of throwing.
  inline static void (*failure)(FailingBackend&) = nullptr;

 private:
  void step() {
    if (device_ == failing_device && steps_left-- == 0) fail();
  }
  void point() {
    if (device_ == failing_device && points_left-- == 0) fail();
  }
  void fail() {
    if (failure != nullptr) return failure(*this);
    throw Error("the machine is on fire");
  }

  int device_;
};

struct FailingPolicy : BackendFloat32 {
  using Backend = FailingBackend<BackendFloat32::Backend>;
};

}  // namespace nanovllm::test

namespace {

using Group = std::shared_ptr<ProcessGroup>;

EngineConfig ranks_config(const std::string& model, int num_ranks, Group group = {}) {
  return {.model = model_directory(model),
          .tensor_parallel = num_ranks,
          .num_threads = 2,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 64,
          .max_model_len = 128,
          .kv_size = KvSize::blocks(64),
          .processes = std::move(group),
          .seed = 7};
}

/// Greedy and sampled requests, of which some wait for others and prompts are computed in chunks.
template <class Engine>
std::vector<Trace> serve(Engine& engine) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 12; ++i) {
    prompts.push_back(random_prompt(i, 3 + 7 * i, 250));
    params.push_back({.temperature = i % 3 == 2 ? 0.8f : 0.f,
                      .max_tokens = 24,
                      .ignore_eos = true,
                      .logprobs = static_cast<std::int32_t>(i % 2)});
    SamplingParams& edited = params.back();
    if (i % 4 == 1) edited.repetition_penalty = 1.3f;
    if (i % 4 == 3) {
      edited.logit_bias = {{static_cast<TokenId>(i), 4.f}};
      edited.presence_penalty = 1;
    }
    if (i % 6 == 2) {
      edited.token_masks = std::make_shared<OddAndEven>(250);
      edited.stop_token_ids = {249};
    }
  }
  std::vector<Trace> out;
  for (const Output& output : engine.generate(prompts, params)) {
    CHECK(output.error.empty());
    out.push_back(trace_of(output));
  }
  return out;
}

void check_near(const std::vector<Trace>& got, const std::vector<Trace>& expected) {
  REQUIRE(got.size() == expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].tokens == expected[i].tokens);
    REQUIRE(got[i].logprobs.size() == expected[i].logprobs.size());
    for (std::size_t j = 0; j < got[i].logprobs.size(); ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(got[i].logprobs[j]) -
                                           static_cast<double>(expected[i].logprobs[j])));
    }
  }
  CHECK(largest < kFloat32Bound);
}

/// Rounding differs, so tokens part at near ties; until then the log-probabilities are near.
void check_alike(const std::vector<Trace>& got, const std::vector<Trace>& expected, double bound) {
  double sum = 0;
  std::size_t count = 0, num_parted = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    std::size_t j = 0;
    for (; j < got[i].tokens.size() && got[i].tokens[j] == expected[i].tokens[j]; ++j, ++count)
      sum += std::abs(got[i].logprobs[j] - expected[i].logprobs[j]);
    num_parted += j < got[i].tokens.size() ? 1 : 0;
  }
  INFO("mean difference " << sum / static_cast<double>(count) << " over " << count << " tokens, "
                          << num_parted << " of " << got.size() << " requests part");
  CHECK(count > got.size() * 6);
  CHECK(sum / static_cast<double>(count) < bound);
}

using Engine32 = Engine<AnyModel, BackendFloat32>;
using Engine16 = Engine<AnyModel, BackendBfloat16>;
using FailingEngine = Engine<AnyModel, FailingPolicy>;

/// Serves on rank 0 of a group of processes: this one and `num_ranks` - 1 that only follow.
template <class AnyEngine>
std::vector<Trace> serve_in_processes(const std::string& model, int num_ranks, const char* dtype) {
  const std::uint16_t port = free_port();
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 1; rank < num_ranks; ++rank) {
    auto variables = launch_variables(rank, num_ranks, port);
    variables["RANKS_TEST_MODEL"] = model;
    variables["RANKS_TEST_DTYPE"] = dtype;
    children.push_back(std::make_unique<Child>("a follower of its own", variables));
  }
  std::vector<Trace> out;
  {
    const auto group = std::make_shared<ProcessGroup>(place_of(0, num_ranks, port));
    for (int round = 0; round < 2; ++round) {  // a group serves one engine after the other
      AnyEngine engine(ranks_config(model, num_ranks, group));
      out = serve(engine);
    }
  }
  for (const auto& child : children) CHECK(child->wait(std::chrono::seconds(30)) == 0);
  return out;
}

SamplingParams greedy(std::int32_t max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
}

/// A request that fails, and one after it, both soon.
void check_fails(FailingEngine& engine, const std::string& why) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {
    const std::vector<Output> outputs =
        engine.generate(std::vector<std::vector<TokenId>>{{1, 2, 3}, {4, 5}}, greedy(20));
    for (const Output& output : outputs) {
      CHECK(output.finish_reason == FinishReason::error);
      CHECK_THAT(output.error, Contains(why));
    }
  }
  engine.check_invariants();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace

/// Not a test by itself: the process of a rank that follows.
TEST_CASE("a follower of its own", "[.]") {
  if (std::getenv("RANKS_TEST_MODEL") == nullptr) return;
  const std::string model = std::getenv("RANKS_TEST_MODEL");
  const std::string dtype = std::getenv("RANKS_TEST_DTYPE");
  const Group group = ProcessGroup::from_environment();
  const auto follow = [&]<class AnyEngine>(std::type_identity<AnyEngine>) {
    AnyEngine engine(ranks_config(model, group->size(), group));
    engine.run_worker();
  };
  if (dtype == "failing") {
    using Backend = FailingPolicy::Backend;
    FailingEngine engine(ranks_config(model, group->size(), group));
    Backend::failing_device = group->rank();
    Backend::steps_left = 5;
    Backend::failure = [](Backend&) { ::raise(SIGKILL); };
    engine.run_worker();
  }
  for (int round = 0; round < 2; ++round) {
    if (dtype == "float32") follow(std::type_identity<Engine32>());
    if (dtype == "bfloat16") follow(std::type_identity<Engine16>());
  }
}

TEST_CASE("TP 2 = TP 1 in float32, with ranks in threads and in processes", "[ranks]") {
  if (!ranks_present(2)) return;
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded");
  INFO(model);
  std::vector<Trace> alone, threads;
  {
    Engine32 engine(ranks_config(model, 1));
    alone = serve(engine);
  }
  {
    Engine32 engine(ranks_config(model, 2));
    threads = serve(engine);
  }
  check_near(threads, alone);
  const std::vector<Trace> processes = serve_in_processes<Engine32>(model, 2, "float32");
  check_near(processes, alone);
  for (std::size_t i = 0; kReproducible && i < threads.size(); ++i)
    CHECK(processes[i].logprobs == threads[i].logprobs);
}

TEST_CASE("TP 2 is like TP 1 in bfloat16, with ranks in threads and in processes", "[ranks]") {
  if (!ranks_present(2)) return;
  const std::string model = GENERATE(as<std::string>{}, "fairytale", "group4_untied_sharded");
  INFO(model);
  std::vector<Trace> alone, threads;
  {
    Engine16 engine(ranks_config(model, 1));
    alone = serve(engine);
  }
  {
    Engine16 engine(ranks_config(model, 2));
    threads = serve(engine);
  }
  // The fairytale model's logits are large; docs/numerics.md says more.
  const double bound = model == "fairytale" ? 5e-2 : 2e-2;
  check_alike(threads, alone, bound);
  check_alike(serve_in_processes<Engine16>(model, 2, "bfloat16"), alone, bound);
}

TEST_CASE("logits for evaluation come from all processes", "[ranks]") {
  if (!ranks_present(2)) return;
  const std::vector<TokenId> prompt = random_prompt(3, 20, 250);
  const auto config = Qwen3Config::load(model_directory("fairytale"));
  const auto logits_of = [&](int num_ranks, const Group& group) {
    const Checkpoint checkpoint(model_directory("fairytale"));
    RunnerOf<BackendFloat32> runner(
        config,
        {.num_ranks = num_ranks,
         .num_threads = 2,
         .limits = {.max_num_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 64},
         .block_size = BackendFloat32::kv.block_size,
         .processes = group},
        [&](auto& weights, auto& backend, int) { weights.load(checkpoint, backend); });
    runner.allocate_kv(8);
    std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
    if (group && group->rank() != 0) {
      runner.run_worker();
      return logits;
    }
    Sequence sequence;
    sequence.tokens = prompt;
    for (BlockId b = 0; b * BackendFloat32::kv.block_size < 20; ++b)
      sequence.block_table.push_back(b + 1);
    StepPlan plan;
    plan.sequences.push_back({.sequence = &sequence, .end = 20, .num_logits = 1});
    plan.num_tokens = 20;
    HostSamplingBatch sampling;
    append_sample(sampling, {});
    StepInputs inputs;
    inputs.build(plan, BackendFloat32::kv.block_size, sampling);
    runner.run_logits(inputs, {logits.data(), {1, config.vocab_size}});
    return logits;
  };
  std::vector<float> threads = logits_of(2, nullptr), processes;
  const auto errors = run_group(2, [&](const Group& group) {
    auto logits = logits_of(2, group);
    if (group->rank() == 0) processes = std::move(logits);
  });
  CHECK(errors == std::vector<std::string>(2));
  REQUIRE(threads.size() == processes.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const double difference = threads[i] - processes[i];
    REQUIRE(std::abs(difference) <= (kReproducible ? 0 : 1e-3));
  }
}

TEST_CASE("a rank that fails ends the requests, on threads", "[ranks]") {
  if (!ranks_present(2)) return;
  using Backend = FailingPolicy::Backend;
  const int device = GENERATE(0, 1), step = GENERATE(0, 1, 6);
  INFO("device " << device << ", step " << step);
  Backend::steps_left = -1;
  Backend::failing_device = device;
  FailingEngine engine(ranks_config("fairytale", 2));
  Backend::steps_left = step;
  check_fails(engine, "the machine is on fire");
}

namespace {

/// Two sequences, of which each has two steps: a prompt, and a decode of a token that is known. Two
/// steps are under way at a time. Returns what was drawn; throws the first error that a `wait`
/// throws, after all of them.
template <class AnyRunner>
std::vector<float> run_script(AnyRunner& runner, std::int64_t block_size) {
  std::vector<float> out;
  std::exception_ptr error;
  std::array<Sequence, 2> sequences;
  for (std::size_t i = 0; i < 2; ++i) {
    sequences[i].tokens = random_prompt(i, 5 + 7 * i, 250);
    for (std::int64_t b = 0; b * block_size < sequences[i].num_tokens(); ++b)
      sequences[i].block_table.push_back(static_cast<BlockId>(2 * i) + static_cast<BlockId>(b));
  }
  for (std::int32_t length = 1; length >= 0; --length) {
    for (Sequence& sequence : sequences) {
      const auto end = static_cast<std::int32_t>(sequence.tokens.size()) - length;
      StepPlan plan;
      const auto add = [&](auto planned) {
        planned.sequence = &sequence;
        planned.begin = length == 1 ? 0 : end - 1;
        planned.end = end;
        planned.num_logits = 1;
        plan.num_tokens = planned.num_tokens();
        plan.num_decodes = length == 1 ? 0 : 1;
        plan.sequences.push_back(planned);
      };
      add(PlannedSequence{});
      HostSamplingBatch sampling;
      append_sample(sampling, {.temperature = 0.f, .num_logprobs = 1});
      StepInputs inputs;
      inputs.build(plan, block_size, sampling);
      runner.launch(inputs);
    }
    for (int i = 0; i < 2; ++i) {
      try {
        const StepResults results = runner.wait();
        out.push_back(static_cast<float>(*results.tokens.at(0)));
        out.push_back(*results.logprobs.at(0));
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
  return out;
}

/// Threads that use all of the machine, for as long as this lives.
class Load {
 public:
  Load() {
    for (unsigned i = 0; i < std::max(2u, std::thread::hardware_concurrency()); ++i) {
      threads_.emplace_back([this] {
        while (!ended_) {
        }
      });
    }
  }
  ~Load() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::vector<std::thread> threads_;
};

/// Fails `num_runs` times on one rank after the other, anywhere in the script, and is reset.
template <class Policy>
void check_failures_and_resets(int num_ranks, int num_runs) {
  using Backend = typename Policy::Backend;
  Backend::failing_device = -1;
  Backend::steps_left = Backend::points_left = -1;
  Backend::failure = nullptr;
  const Checkpoint checkpoint(model_directory("fairytale"));
  RunnerOf<Policy> runner(
      Qwen3Config::load(model_directory("fairytale")),
      {.num_ranks = num_ranks,
       .num_threads = num_ranks,
       .limits = {.max_num_batched_tokens = 64, .max_num_seqs = 2, .max_model_len = 64},
       .block_size = Policy::kv.block_size},
      [&](auto& weights, auto& backend, int) { weights.load(checkpoint, backend); });
  static_cast<void>(runner.available_memory());
  runner.allocate_kv(8);
  const auto script = [&] { return run_script(runner, Policy::kv.block_size); };
  const std::vector<float> expected = script();
  constexpr int kMany = 1'000'000'000;
  Backend::failing_device = 0;
  Backend::points_left = kMany;
  REQUIRE(script() == expected);
  const int num_points = kMany - Backend::points_left;
  REQUIRE(num_points >= 4);
  for (int i = 0; i < num_runs; ++i) {
    const auto words = philox4x32(7, {static_cast<std::uint32_t>(i), 0, 0, 0});
    Backend::failing_device = i % num_ranks;
    Backend::points_left = static_cast<int>(words[0] % static_cast<std::uint32_t>(num_points));
    INFO("run " << i << ", rank " << i % num_ranks << ", point " << Backend::points_left);
    switch (i / num_ranks % 3) {
      case 0: Backend::failure = nullptr; break;
      case 1: Backend::failure = [](Backend&) { throw std::bad_alloc(); }; break;
      default: Backend::failure = [](Backend&) { throw 42; }; break;
    }
    for (int again = 0; again < 2; ++again) {
      switch (i / num_ranks % 3) {
        case 0: REQUIRE_THROWS_WITH(script(), "the machine is on fire"); break;
        case 1: REQUIRE_THROWS_AS(script(), std::bad_alloc); break;
        default: REQUIRE_THROWS_AS(script(), int); break;
      }
      REQUIRE(runner.health().state == Health::State::failed);
    }
    Backend::failing_device = -1;
    runner.reset();
    REQUIRE(runner.health().state == Health::State::ok);
    REQUIRE(script() == expected);
  }
  Backend::failure = nullptr;  // later cases fail in their own way
}

}  // namespace

TEST_CASE("defect 18: whatever a rank throws anywhere, the process lives, and defect 16: is reset",
          "[ranks]") {
  if (!ranks_present(2)) return;
  check_failures_and_resets<FailingPolicy>(2, kFailures);
}

TEST_CASE("defect 18: the same with all of the machine in use", "[ranks]") {
  if (!ranks_present(2)) return;
  const Load load;
  check_failures_and_resets<FailingPolicy>(2, kFailures);
}

TEST_CASE("reset is refused to processes", "[ranks]") {
  if (!ranks_present(2)) return;
  const auto errors = run_group(2, [](const Group& group) {
    RunnerOf<BackendFloat32> runner(
        Qwen3Config::load(model_directory("fairytale")),
        {.num_ranks = 2,
         .num_threads = 2,
         .limits = {.max_num_batched_tokens = 16, .max_num_seqs = 2, .max_model_len = 16},
         .block_size = BackendFloat32::kv.block_size,
         .processes = group},
        [](auto& weights, auto& backend, int) { weights.randomize(1, backend); });
    runner.allocate_kv(2);
    if (group->rank() == 0) return runner.reset();
    runner.run_worker();
  });
  CHECK_THAT(errors[0], Contains("reset: the ranks are in several processes"));
  CHECK(errors[1].empty());
}

TEST_CASE("a rank that fails ends the requests, in processes", "[ranks]") {
  if (!ranks_present(2)) return;
  using Backend = FailingPolicy::Backend;
  const int device = GENERATE(0, 1), step = GENERATE(0, 6);
  INFO("device " << device << ", step " << step);
  Backend::steps_left = -1;
  Backend::failing_device = device;
  const auto errors = run_group(2, [&](const Group& group) {
    FailingEngine engine(ranks_config("fairytale", 2, group));
    if (group->rank() != 0) return engine.run_worker();
    Backend::steps_left = step;
    check_fails(engine, "the machine is on fire");
  });
  CHECK(errors[0].empty());
  CHECK_THAT(errors[1], Contains("the machine is on fire"));
}

TEST_CASE("a process that dies ends the requests", "[ranks]") {
  if (!ranks_present(2)) return;
  FailingPolicy::Backend::failing_device = -1;
  const std::uint16_t port = free_port();
  auto variables = launch_variables(1, 2, port);
  variables["RANKS_TEST_MODEL"] = "fairytale";
  variables["RANKS_TEST_DTYPE"] = "failing";
  Child child("a follower of its own", variables);
  const auto group = std::make_shared<ProcessGroup>(place_of(0, 2, port));
  FailingEngine engine(ranks_config("fairytale", 2, group));
  check_fails(engine, "rank 1 was lost");
  CHECK(child.wait(std::chrono::seconds(10)) == -1);
}

TEST_CASE("processes that do not fit together say so", "[ranks]") {
  if (!ranks_present(2)) return;
  SECTION("number of ranks") {
    const auto errors = run_group(
        2, [](const Group& group) { Engine32 engine(ranks_config("fairytale", 1, group)); });
    for (const std::string& error : errors)
      CHECK_THAT(error, Contains("tensor_parallel = 1, but there are 2 processes"));
  }
  SECTION("settings") {
    const auto errors = run_group(2, [](const Group& group) {
      EngineConfig config = ranks_config("fairytale", 2, group);
      if (group->rank() == 1) config.max_num_seqs = 9;
      Engine32 engine(std::move(config));
      if (group->rank() == 1) engine.run_worker();
    });
    for (const std::string& error : errors)
      CHECK_THAT(error, Contains("max_num_seqs is 9 on rank 1 and 8 on rank 0"));
  }
  SECTION("a rank that cannot load") {
    const auto errors = run_group(2, [](const Group& group) {
      EngineConfig config = ranks_config("fairytale", 2, group);
      if (group->rank() == 1) config.model = model_directory("group4_untied_sharded");
      Engine32 engine(std::move(config));
      if (group->rank() == 1) engine.run_worker();
    });
    for (const std::string& error : errors) CHECK_THAT(error, Contains("hidden_size"));
  }
  SECTION("followers take no requests, and rank 0 follows nobody") {
    const auto errors = run_group(2, [](const Group& group) {
      Engine32 engine(ranks_config("fairytale", 2, group));
      if (group->rank() == 0) {
        check(!engine.generate(std::vector<TokenId>{1}, greedy(2)).token_ids.empty(), "generate");
        return engine.run_worker();
      }
      CHECK_THROWS_AS(engine.submit(std::vector<TokenId>{1}), RequestError);
      engine.run_worker();
    });
    CHECK_THAT(errors[0], Contains("this is rank 0"));
    CHECK(errors[1].empty());
  }
}
