// Tensor-parallel ranks on CPUs.

#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::FullFloat32Policy;
using BackendBfloat16 = nanovllm::FullPolicy;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static constexpr int kFailures = 18;  // slower by as much
#else
static constexpr int kFailures = 100;
#endif
static constexpr double kFloat32Bound = 1e-5;
static constexpr bool kReproducible = true;
static bool ranks_present(int) { return true; }

#include "parallel/ranks_cases.hpp"

TEST_CASE("three processes = three threads, bit for bit", "[ranks]") {
  Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  model.num_attention_heads = 6;
  model.num_key_value_heads = 3;
  model.num_hidden_layers = 2;
  const auto config = [](const Group& group) {
    EngineConfig out = ranks_config("fairytale", 3, group);
    out.num_threads = 3;
    return out;
  };
  std::vector<Trace> threads, processes;
  {
    Engine32 engine(model, RandomWeights{}, config(nullptr));
    threads = serve(engine);
  }
  const auto errors = run_group(3, [&](const Group& group) {
    Engine32 engine(model, RandomWeights{}, config(group));
    if (group->rank() != 0) return engine.run_worker();
    processes = serve(engine);
  });
  CHECK(errors == std::vector<std::string>(3));
  REQUIRE(threads.size() == processes.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    CHECK(threads[i].tokens == processes[i].tokens);
    CHECK(threads[i].logprobs == processes[i].logprobs);
  }
}

struct FailingThreadGroupPolicy : FailingPolicy {
  using Communicator = ThreadGroup;
};

TEST_CASE("defect 18: ranks of a plain thread group, any of which fails anywhere", "[ranks]") {
  check_failures_and_resets<FailingThreadGroupPolicy>(2, 60);
}
