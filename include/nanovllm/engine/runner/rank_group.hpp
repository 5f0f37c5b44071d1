#pragma once
/// The ranks of this process, their ends of the communicator, and the threads that they run on.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/runner/rank.hpp"
#include "nanovllm/engine/runner/watchdog.hpp"
#include "nanovllm/engine/step/executor.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/parallel/backoff.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

/// What one rank throws releases the others and is thrown by the call. One thread calls a group,
/// but for `abort`.
///
/// With `step_timeout` every rank has a thread, and a step that exceeds it is given up: a rank that
/// hangs keeps what it uses, and goes when its thread ends.
template <class Model, class Policy>
class RankGroup {
 public:
  using Rank = nanovllm::Rank<Model, Policy>;
  using Config = typename Rank::Config;
  using Elements = typename Rank::Elements;
  using KvElement = typename Rank::KvElement;
  using Backend = typename Rank::Backend;
  using Ranks = typename Policy::Ranks;
  using Communicator = typename Rank::Communicator;
  using Network = typename Rank::Network;
  using Pool = typename Rank::Pool;
  using Executor = typename Rank::Executor;

  /// Whether the ranks' executors have deferred steps.
  static constexpr bool kEditsLogits = EditingExecutorLike<Executor>;
  /// Whether they give hidden states.
  static constexpr bool kGivesHidden = requires { requires Executor::kGivesHidden; };

  static_assert(check_model<Model, Elements, Backend, Communicator, Pool>());
  static_assert(CommunicatorLike<Communicator>);
  static_assert(ExecutorLike<Executor, Network, Backend, Pool>);

  explicit RankGroup(const RunnerConfig& config)
      : members_(std::make_shared<Members>(config)),
        watchdog_(config.step_timeout),
        threads_(size(), config.step_timeout.has_value()) {}

  /// Waits for the steps under way. A rank that hangs is left behind with what it uses.
  ~RankGroup() {
    join();
    try {
      // The device would be waited for without end.
      if (watchdog_.has_fired() && !are_done_soon()) detail::leak(members_);
    } catch (...) {  // it has failed, and will not be waited for
    }
  }

  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// Ranks of this process.
  [[nodiscard]] int size() const { return static_cast<int>(members_->ends.size()); }
  [[nodiscard]] Rank& operator[](int r) const { return (*members_)[r]; }
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  [[nodiscard]] const Watchdog& watchdog() const { return watchdog_; }

  // ---- All ranks at once ----

  /// Calls `task(r)` on the thread of every rank.
  template <class Task>
  void run(const Task& task) {
    threads_.run(task, [this](int) { members_->release_others(); });
  }

  /// Calls `task(rank)` on the thread of every rank, with its device being the current one.
  template <class Task>
  void on_all(const Task& task) {
    run([&](int r) {
      Rank& rank = (*this)[r];
      const auto entered = rank.enter();
      task(rank);
    });
  }

  /// Calls `call(rank, part)` on the thread of every rank that has a part.
  template <class Call>
  void on_parts(const Call& call) {
    on_all([&](Rank& rank) {
      if (rank.part) call(rank.comm.rank(), *rank.part);
    });
  }

  /// Releases all ranks after an error, which ends other processes. From the thread that handles
  /// it.
  void release() { members_->release_others(); }

  // ---- Start ----

  /// Says what takes time; a backend whose ops are done at once has nothing to prepare.
  void begin_stage(const char* stage) const {
    if (Backend::kAsynchronous && members_->config.on_stage) members_->config.on_stage(stage);
  }

  /// Makes the ranks, each on its own thread, and calls `fill(weights, backend, rank)` for each.
  /// Throws ConfigError, before any weights are allocated, where they would not fit.
  template <class Peers, class Fill>
  void start(Peers& peers, const Config& model, const Fill& fill) {
    const RunnerConfig& config = members_->config;
    const int ranks_on_host = peers.ranks_on_host(config);
    std::vector<std::unique_ptr<Backend>> backends(members_->ends.size());
    const auto backend_config = [&](int r) {
      return BackendConfig{.num_threads = config.threads_of_a_rank(ranks_on_host),
                           .device = config.first_device + peers.local_rank() + r};
    };
    run([&](int r) {
      backends[static_cast<std::size_t>(r)] = std::make_unique<Backend>(backend_config(r));
    });
    const int num_sharing = Backend::kSharedMemory ? ranks_on_host : 1;
    for (const auto& backend : backends) {  // while no rank of this host has its weights
      check_weight_memory(model, kWeightBits<typename Elements::Weight>, config.num_ranks,
                          num_sharing, backend->available_memory());
      check_step_memory(model, config.limits, sizeof(typename Elements::Activation), num_sharing,
                        backend->available_memory());
    }
    // A rank that joins a group of devices waits for all the others: they must be there.
    peers.wait_for_all();
    run([&](int r) {
      auto& backend = backends[static_cast<std::size_t>(r)];
      const auto active = backend->activate();
      Rank& rank = make(r, model, std::move(backend));
      fill(rank.network.weights(), *rank.backend, rank.comm.rank());
      rank.make_part(model, config, backend_config(r));
      if (r == 0) begin_stage("choosing kernels");
      if constexpr (requires { rank.backend->tune(rank.network.projections()); })
        rank.backend->tune(rank.network.projections());
    });
    // Nor may one wait in its first step for another that still reads its weights.
    peers.wait_for_all();
  }

  /// Bytes that any rank's KV pool may count on, the least of all ranks: each computes the largest
  /// step there can be, on a pool of one block of `shape`.
  [[nodiscard]] std::size_t measure_memory(const KvShape& shape) {
    std::vector<std::size_t> bytes(members_->ends.size());
    std::atomic<std::size_t> next = 0;
    on_all([&](Rank& rank) { bytes[next++] = rank.measure_memory(shape); });
    return *std::min_element(bytes.begin(), bytes.end());
  }

  // ---- Steps ----

  /// Each rank begins the step, and a backend whose ops are done at once computes it. Ranks with
  /// threads of their own may do so after it has returned; `wait` throws what went wrong.
  void launch(int slot, const StepInputs& inputs) {
    Begun& step = begun(slot);
    begin(step, step.inputs, inputs,
          [slot](Rank& rank, const StepInputs& own) { rank.launch(slot, own); });
  }

  /// Each rank draws for a deferred step, in the same way.
  void sample(int slot, const SampleInputs& inputs) {
    if constexpr (kEditsLogits) {
      Begun& step = begun(slot);
      begin(step, step.draws, inputs,
            [slot](Rank& rank, const SampleInputs& own) { rank.executor->sample(slot, own); });
    } else {
      throw Error("sample: the policy's Executor has no deferred steps");
    }
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
    throw_if_late();
  }

  /// Waits for the step in `slot` on all ranks. Throws when a device has failed, as another would
  /// wait for it without end; with a limit, an Error that names the ranks whose devices hang.
  void wait(int slot) {
    if (is_alone()) return;
    settle(begun(slot));
    for (const Backoff backoff(Backoff::kForSteps); !is_done(slot); backoff.pause()) {
      throw_if_late();
      if (watchdog_.is_late()) give_up(slot);
    }
  }

  /// Throws when a rank did not come in time to a call that another waited for: what the steps
  /// since then have computed is garbage. For when a step is done.
  void throw_if_late() const {
    for ([[maybe_unused]] const Communicator& end : members_->ends) {
      if constexpr (requires { end.throw_if_late(); }) end.throw_if_late();
    }
  }

  /// Whether the step in `slot` is done on all ranks. Throws when it has failed.
  [[nodiscard]] bool is_done(int slot) const {
    for (int r = 0; r < size(); ++r) {
      if (!is_done(r, slot)) return false;
    }
    return true;
  }

  // ---- After a failure ----

  /// Throws Error unless all ranks and their devices come to rest.
  void come_to_rest() {
    join();
    for (Begun& step : begun_) step.error = nullptr;
    for (const int rank : threads_.hanging())
      throw Error(concat("reset: rank ", rank, " still hangs; the engine has to be made anew"));
    members_->abort();
    check(are_done_soon(), "reset: a device still computes a step; its process has to end");
  }

  /// Makes new communicators and executors, on the same weights and KV pools. No step runs.
  void renew() {
    on_all([](Rank& rank) { rank.executor.reset(); });
    members_->abort();
    auto fresh = Ranks::Peers::template make_ends<Communicator>(members_->config);
    for (std::size_t i = 0; i < fresh.size(); ++i) members_->ends[i] = std::move(fresh[i]);
    run([&](int r) {
      const auto active = (*this)[r].backend->activate();
      attach(r, *(*this)[r].backend);
    });
    on_all([](Rank& rank) {
      rank.make_executor();
      if (rank.kv) rank.executor->capture(*rank.kv);
    });
  }

 private:
  /// That ranks have to come back once they are released.
  static constexpr std::chrono::seconds kGrace{2};

  /// What the threads of the ranks use. It outlives the group where a rank hangs.
  struct Members {
    explicit Members(const RunnerConfig& config_in)
        : config(config_in),
          ends(Ranks::Peers::template make_ends<Communicator>(config_in)),
          ranks(ends.size()) {}

    [[nodiscard]] Rank& operator[](int r) const { return *ranks[static_cast<std::size_t>(r)]; }

    /// Called by a rank while it handles the error that it cannot recover from.
    void release_others() {
      if (config.num_ranks == 1) return;
      try {
        Ranks::Peers::tell_failure(config, message_of(std::current_exception()));
      } catch (...) {  // no memory for the words
      }
      abort();
    }

    /// Ends what the ranks of this process wait for. From any thread.
    void abort() {
      for (Communicator& end : ends) end.abort();
    }

    RunnerConfig config;
    std::vector<Communicator> ends;
    std::vector<std::unique_ptr<Rank>> ranks;
  };

  /// Whether a step is computed on the caller's thread, for as long as it takes.
  [[nodiscard]] bool is_alone() const { return size() == 1 && !watchdog_.has_limit(); }

  using Begun = detail::BegunStep;
  [[nodiscard]] Begun& begun(int slot) { return begun_[static_cast<std::size_t>(slot)]; }

  /// Starts `call(rank, own)` on every rank's thread, on a copy of `inputs`, unless `step` failed.
  template <class Inputs, class Call>
  void begin(Begun& step, std::shared_ptr<Inputs>& own, const Inputs& inputs, const Call& call) {
    if (is_alone()) {
      const auto entered = (*this)[0].enter();
      return call((*this)[0], inputs);
    }
    join();
    if (step.error) return;
    if (own == nullptr || own.use_count() > 1) own = std::make_shared<Inputs>();
    own->copy_packed(inputs);
    newest_ = &step;
    threads_.start(
        [members = members_, call, mine = own](int r) {
          const auto entered = (*members)[r].enter();
          call((*members)[r], *mine);
        },
        [members = members_](int) { members->release_others(); });
    if (members_->config.processes) settle(step);  // messages of steps and sums come in turn
  }

  /// The same as `join()`, and throws if `step` has failed.
  void settle(Begun& step) {
    join();
    if (step.error) std::rethrow_exception(std::exchange(step.error, nullptr));
  }

  /// Returns when all ranks have begun what was started last. What the first that failed threw is
  /// the step's error; with a limit, one that names the ranks that hang.
  void join() noexcept {
    try {
      if (!watchdog_.has_limit()) return threads_.join();
      bool late = false;
      const std::vector<int> hanging = threads_.join_for(
          watchdog_.limit(), kGrace, [this] { release_late_ranks(); }, late);
      if (late) throw Error(watchdog_.fire(hanging));
    } catch (...) {
      // Of several ranks one that fails ends what the others compute, be it of the step before.
      for (Begun& step : begun_)
        if (&step == newest_ || members_->config.num_ranks > 1)
          step.error = std::current_exception();
    }
  }

  /// The step in `slot` is late.
  [[noreturn]] void give_up(int slot) {
    release_late_ranks();
    static_cast<void>(is_done_soon(slot));
    std::vector<int> hanging;
    for (int r = 0; r < size(); ++r) {
      if (!is_done(r, slot)) hanging.push_back(r);
    }
    throw Error(watchdog_.fire(hanging));
  }

  /// Ranks that wait for another come back, those that hang do not.
  void release_late_ranks() {
    Ranks::Peers::tell_failure(members_->config,
                               concat("a step has not ended within ", watchdog_.limit_text()));
    members_->abort();
  }

  /// Makes rank r, on its thread, with its device being the current one.
  Rank& make(int r, const Config& model, std::unique_ptr<Backend> backend) {
    attach(r, *backend);
    const RunnerConfig& config = members_->config;
    auto& place = members_->ranks[static_cast<std::size_t>(r)];
    place = std::make_unique<Rank>(model, config.limits,
                                   ceil_div(config.limits.max_model_len, config.block_size),
                                   std::move(backend), members_->ends[static_cast<std::size_t>(r)]);
    return *place;
  }

  /// Joins rank r's communicator with its device.
  void attach([[maybe_unused]] int r, [[maybe_unused]] Backend& backend) {
    auto& end = members_->ends[static_cast<std::size_t>(r)];
    if constexpr (requires { end.attach(backend); }) end.attach(backend);
  }

  [[nodiscard]] bool is_done([[maybe_unused]] int r, [[maybe_unused]] int slot) const {
    if constexpr (AsyncExecutorLike<Executor>) return (*this)[r].executor->is_done(slot);
    return true;
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

  std::shared_ptr<Members> members_;
  std::array<Begun, 2> begun_;
  Begun* newest_ = begun_.data();
  Watchdog watchdog_;
  typename Ranks::Threads threads_;  // last: joined before what its threads use is gone
};

}  // namespace nanovllm
