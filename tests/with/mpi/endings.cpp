// endings WAY RANK: processes whose rank RANK ends in some way while rank 0 serves, or begins to.
// check_endings.sh starts this with mpirun and looks at what is said.

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/mpi.hpp"
#include "parallel/ranks_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct FailingPolicy : FullFloat32Policy {
  using Ranks = ProcessRanks;
  using Backend = FailingBackend<CpuBackend>;
};
using FailingEngine = Engine<AnyModel, FailingPolicy>;

void serve_and_end(const std::string& way, int rank) {
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::world();
  const bool is_ending = group->rank() == rank;
  if (way == "exception" && is_ending) throw std::runtime_error("no such file");
  EngineConfig config = ranks_config("fairytale", 2, group);
  if (way == "hang") config.step_timeout = std::chrono::seconds(1);
  std::optional<FailingEngine> engine(std::in_place, std::move(config));
  using Backend = FailingPolicy::Backend;
  if (way != "well") Backend::failing_device = rank;
  Backend::steps_left = 5;
  if (way == "kill") Backend::failure = [](Backend&) { ::raise(SIGKILL); };
  if (way == "hang")
    Backend::failure = [](Backend&) { std::this_thread::sleep_for(std::chrono::hours(1)); };
  if (way == "early" && is_ending) engine.reset();
  if (group->rank() != 0) return engine->run_worker();
  const Output output = engine->generate(std::vector<TokenId>{1, 2, 3}, greedy(20));
  std::printf("%zu tokens\n", output.token_ids.size());
}

}  // namespace

int main(int, char** argv) {
  const std::string way = argv[1];
  try {
    if (way == "single") MPI_Init(nullptr, nullptr);  // for one thread
    if (way == "twice") static_cast<void>(ProcessGroup::world());
    serve_and_end(way, std::atoi(argv[2]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "main: %s\n", error.what());
    return 1;
  }
}
