#pragma once
/// Tensor-parallel ranks in several processes, one each, on one host or several.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/parallel/backoff.hpp"
#include "nanovllm/parallel/rank_threads.hpp"
#include "nanovllm/with/mpi/host_group.hpp"
#include "nanovllm/with/mpi/process_group.hpp"

namespace nanovllm {

/// A share in a process group, or in none: then all ranks are threads of this process. When rank
/// 0's goes, the others are told that it was the end; another that goes before ends the job.
class ProcessPeers {
 public:
  explicit ProcessPeers(const RunnerConfig& config) : processes_(config.processes) {}

  ~ProcessPeers() {
    if (!exist() || ended_) return;
    if (rank() != 0) processes_->fail("its engine has gone before that of rank 0");
    processes_->broadcast(ProcessGroup::Tag::end, {});
  }

  ProcessPeers(const ProcessPeers&) = delete;
  ProcessPeers& operator=(const ProcessPeers&) = delete;

  /// This process's ends of the communicator. Throws ConfigError where it cannot join processes.
  template <class Communicator>
  [[nodiscard]] static std::vector<Communicator> make_ends(const RunnerConfig& config) {
    if (!config.processes) return NoPeers::make_ends<Communicator>(config);
    check<ConfigError>(config.processes->size() == config.num_ranks,
                       "tensor_parallel = ", config.num_ranks, ", but there are ",
                       config.processes->size(), " processes of one rank each");
    std::vector<Communicator> out;
    if constexpr (TakesOptions<Communicator>) {
      const auto options = options_of<typename Communicator::Options>(config);
      out.push_back(Communicator::join(config.processes, options));
    } else if constexpr (requires { Communicator::join(config.processes); }) {
      out.push_back(Communicator::join(config.processes));
    }
    check<ConfigError>(!out.empty(), "the policy's Communicator, ", type_name<Communicator>(),
                       ", cannot join ranks in several processes: it has no join(processes)");
    return out;
  }

  /// Ends the job after an error that this process cannot recover from.
  static void tell_failure(const RunnerConfig& config, std::string_view message) {
    if (config.processes) config.processes->fail(message);
  }

  /// Whether there are ranks in other processes.
  [[nodiscard]] bool exist() const { return processes_ != nullptr; }
  [[nodiscard]] int rank() const { return exist() ? processes_->rank() : 0; }
  [[nodiscard]] int local_rank() const { return exist() ? processes_->local_rank() : 0; }
  [[nodiscard]] int ranks_on_host(const RunnerConfig& config) const {
    return exist() ? processes_->local_size() : config.num_ranks;
  }

  /// All ranks call this. Throws the same ConfigError on all of them unless their settings agree.
  void compare(const std::vector<SharedSetting>& settings);
  /// Returns on no rank before every rank has called it.
  void wait_for_all() { static_cast<void>(minimum(0)); }
  /// The least of all ranks' values.
  [[nodiscard]] std::int64_t minimum(std::int64_t value) {
    return exist() ? processes_->minimum(value) : value;
  }
  /// Everybody's numbers become rank 0's.
  void share(std::span<std::int32_t> numbers) {
    if (exist()) processes_->share(std::as_writable_bytes(numbers));
  }

  /// Rank 0 sends what the others compute: `follow` receives it.
  void send_step(const StepInputs& inputs) { send(ProcessGroup::Tag::step, inputs); }
  void send_logits(const StepInputs& inputs) { send(ProcessGroup::Tag::logits, inputs); }
  void send_sample(const SampleInputs& inputs) { send(ProcessGroup::Tag::sample, inputs); }

  /// The part of a rank other than 0 in the steps of rank 0, on the ranks of `runner`. Returns when
  /// rank 0's runner goes. Throws what fails here.
  template <class Runner>
  void follow(Runner& runner) {
    auto& slots = runner.slots_;
    StepInputs inputs;
    SampleInputs draws;
    bool is_deferred = false;  // the step that was launched last is to be sampled
    for (std::vector<std::byte> message;;) {
      // While steps are under way, this rank's device may fail, too.
      while (slots.num_under_way() > 0 &&
             !processes_->wait_for_message(std::chrono::milliseconds(1))) {
        if (!is_deferred || slots.num_under_way() > 1) retire(runner);
      }
      switch (processes_->receive(message)) {
        case ProcessGroup::Tag::end: ended_ = true; return;
        case ProcessGroup::Tag::step:
          inputs.unpack(message);
          for (const Backoff backoff(Backoff::kForSteps); slots.num_under_way() == 2;
               backoff.pause())
            retire(runner);
          is_deferred = inputs.is_deferred();
          runner.ranks_.launch(runner.begin_step(), inputs);
          break;
        case ProcessGroup::Tag::sample:
          check(std::exchange(is_deferred, false), "run_worker: rank 0 draws for no deferred step");
          draws.unpack(message);
          runner.ranks_.sample(slots.newest(), draws);
          break;
        case ProcessGroup::Tag::logits:
          inputs.unpack(message);
          runner.ranks_.run_logits(inputs, nullptr);
          break;
        default: throw Error("run_worker: rank 0 sent what is no step");
      }
    }
  }

 private:
  template <class Inputs>
  void send(ProcessGroup::Tag tag, const Inputs& inputs) {
    if (exist()) processes_->broadcast(tag, inputs.counts_as_bytes(), inputs.bytes());
  }

  /// Looks whether the oldest step is done here. Throws when that has failed.
  template <class Runner>
  void retire(Runner& runner) {
    const int oldest = runner.slots_.oldest();
    if (runner.ranks_.is_done(oldest)) {
      runner.ranks_.throw_if_late();
      return runner.end_step();
    }
    if (runner.ranks_.watchdog().is_late()) runner.ranks_.wait(oldest);
  }

  std::shared_ptr<ProcessGroup> processes_;
  bool ended_ = false;  // all ranks know that it was the end
};

/// Ranks on threads of this process, or with `EngineConfig::processes` one in each of several
/// processes. See OneRank for what a policy's `Ranks` has.
struct ProcessRanks {
  using Threads = RankThreads;
  using Peers = ProcessPeers;
  using HostCommunicator = HostGroup;

  static void validate(const RunnerConfig&) {}
};

inline void ProcessPeers::compare(const std::vector<SharedSetting>& settings) {
  if (!exist()) return;
  std::vector<std::int64_t> mine;
  for (const SharedSetting& setting : settings) mine.push_back(setting.value);
  const auto all = processes_->gather(std::as_bytes(std::span(mine)));
  ended_ = true;  // if this throws, on all ranks
  for (std::size_t r = 1; r < all.size(); ++r) {
    check<ConfigError>(all[r].size() == all[0].size(), "the processes do not agree: rank ", r,
                       " has another kind of model than rank 0");
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const auto value_on = [&](std::size_t rank) {
        std::int64_t value = 0;
        std::memcpy(&value, all[rank].data() + i * sizeof(value), sizeof(value));
        return value;
      };
      check<ConfigError>(value_on(r) == value_on(0),
                         "the processes do not agree: ", settings[i].name, " is ", value_on(r),
                         " on rank ", r, " and ", value_on(0), " on rank 0");
    }
  }
  ended_ = false;
}

}  // namespace nanovllm
