#pragma once
/// Tensor-parallel ranks in processes that mpirun or srun starts, where the program is built with
/// NANOVLLM_MPI; otherwise being started so is an error.

#if defined(NANOVLLM_MPI)
#include <nanovllm/mpi.hpp>
#endif

#include <nanovllm/core/error.hpp>
#include <nanovllm/engine/engine_config.hpp>

#include <cstdlib>
#include <memory>
#include <string>

namespace nanovllm::examples {

#if defined(NANOVLLM_MPI)
/// `Policy`, with ranks in threads or in processes.
template <class Policy>
struct WithProcesses : Policy {
  using Ranks = ProcessRanks;
};
#else
template <class Policy>
using WithProcesses = Policy;
#endif

/// This process among those of its job.
class Processes {
 public:
  /// Takes its place. Throws ConfigError when the launcher has started several processes and each of
  /// them would take itself for the only one.
  void join() {
    const char* why =
        "this program was built without MPI; build it with -DNANOVLLM_MPI=ON, or "
        "start it once: with --tp alone each rank is a thread";
#if defined(NANOVLLM_MPI)
    group_ = ProcessGroup::world();
    if (group_ != nullptr) return;
    why =
        "the MPI that this program was built with knows of one; start it by the launcher of that "
        "MPI, or by srun with --mpi=pmix";
#endif
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
      const char* number = std::getenv(name);
      check<ConfigError>(number == nullptr || std::atoi(number) <= 1, number,
                         " processes were started (", name, "), but ", why);
    }
  }

  /// For EngineConfig; null when this process is alone.
  [[nodiscard]] const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  /// Whether this process computes the steps of rank 0, in another one.
  [[nodiscard]] bool follows() const {
#if defined(NANOVLLM_MPI)
    if (group_ != nullptr) return group_->rank() != 0;
#endif
    return false;
  }

  /// Ends the other processes, and this one, if there are others.
  void fail([[maybe_unused]] const std::string& reason) const {
#if defined(NANOVLLM_MPI)
    if (group_ != nullptr) group_->fail(reason);
#endif
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace nanovllm::examples
