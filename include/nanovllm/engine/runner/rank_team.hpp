#pragma once
/// The ranks of this process at work: on their threads, each step within its limit.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/runner/rank_group.hpp"
#include "nanovllm/engine/runner/runner_config.hpp"
#include "nanovllm/engine/runner/watchdog.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/parallel/rank_threads.hpp"

namespace nanovllm {

namespace detail {

/// Keeps an object alive until the process ends, on purpose: a hanging thread may still use it.
inline void leak(std::shared_ptr<const void> object) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(object));
}

}  // namespace detail

/// What one rank throws releases the others and is thrown by the call. One thread calls a team, but
/// for `abort` and `health`.
template <class Model, class Policy>
class RankTeam {
 public:
  using Group = RankGroup<Model, Policy>;
  using Rank = typename Group::Rank;

  /// Whether the ranks' executors have deferred steps.
  static constexpr bool kEditsLogits = EditingExecutorLike<typename Group::Executor>;

  explicit RankTeam(const RunnerConfig& config)
      : processes_(config.processes),
        group_(std::make_shared<Group>(config)),
        watchdog_(config.step_timeout),
        threads_(group_->size(), config.step_timeout.has_value()) {}

  /// Waits for the steps under way. A rank that hangs is left behind with what it uses.
  ~RankTeam() {
    try {
      // The device would be waited for without end.
      if (watchdog_.has_fired() && !are_done_soon()) detail::leak(group_);
    } catch (...) {  // it has failed, and will not be waited for
    }
  }

  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  [[nodiscard]] int size() const { return group_->size(); }
  [[nodiscard]] Rank& operator[](int r) const { return (*group_)[r]; }
  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  [[nodiscard]] const Watchdog& watchdog() const { return watchdog_; }

  /// Calls `task(r)` on the thread of every rank.
  void run(const std::function<void(int)>& task) {
    threads_.run(task, [this](int) { group_->release_others(); });
  }

  /// Calls `task(rank)` on the thread of every rank, with its device being the current one.
  template <class Task>
  void on_all(const Task& task) {
    run([&](int r) { group_->on_rank(r, task); });
  }

  /// Each rank begins the step, and a backend whose ops are done at once computes it. With a limit,
  /// throws an Error that names the ranks that hang, if any; they keep the inputs.
  void launch(int slot, const StepInputs& inputs) {
    begin(inputs, inputs_[static_cast<std::size_t>(slot)],
          [slot](Rank& rank, const StepInputs& step) {
            rank.executor->launch(slot, step, *rank.kv);
          });
  }

  /// Each rank draws for a deferred step, in the same way.
  void sample(int slot, const SampleInputs& inputs) requires kEditsLogits {
    begin(inputs, draws_[static_cast<std::size_t>(slot)],
          [slot](Rank& rank, const SampleInputs& draws) { rank.executor->sample(slot, draws); });
  }

  /// Computes logits on all ranks; those of the first go to `out`, if given.
  void run_logits(const StepInputs& inputs, const MatrixView<float>* out) {
    on_all([&](Rank& rank) {
      if (&rank == &(*this)[0] && out != nullptr)
        return rank.executor->run_logits(inputs, *rank.kv, *out);
      const std::int64_t m = inputs.num_samples(), n = rank.network.vocab_size();
      std::vector<float> ignored(static_cast<std::size_t>(m * n));
      rank.executor->run_logits(inputs, *rank.kv, {ignored.data(), {m, n}});
    });
  }

  /// Waits for the step in `slot` on all ranks: one whose device has failed throws, where another
  /// would wait for it without end. With a limit, throws an Error that names the ranks whose
  /// devices hang.
  void wait(int slot) {
    if (size() == 1 && !watchdog_.has_limit()) return;
    while (!is_done(slot)) {
      if (watchdog_.is_late()) abandon(slot);
      std::this_thread::yield();
    }
  }

  /// Whether the step in `slot` is done on all ranks. Throws when it has failed.
  [[nodiscard]] bool is_done(int slot) const {
    for (int r = 0; r < size(); ++r) {
      if (!group_->is_done(r, slot)) return false;
    }
    return true;
  }

  /// Throws Error unless all ranks and their devices come to rest.
  void come_to_rest() {
    for (const int rank : threads_.hanging())
      throw Error(concat("reset: rank ", rank, " still hangs; the engine has to be made anew"));
    group_->abort();
    check(are_done_soon(), "reset: a device still computes a step; its process has to end");
  }

  /// Makes new communicators and executors, on the same weights and KV pools. No step runs.
  void renew() {
    on_all([](Rank& rank) { rank.executor.reset(); });
    group_->renew_communicators();
    run([&](int r) {
      const auto active = (*this)[r].backend->activate();
      group_->attach(r, *(*this)[r].backend);
    });
    on_all([](Rank& rank) {
      rank.make_executor();
      if (rank.kv) rank.executor->capture(*rank.kv);
    });
  }

 private:
  /// That ranks have to come back once they are released.
  static constexpr std::chrono::seconds kGrace{2};

  /// Calls `call(rank, inputs)` on every rank's thread. With a limit, on a copy of the inputs, in
  /// `kept`, which ranks that hang keep.
  template <class Inputs, class Call>
  void begin(const Inputs& inputs, std::shared_ptr<Inputs>& kept, const Call& call) {
    if (!watchdog_.has_limit()) return on_all([&](Rank& rank) { call(rank, inputs); });
    if (kept == nullptr || kept.use_count() > 1) kept = std::make_shared<Inputs>();
    *kept = inputs;
    bool late = false;
    const std::vector<int> hanging = threads_.run_for(
        watchdog_.limit(), kGrace,
        [group = group_, call, mine = kept](int r) {
          group->on_rank(r, [&](Rank& rank) { call(rank, *mine); });
        },
        [group = group_](int) { group->release_others(); }, [this] { release_late_ranks(); }, late);
    if (late) throw Error(watchdog_.fire(hanging));
  }

  /// The step in `slot` is late.
  [[noreturn]] void abandon(int slot) {
    release_late_ranks();
    static_cast<void>(is_done_soon(slot));
    std::vector<int> hanging;
    for (int r = 0; r < size(); ++r) {
      if (!group_->is_done(r, slot)) hanging.push_back(r);
    }
    throw Error(watchdog_.fire(hanging));
  }

  /// Ranks that wait for another come back, those that hang do not.
  void release_late_ranks() {
    if (processes_)
      processes_->fail(concat("a step has not ended within ", watchdog_.limit_text()));
    group_->abort();
  }

  [[nodiscard]] bool is_done_soon(int slot) const {
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    while (!is_done(slot)) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  [[nodiscard]] bool are_done_soon() const { return is_done_soon(0) && is_done_soon(1); }

  std::shared_ptr<ProcessGroup> processes_;
  std::shared_ptr<Group> group_;
  // Of the steps, where a rank may keep them.
  std::array<std::shared_ptr<StepInputs>, 2> inputs_;
  std::array<std::shared_ptr<SampleInputs>, 2> draws_;
  Watchdog watchdog_;
  RankThreads threads_;  // last: joined before what its threads use is gone
};

}  // namespace nanovllm
