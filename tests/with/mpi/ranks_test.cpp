// Tensor-parallel ranks on CPUs, in processes. mpi_tests.cmake starts the program with mpirun.

#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::FullFloat32Policy;
using BackendBfloat16 = nanovllm::FullPolicy;
static constexpr double kFloat32Bound = 1e-5;
static constexpr bool kReproducible = true;
static bool ranks_present(int) { return true; }

#include "with/mpi/ranks_cases.hpp"

TEST_CASE("three processes = three threads, bit for bit", "[ranks]") {
  if (!processes_present(3)) return;
  Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  model.num_attention_heads = 6;
  model.num_key_value_heads = 3;
  model.num_hidden_layers = 2;
  const auto config = [](const Group& group) {
    EngineConfig out = ranks_config("fairytale", 3, group);
    out.num_threads = 3;
    return out;
  };
  std::vector<Trace> processes;
  run_rank([&] {
    Engine32 engine(model, RandomWeights{}, config(world()));
    if (world()->rank() != 0) return engine.run_worker();
    processes = serve(engine);
  });
  if (world()->rank() != 0) return;
  Engine32 engine(model, RandomWeights{}, config(nullptr));
  check_same_bits(processes, serve(engine));
}

TEST_CASE("the communicator of ranks in processes", "[ranks]") {
  CHECK(std::is_same_v<CommunicatorOf<ProcessFloat32>, HostGroup>);
}
