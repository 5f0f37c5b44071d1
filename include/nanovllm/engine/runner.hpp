#pragma once
/// Runs steps on every rank: weights, KV pool, forward pass and sampler, without a word of queues.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/engine/direct_executor.hpp"
#include "nanovllm/engine/graph_executor.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/engine/step_results.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/config.hpp"
#include "nanovllm/model/qwen3.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/rank_threads.hpp"

namespace nanovllm {

/// Sizes that a runner allocates for.
struct RunnerConfig {
  int num_ranks = 1;
  int num_threads = 0;           ///< of all ranks together; 0 for all of the machine's
  int first_device = 0;          ///< of rank 0; the other ranks take the following ones
  std::int64_t max_tokens = 0;   ///< a step
  std::int64_t max_context = 0;  ///< a sequence
  std::int64_t max_samples = 0;  ///< a step
};

/// Owner of one model on all its ranks.
///
/// `launch` hands over a step and `wait` gives the results of the oldest that was launched. Up to
/// two steps may be under way, so that one can be planned while the other is computed; steps are
/// computed in the order of their launches. `GraphExecutor` and `DirectExecutor` say what a rank
/// does with a step.
template <class Model, class Policy>
class Runner {
 public:
  using Element = typename Policy::Element;
  using Backend = typename Policy::Backend;
  using Communicator = typename Policy::Communicator;
  using Network = typename Model::template Network<Element, Backend, Communicator>;
  using Pool = KvPool<Element, typename Backend::template Buffer<Element>>;
  using Weights = typename Network::Weights;

  static_assert(CommunicatorLike<Communicator>,
                "nanovllm: the policy's Communicator must offer make(int), rank(), size(), "
                "all_reduce(matrix), all_gather_columns(part, whole) and abort(); see "
                "parallel/communicator.hpp and docs/policies.md");
  static_assert(Policy::kv.block_size >= 1,
                "nanovllm: the policy's kv.block_size must be at least 1 token");

  /// Allocates everything but the KV pool. `fill(weights, backend, rank)` is called on each rank,
  /// at the same time, to give the weights their values.
  Runner(const ModelConfig& model, const RunnerConfig& config,
         const std::function<void(Weights&, Backend&, int rank)>& fill)
      : config_(config), comms_(Communicator::make(config.num_ranks)), threads_(config.num_ranks) {
    check<ConfigError>(config.max_tokens >= 1, "max_num_batched_tokens must be >= 1, got ",
                       config.max_tokens);
    check<ConfigError>(config.num_threads >= 0, "num_threads must be >= 0, got ",
                       config.num_threads);
    int num_threads = config.num_threads;
    if (num_threads == 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
    ranks_.resize(static_cast<std::size_t>(config.num_ranks));
    threads_.run(
        [&](int r) {
          auto backend = std::make_unique<Backend>(
              BackendConfig{.num_threads = std::max(1, num_threads / config.num_ranks),
                            .device = config.first_device + r});
          const auto active = backend->activate();
          Communicator& comm = comms_[static_cast<std::size_t>(r)];
          if constexpr (requires { comm.attach(*backend); }) comm.attach(*backend);
          auto rank =
              std::make_unique<Rank>(model, limits(), max_blocks(), std::move(backend), comm);
          fill(rank->network.weights(), *rank->backend, r);
          rank->network.tune();
          ranks_[static_cast<std::size_t>(r)] = std::move(rank);
        },
        [this](int r) { comms_[static_cast<std::size_t>(r)].abort(); });
  }

  /// One rank's part of a KV block.
  [[nodiscard]] KvShape kv_shape() const {
    const Network& network = ranks_[0]->network;
    return {.num_layers = network.num_layers(),
            .num_kv_heads = network.num_kv_heads(),
            .head_dim = network.head_dim(),
            .block_size = Policy::kv.block_size,
            .element_bytes = sizeof(Element)};
  }

  /// Bytes that one rank's KV pool may count on. A backend that runs ahead first computes the
  /// largest step there can be, on a pool of one block, so that everything which takes memory when
  /// it is first used has it; what the graphs will take is measured and left out.
  [[nodiscard]] std::size_t available_memory() {
    std::vector<std::size_t> bytes(ranks_.size());
    std::atomic<std::size_t> next = 0;
    on_all_ranks([&](Rank& rank) {
      Pool scratch(kv_shape(), 1);
      const std::size_t reserve = rank.executor.rehearse(scratch);
      const std::size_t free = rank.backend->available_memory();
      bytes[next++] = free - std::min(free, reserve);
    });
    const std::size_t least = *std::min_element(bytes.begin(), bytes.end());
    return Backend::kSharedMemory ? least / ranks_.size() : least;
  }

  /// Makes every rank's KV pool of `num_blocks` blocks, and what depends on where it is.
  void allocate_kv(std::int32_t num_blocks) {
    on_all_ranks([&](Rank& rank) {
      rank.kv.emplace(kv_shape(), num_blocks);
      rank.executor.capture(*rank.kv);
    });
  }

  /// Begins a step. `inputs` may be changed or go as soon as this returns. Its tokens may be those
  /// that the step launched just before draws (`StepInputs::has_pending_tokens`).
  ///
  /// What goes wrong in the step is thrown by its `wait`. A step launched while one that failed is
  /// still under way fails with it, for it may build on what that one did not compute.
  void launch(const StepInputs& inputs) {
    check(num_launched_ - num_finished_ < 2, "launch: two steps are under way, wait for the first");
    const auto slot = static_cast<int>(num_launched_ % 2);
    const std::exception_ptr& before = errors_[static_cast<std::size_t>(1 - slot)];
    std::exception_ptr& error = errors_[static_cast<std::size_t>(slot)];
    error = num_launched_ == num_finished_ ? nullptr : before;
    ++num_launched_;
    if (error) return;
    try {
      on_all_ranks([&](Rank& rank) { rank.executor.launch(slot, inputs, *rank.kv); });
    } catch (...) {
      error = std::current_exception();
    }
  }

  /// Ends the oldest step under way and returns its results. Throws what the first failing rank
  /// threw; the step has ended then, too.
  StepResults wait() {
    check(num_finished_ < num_launched_, "wait: no step is under way");
    const auto slot = static_cast<int>(num_finished_++ % 2);
    std::exception_ptr& error = errors_[static_cast<std::size_t>(slot)];
    if (error) std::rethrow_exception(error);
    Rank& rank = *ranks_[0];
    const auto active = rank.backend->activate();
    try {
      return rank.executor.wait(slot);
    } catch (...) {
      error = std::current_exception();  // for the step behind it
      throw;
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
    check_shape("run_logits", "out", out, {inputs.num_samples(), ranks_[0]->network.vocab_size()});
    on_all_ranks([&](Rank& rank) {
      if (&rank == ranks_[0].get()) return rank.executor.run_logits(inputs, *rank.kv, out);
      std::vector<float> ignored(static_cast<std::size_t>(out.size()));
      rank.executor.run_logits(inputs, *rank.kv, {ignored.data(), out.extents});
    });
  }

  [[nodiscard]] int num_ranks() const { return config_.num_ranks; }
  [[nodiscard]] const Backend& backend() const { return *ranks_[0]->backend; }

 private:
  using Executor = std::conditional_t<Backend::kAsynchronous, GraphExecutor<Network, Backend, Pool>,
                                      DirectExecutor<Network, Backend, Pool>>;

  struct Rank {
    Rank(const ModelConfig& model, const NetworkLimits& limits, std::int64_t max_blocks,
         std::unique_ptr<Backend> backend_in, Communicator& comm)
        : backend(std::move(backend_in)),
          network(model, limits, *backend, comm),
          executor(network, *backend, limits, max_blocks) {}

    std::unique_ptr<Backend> backend;
    Network network;
    std::optional<Pool> kv;
    Executor executor;  // last: graphs go before what they use
  };

  [[nodiscard]] NetworkLimits limits() const {
    return {.max_tokens = config_.max_tokens,
            .max_context = config_.max_context,
            .max_samples = config_.max_samples};
  }

  /// Blocks of the longest sequence.
  [[nodiscard]] std::int64_t max_blocks() const {
    return ceil_div(config_.max_context, Policy::kv.block_size);
  }

  /// Calls `task(rank)` on every rank's thread, with its device being the current one.
  template <class Task>
  void on_all_ranks(const Task& task) {
    threads_.run(
        [&](int r) {
          Rank& rank = *ranks_[static_cast<std::size_t>(r)];
          const auto active = rank.backend->activate();
          task(rank);
        },
        [this](int r) { comms_[static_cast<std::size_t>(r)].abort(); });
  }

  RunnerConfig config_;
  std::vector<Communicator> comms_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::array<std::exception_ptr, 2> errors_;  // of the last two launches
  std::uint64_t num_launched_ = 0;
  std::uint64_t num_finished_ = 0;
  RankThreads threads_;  // last: joined before what its threads use is gone
};

}  // namespace nanovllm
