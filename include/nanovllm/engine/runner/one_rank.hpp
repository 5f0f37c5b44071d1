#pragma once
/// The policy slot `Ranks`, and its simplest type: one rank, on the caller's thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/runner/runner_config.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

/// The part of RankThreads that one rank needs: it runs on the caller's thread.
class CallerThread {
 public:
  static constexpr bool kHasLimit = false;  ///< a step that hangs cannot be given up

  CallerThread(int, bool) {}

  /// Calls `task(0)`, and `on_error(0)` when that throws.
  template <class Task, class OnError>
  void run(const Task& task, const OnError& on_error) {
    try {
      task(0);
    } catch (...) {
      on_error(0);
      throw;
    }
  }

  [[nodiscard]] std::vector<int> hanging() const { return {}; }
};

/// The ranks in other processes: there are none. ProcessPeers (with/mpi/process_ranks.hpp) has the
/// same members where there are.
class NoPeers {
 public:
  explicit NoPeers(const RunnerConfig&) {}

  /// This process's ends of the communicator.
  template <class Communicator>
  [[nodiscard]] static std::vector<Communicator> make_ends(const RunnerConfig& config) {
    if constexpr (TakesOptions<Communicator>) {
      return Communicator::make(config.num_ranks,
                                options_of<typename Communicator::Options>(config));
    } else {
      return Communicator::make(config.num_ranks);
    }
  }
  /// Ends the others after an error that this process cannot recover from.
  static void tell_failure(const RunnerConfig&, std::string_view) {}

  [[nodiscard]] static constexpr bool exist() { return false; }
  [[nodiscard]] int rank() const { return 0; }  ///< of this process's first rank
  [[nodiscard]] int local_rank() const { return 0; }
  [[nodiscard]] int ranks_on_host(const RunnerConfig& config) const { return config.num_ranks; }

  void compare(const std::vector<SharedSetting>&) {}
  void wait_for_all() {}
  [[nodiscard]] std::int64_t minimum(std::int64_t value) { return value; }
  void share(std::span<std::int32_t>) {}
  template <class Inputs>
  void send_step(const Inputs&) {}
  template <class Inputs>
  void send_logits(const Inputs&) {}
  template <class Inputs>
  void send_sample(const Inputs&) {}

  template <class Runner>
  void follow(Runner&) {}
};

/// A policy's `Ranks`: where the tensor-parallel ranks run.
///
/// - `Threads`: runs a function on every rank of this process, as CallerThread or RankThreads.
/// - `Peers`: the ranks in other processes, as NoPeers or ProcessPeers.
/// - `HostCommunicator`: the communicator of a policy that has no slot `Communicator`.
/// - `validate(config)`: throws ConfigError for what these ranks cannot do.
struct OneRank {
  using Threads = CallerThread;
  using Peers = NoPeers;
  using HostCommunicator = Single;

  static void validate(const RunnerConfig& config) {
    constexpr const char* kAdvice =
        ", but the policy's Ranks, OneRank, is one rank on the caller's thread; write 'using Ranks "
        "= nanovllm::ThreadRanks;' in the policy, or take one that has it, as FullPolicy of "
        "nanovllm/full_policy.hpp";
    check<ConfigError>(config.num_ranks == 1, "tensor_parallel = ", config.num_ranks, kAdvice);
    check<ConfigError>(!config.step_timeout.has_value(), "step_timeout is set", kAdvice);
    check_no_processes(config, "OneRank");
  }

  /// Throws ConfigError where ranks are asked for in several processes.
  static void check_no_processes(const RunnerConfig& config, const char* ranks) {
    check<ConfigError>(config.processes == nullptr, "processes is set, but the policy's Ranks, ",
                       ranks,
                       ", has all ranks in one process; include nanovllm/mpi.hpp and write "
                       "'using Ranks = nanovllm::ProcessRanks;' in the policy");
  }
};

}  // namespace nanovllm
