#pragma once
/// Runs steps on every rank: weights, KV pool, forward pass and sampler, without a word of queues.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/elements.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/direct_executor.hpp"
#include "nanovllm/engine/graph_executor.hpp"
#include "nanovllm/engine/runner_link.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/engine/step_results.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/process_group.hpp"
#include "nanovllm/parallel/rank_threads.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm {

/// Sizes that a runner allocates for, and who its ranks are.
struct RunnerConfig {
  int num_ranks = 1;
  int num_threads = 0;           ///< of all ranks on this host; 0 for all of the machine's
  int first_device = 0;          ///< of this host's first rank; the others take the following ones
  std::int64_t max_tokens = 0;   ///< a step
  std::int64_t max_context = 0;  ///< a sequence
  std::int64_t max_samples = 0;  ///< a step
  std::function<void(const char* stage)> on_stage{};  ///< rank 0 begins a stage of the start-up
  std::shared_ptr<ProcessGroup> processes{};  ///< one rank each; unset: all are threads of this one
};

/// Owner of one model on all its ranks, or on this process's one.
///
/// `launch` hands over a step and `wait` gives the results of the oldest that was launched. Up to
/// two steps may be under way, so that one can be planned while the other is computed; steps are
/// computed in the order of their launches. `GraphExecutor` and `DirectExecutor` say what a rank
/// does with a step.
///
/// With ranks in several processes, every process makes the same runner with the same calls up to
/// `allocate_kv`. Then rank 0's computes steps and the others `run_worker`: they are sent the inputs of
/// every step and compute their part of it.
///
/// A rank that fails releases the others. There is no way back from that: the steps under way and
/// all later ones throw what the first failing rank threw.
template <class Model, class Policy>
class Runner {
 public:
  using Config = typename Model::Config;
  using Elements = ElementsOf<Policy>;
  using KvElement = typename Elements::KvElement;
  using Backend = typename Policy::Backend;
  using Communicator = typename Policy::Communicator;
  using Network = typename Model::template Network<Elements, Backend, Communicator>;
  using Pool = KvPool<KvElement, typename Backend::template Buffer<KvElement>>;
  using Weights = typename Network::Weights;

  static_assert(check_model<Model, Elements, Backend, Communicator, Pool>());
  static_assert(CommunicatorLike<Communicator>,
                "nanovllm: the policy's Communicator must offer make(int), rank(), size(), "
                "all_reduce(matrix), all_gather_columns(part, whole) and abort(); see "
                "parallel/communicator.hpp and docs/policies.md");
  static_assert(Policy::kv.block_size >= 1,
                "nanovllm: the policy's kv.block_size must be at least 1 token");

  /// Allocates everything but the KV pool. `fill(weights, backend, rank)` is called on each rank,
  /// at the same time, to give the weights their values.
  Runner(const Config& model, const RunnerConfig& config,
         const std::function<void(Weights&, Backend&, int rank)>& fill)
      : config_(config),
        comms_(make_communicators(config)),
        threads_(static_cast<int>(comms_.size())),
        link_(config.processes, [this] { abort(); }) {
    check<ConfigError>(config.max_tokens >= 1, "max_num_batched_tokens must be >= 1, got ",
                       config.max_tokens);
    check<ConfigError>(config.num_threads >= 0, "num_threads must be >= 0, got ",
                       config.num_threads);
    if (config_.processes) link_.compare(settings(model));
    std::vector<std::unique_ptr<Backend>> backends(comms_.size());
    run_on_threads([&](int r) {
      const int device = config_.first_device + (link_ ? link_->place().local_rank : r);
      backends[index(r)] = std::make_unique<Backend>(
          BackendConfig{.num_threads = threads_of_a_rank(), .device = device});
    });
    // Who joins a group of devices waits for all the others, so they had better be there.
    if (link_) static_cast<void>(link_->minimum(0));
    ranks_.resize(comms_.size());
    run_on_threads([&](int r) {
      const auto active = backends[index(r)]->activate();
      Communicator& comm = comms_[index(r)];
      if constexpr (requires { comm.attach(*backends[0]); }) comm.attach(*backends[index(r)]);
      auto rank = std::make_unique<Rank>(model, limits(), max_blocks(),
                                         std::move(backends[index(r)]), comm);
      fill(rank->network.weights(), *rank->backend, comm.rank());
      if (r == 0) begin_stage("choosing kernels");
      if constexpr (requires { rank->network.tune(); }) rank->network.tune();
      ranks_[index(r)] = std::move(rank);
    });
  }

  /// One rank's part of a KV block.
  [[nodiscard]] KvShape kv_shape() const {
    const Network& network = ranks_[0]->network;
    return {.num_layers = network.num_layers(),
            .num_kv_heads = network.num_kv_heads(),
            .head_dim = network.head_dim(),
            .block_size = Policy::kv.block_size,
            .element_bytes = sizeof(KvElement)};
  }

  /// Bytes that any rank's KV pool may count on. A backend that runs ahead first computes the
  /// largest step there can be, on a pool of one block, so that everything which takes memory when
  /// it is first used has it; what the graphs will take is measured and left out.
  [[nodiscard]] std::size_t available_memory() {
    begin_stage("sizing the KV pool");
    std::vector<std::size_t> bytes(ranks_.size());
    std::atomic<std::size_t> next = 0;
    on_all_ranks([&](Rank& rank) {
      Pool scratch(kv_shape(), 1);
      const std::size_t reserve = rank.executor.profile_run(scratch);
      const std::size_t free = rank.backend->available_memory();
      bytes[next++] = free - std::min(free, reserve);
    });
    std::size_t least = *std::min_element(bytes.begin(), bytes.end());
    if (Backend::kSharedMemory) least /= static_cast<std::size_t>(ranks_on_host());
    if (!link_) return least;
    return static_cast<std::size_t>(link_->minimum(static_cast<std::int64_t>(least)));
  }

  /// Makes every rank's KV pool of `num_blocks` blocks, and what depends on where it is. Rank 0's
  /// number counts for all.
  void allocate_kv(std::int32_t num_blocks) {
    if (link_) link_->share(std::as_writable_bytes(std::span(&num_blocks, 1)));
    begin_stage("recording graphs");
    on_all_ranks([&](Rank& rank) {
      rank.kv.emplace(kv_shape(), num_blocks);
      rank.executor.capture(*rank.kv);
    });
  }

  /// Begins a step. `inputs` may be changed or go as soon as this returns. Its tokens may be those
  /// that the step launched just before draws (`TokenSource::sampled`).
  ///
  /// What goes wrong in the step is thrown by its `wait`. A step launched while one that failed is
  /// still under way fails with it, for it may build on what that one did not compute.
  void launch(const StepInputs& inputs) {
    check_first("launch");
    check(num_launched_ - num_finished_ < 2, "launch: two steps are under way, wait for the first");
    const auto slot = static_cast<int>(num_launched_ % 2);
    const std::exception_ptr& before = errors_[index(1 - slot)];
    std::exception_ptr& error = errors_[index(slot)];
    error = num_launched_ == num_finished_ ? nullptr : before;
    if (broken_) error = broken_;
    ++num_launched_;
    if (error) return;
    try {
      send(ProcessGroup::Tag::step, inputs);
      on_all_ranks([&](Rank& rank) { rank.executor.launch(slot, inputs, *rank.kv); });
    } catch (...) {
      error = give_up();
    }
  }

  /// Ends the oldest step under way and returns its results. Throws what the first failing rank
  /// threw; the step has ended then, too.
  StepResults wait() {
    check(num_finished_ < num_launched_, "wait: no step is under way");
    const auto slot = static_cast<int>(num_finished_++ % 2);
    std::exception_ptr& error = errors_[index(slot)];
    if (!error) error = broken_;  // by the step behind this one
    if (error) std::rethrow_exception(error);
    Rank& rank = *ranks_[0];
    const auto active = rank.backend->activate();
    try {
      wait_for_others(slot);
      const StepResults results = rank.executor.wait(slot);
      if (link_) link_->check_alive();  // else a failure elsewhere may have ended our part
      return results;
    } catch (...) {
      error = give_up();  // for the step behind it
      std::rethrow_exception(error);
    }
  }

  /// Computes one step. No other may be under way.
  StepResults run(const StepInputs& inputs) {
    check(num_launched_ == num_finished_, "run: a step is under way");
    launch(inputs);
    return wait();
  }

  /// Computes one step and copies the logits of its wanted rows to `out`, [m, vocab_size], without
  /// sampling. For evaluation; rows are limited by max_samples.
  void run_logits(const StepInputs& inputs, MatrixView<float> out) {
    check_first("run_logits");
    check_shape("run_logits", "out", out, {inputs.num_samples(), ranks_[0]->network.vocab_size()});
    send(ProcessGroup::Tag::logits, inputs);
    compute_logits(inputs, &out);
  }

  /// In a process of another rank than 0: computes this rank's part of rank 0's steps, and returns
  /// when rank 0's runner goes. Throws what fails here, or an Error that says who failed.
  void run_worker() {
    check(link_ && link_->rank() > 0, "run_worker: this is rank 0, which the others follow");
    try {
      StepInputs inputs;
      for (std::vector<std::byte> message;;) {
        // While steps are under way, this rank's device may fail, too.
        while (!link_->wait_for_message(0, num_launched_ > num_finished_ ? 1 : -1)) retire();
        const ProcessGroup::Tag tag = link_->receive(0, message);
        if (tag == ProcessGroup::Tag::end) return link_.end();
        check(tag == ProcessGroup::Tag::step || tag == ProcessGroup::Tag::logits,
              "run_worker: rank 0 sent what is no step");
        inputs.unpack(message);
        if (tag == ProcessGroup::Tag::logits) {
          compute_logits(inputs, nullptr);
          continue;
        }
        while (num_launched_ - num_finished_ == 2) retire();
        const auto slot = static_cast<int>(num_launched_++ % 2);
        on_all_ranks([&](Rank& rank) { rank.executor.launch(slot, inputs, *rank.kv); });
      }
    } catch (...) {
      std::rethrow_exception(give_up());
    }
  }

  [[nodiscard]] int num_ranks() const { return config_.num_ranks; }
  [[nodiscard]] const Backend& backend() const { return *ranks_[0]->backend; }

 private:
  using Executor = std::conditional_t<Backend::kAsynchronous, GraphExecutor<Network, Backend, Pool>,
                                      DirectExecutor<Network, Backend, Pool>>;

  static constexpr std::int64_t kVersion =
      NANOVLLM_VERSION_MAJOR * 1'000'000 + NANOVLLM_VERSION_MINOR * 1'000 + NANOVLLM_VERSION_PATCH;

  struct Rank {
    Rank(const Config& model, const NetworkLimits& limits, std::int64_t max_blocks,
         std::unique_ptr<Backend> backend_in, Communicator& comm)
        : backend(std::move(backend_in)),
          network(model, limits, *backend, comm),
          executor(network, *backend, limits, max_blocks) {}

    std::unique_ptr<Backend> backend;
    Network network;
    std::optional<Pool> kv;
    Executor executor;  // last: graphs go before what they use
  };

  /// The ends of the ranks that are in this process.
  static std::vector<Communicator> make_communicators(const RunnerConfig& config) {
    if (!config.processes) return Communicator::make(config.num_ranks);
    check<ConfigError>(config.processes->size() == config.num_ranks,
                       "tensor_parallel = ", config.num_ranks, ", but there are ",
                       config.processes->size(), " processes of one rank each");
    std::vector<Communicator> out;
    if constexpr (requires { Communicator::join(config.processes); }) {
      out.push_back(Communicator::join(config.processes));
    }
    check<ConfigError>(!out.empty(), "the policy's Communicator, ", type_name<Communicator>(),
                       ", cannot join ranks in several processes: it has no join(processes)");
    return out;
  }

  /// What must be the same in all processes.
  [[nodiscard]] std::vector<RunnerLink::Setting> settings(const Config& model) const {
    std::vector<RunnerLink::Setting> out = {
        {"the version of nanovllm", kVersion},
        {"bytes of a weight", sizeof(typename Elements::Weight)},
        {"bytes of an activation", sizeof(typename Elements::Activation)},
        {"bytes of a KV element", sizeof(KvElement)},
        {"block_size", Policy::kv.block_size},
        {"max_num_batched_tokens", config_.max_tokens},
        {"max_model_len", config_.max_context},
        {"max_num_seqs", config_.max_samples}};
    for (const auto& [name, value] : model_settings(model)) out.push_back({name, value});
    return out;
  }

  /// Says what takes time at start-up; a backend whose ops are done at once has nothing to prepare.
  void begin_stage(const char* stage) const {
    if (Backend::kAsynchronous && config_.on_stage) config_.on_stage(stage);
  }

  [[nodiscard]] NetworkLimits limits() const {
    return {.max_tokens = config_.max_tokens,
            .max_context = config_.max_context,
            .max_samples = config_.max_samples};
  }

  /// Blocks of the longest sequence.
  [[nodiscard]] std::int64_t max_blocks() const {
    return ceil_div(config_.max_context, Policy::kv.block_size);
  }

  [[nodiscard]] int ranks_on_host() const {
    return link_ ? link_->place().local_size : config_.num_ranks;
  }

  [[nodiscard]] int threads_of_a_rank() const {
    int all = config_.num_threads;
    if (all == 0) all = static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, all / ranks_on_host());
  }

  [[nodiscard]] static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  void check_first(const char* call) const {
    check(!link_ || link_->rank() == 0, call, ": rank ", link_ ? link_->rank() : 0,
          " computes the steps of rank 0; call run_worker()");
  }

  void send(ProcessGroup::Tag tag, const StepInputs& inputs) {
    if (link_) link_->broadcast(tag, inputs.counts_as_bytes(), inputs.bytes());
  }

  /// Computes logits on all ranks of this process; those of the first go to `out`, if given.
  void compute_logits(const StepInputs& inputs, const MatrixView<float>* out) {
    on_all_ranks([&](Rank& rank) {
      if (&rank == ranks_[0].get() && out != nullptr)
        return rank.executor.run_logits(inputs, *rank.kv, *out);
      const std::int64_t m = inputs.num_samples(), n = rank.network.vocab_size();
      std::vector<float> ignored(static_cast<std::size_t>(m * n));
      rank.executor.run_logits(inputs, *rank.kv, {ignored.data(), {m, n}});
    });
  }

  /// Waits for the step in `slot` on all ranks of this process: one whose device has failed throws,
  /// where another would wait for it for ever.
  void wait_for_others([[maybe_unused]] int slot) {
    if constexpr (Backend::kAsynchronous) {
      if (ranks_.size() == 1) return;
      for (std::size_t num_done = 0; num_done < ranks_.size(); std::this_thread::yield()) {
        num_done = 0;
        for (const auto& rank : ranks_) num_done += rank->executor.is_done(slot) ? 1 : 0;
      }
    }
  }

  /// A follower looks whether its oldest step is done. Throws when that has failed.
  void retire() {
    if constexpr (Backend::kAsynchronous) {
      if (!ranks_[0]->executor.is_done(static_cast<int>(num_finished_ % 2))) {
        link_->check_alive();
        return std::this_thread::yield();
      }
    }
    ++num_finished_;
  }

  /// Calls `task(rank)` on every rank's thread, with its device being the current one.
  template <class Task>
  void on_all_ranks(const Task& task) {
    run_on_threads([&](int r) {
      Rank& rank = *ranks_[index(r)];
      const auto active = rank.backend->activate();
      task(rank);
    });
  }

  /// Calls `task(r)` on the thread of every rank of this process.
  void run_on_threads(const std::function<void(int)>& task) {
    try {
      threads_.run(task, [this](int) { release_others(); });
    } catch (...) {
      std::rethrow_exception(give_up());
    }
  }

  /// Called by a rank while it handles the error that it cannot go on from.
  void release_others() {
    if (config_.num_ranks == 1) return;
    if (link_) link_.fail();
    abort();
  }

  /// The same for all ranks of this process. Returns what to throw: of several ranks the first
  /// error, wherever it was, counts for ever.
  [[nodiscard]] std::exception_ptr give_up() {
    if (config_.num_ranks == 1) return std::current_exception();
    release_others();
    if (broken_) return broken_;
    broken_ = std::current_exception();
    try {
      if (link_) link_->check_alive();
    } catch (const Error&) {
      broken_ = std::current_exception();
    }
    return broken_;
  }

  void abort() {
    for (Communicator& comm : comms_) comm.abort();
  }

  RunnerConfig config_;
  std::vector<Communicator> comms_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::array<std::exception_ptr, 2> errors_;  // of the last two launches
  std::exception_ptr broken_;                 // of the rank that failed first, if there are several
  std::uint64_t num_launched_ = 0;
  std::uint64_t num_finished_ = 0;
  RankThreads threads_;  // joined before what its threads use is gone
  RunnerLink link_;      // last: nobody calls `abort` afterwards
};

}  // namespace nanovllm
