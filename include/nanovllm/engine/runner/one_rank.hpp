#pragma once
/// The settings of a runner, the policy slot `Ranks` that reads them, and its simplest type: one
/// rank, on the caller's thread.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

class ProcessGroup;

struct RunnerConfig {
  int num_ranks = 1;
  std::optional<int> num_threads{};  ///< of all ranks on this host; unset: all of the machine's
  Extras extras{};                   ///< see EngineConfig
  int first_device = 0;  ///< of this host's first rank; the others take the following ones
  StepLimits limits{};
  int block_size = KvConfig{}.block_size;             ///< tokens of a KV block
  std::optional<std::int64_t> share_reads_from{};     ///< see EngineConfig
  std::function<void(const char* stage)> on_stage{};  ///< rank 0 begins a stage of the start-up
  std::shared_ptr<ProcessGroup> processes{};  ///< one rank each; unset: all are threads of this one
  /// If a step runs longer, the caller of `wait` gets an Error. Unset: there is no limit. Setting
  /// it gives rank 0 a separate thread, which costs a hand-over and a copy of the inputs a step.
  std::optional<std::chrono::duration<double>> step_timeout{};

  [[nodiscard]] int threads_of_a_rank(int ranks_on_host) const {
    const int all = num_threads.value_or(static_cast<int>(std::thread::hardware_concurrency()));
    return std::max(1, all / ranks_on_host);
  }
};

/// The settings of a communicator that takes some, its `Options`. Those that limit a time have a
/// member `allow_step(seconds)`, since no step may be cut short.
template <class Options>
[[nodiscard]] Options options_of(const RunnerConfig& config) {
  auto out = config.extras.of<Options>();
  if constexpr (requires { out.allow_step(1.); }) {
    if (config.step_timeout) out.allow_step(config.step_timeout->count());
  }
  return out;
}

/// A number that must be the same on all ranks.
struct SharedSetting {
  const char* name;
  std::int64_t value;
};

/// Throws ConfigError naming the first field that makes no sense.
inline void validate(const RunnerConfig& config) {
  check<ConfigError>(config.num_ranks >= 1, "tensor_parallel must be >= 1, got ", config.num_ranks);
  check<ConfigError>(config.first_device <= std::numeric_limits<int>::max() - config.num_ranks,
                     "device: there is no device ", config.first_device);
  const std::int64_t max_tokens = config.limits.max_num_batched_tokens;
  check<ConfigError>(max_tokens >= 1, "max_num_batched_tokens must be >= 1, got ", max_tokens);
  check<ConfigError>(config.block_size >= 1, "block_size must be >= 1, got ", config.block_size);
  const int num_threads = config.num_threads.value_or(1);
  check<ConfigError>(num_threads >= 1 && num_threads <= kMaxThreads,
                     "num_threads must be unset or in [1, ", kMaxThreads, "], got ", num_threads);
}

/// The part of RankThreads that one rank needs: it runs on the caller's thread.
class CallerThread {
 public:
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

  template <class Task, class OnError>
  void start(const Task& task, const OnError& on_error) {
    run(task, on_error);
  }
  void join() {}
  /// There is no other thread that could give up a step that hangs.
  template <class Release>
  [[nodiscard]] std::vector<int> join_for(std::chrono::steady_clock::duration,
                                          std::chrono::steady_clock::duration, const Release&,
                                          bool&) {
    return {};
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
