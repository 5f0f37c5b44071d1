#pragma once
/// The ranks that are in this process: communicator, backend, network, KV pool and executor of
/// each.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/elements.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/runner/runner_config.hpp"
#include "nanovllm/engine/runner/runner_link.hpp"
#include "nanovllm/engine/step/executor.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

namespace detail {

template <class Backend, class T>
struct HostBufferOf {
  using type = typename Backend::template Buffer<T>;
};
template <class Backend, class T>
requires requires { typename Backend::template HostBuffer<T>; }
struct HostBufferOf<Backend, T> {
  using type = typename Backend::template HostBuffer<T>;
};

}  // namespace detail

/// The backend's `HostBuffer` where it has one; else its memory is the host's.
template <class Backend, class T>
using HostBufferOf = typename detail::HostBufferOf<Backend, T>::type;

/// Shared by the runner and, should a rank hang, by that rank's thread: it goes when both have.
template <class Model, class Policy>
class RankGroup {
 public:
  using Config = typename Model::Config;
  using Elements = ElementsOf<Policy>;
  using KvElement = typename Elements::KvElement;
  using Backend = typename Policy::Backend;
  using Communicator = typename Policy::Communicator;
  using Network = typename Model::template Network<Elements, Backend, Communicator>;
  using Pool = KvPool<KvElement, typename Backend::template Buffer<KvElement>,
                      HostBufferOf<Backend, KvElement>>;
  using Executor = ExecutorOf<Policy, Network, Backend, Pool>;

  static_assert(check_model<Model, Elements, Backend, Communicator, Pool>());
  static_assert(CommunicatorLike<Communicator>,
                "nanovllm: the policy's Communicator must be movable and offer make(int), rank(), "
                "size(), all_reduce(matrix), all_gather_columns(part, whole) and abort(); see "
                "parallel/communicator.hpp and docs/policies.md");
  static_assert(check_executor<Executor, Network, Backend, Pool>());

  struct Rank {
    Rank(const Config& model, const StepLimits& limits_in, std::int64_t max_blocks_in,
         std::unique_ptr<Backend> backend_in, Communicator& comm_in)
        : comm(comm_in),
          backend(std::move(backend_in)),
          network(model, limits_in, *backend, comm_in),
          limits(limits_in),
          max_blocks(max_blocks_in) {
      make_executor();
    }

    void make_executor() { executor.emplace(network, *backend, limits, max_blocks); }

    Communicator& comm;
    std::unique_ptr<Backend> backend;
    Network network;
    StepLimits limits;
    std::int64_t max_blocks;
    std::optional<Pool> kv;
    std::optional<Executor> executor;  // last: graphs go before what they use
  };

  explicit RankGroup(const RunnerConfig& config)
      : config_(config), comms_(make_communicators(config)), ranks_(comms_.size()) {}

  /// Ranks of this process.
  [[nodiscard]] int size() const { return static_cast<int>(comms_.size()); }

  [[nodiscard]] Rank& operator[](int r) const { return *ranks_[static_cast<std::size_t>(r)]; }

  /// Makes rank r of this process, on its thread, with its device being the current one.
  Rank& make(int r, const Config& model, std::unique_ptr<Backend> backend) {
    attach(r, *backend);
    auto& place = ranks_[static_cast<std::size_t>(r)];
    const StepLimits& limits = config_.limits;
    place =
        std::make_unique<Rank>(model, limits, ceil_div(limits.max_model_len, config_.block_size),
                               std::move(backend), comm(r));
    return *place;
  }

  /// Calls `task(rank)` on the thread of rank r, with its device being the current one and its
  /// communicator held.
  template <class Task>
  void on_rank(int r, const Task& task) {
    Rank& rank = (*this)[r];
    const auto active = rank.backend->activate();
    if constexpr (requires { rank.comm.hold(); }) {
      const auto held = rank.comm.hold();
      task(rank);
    } else {
      task(rank);
    }
  }

  /// Makes a new group of communicators, to be attached. The executors must be gone.
  void renew_communicators() {
    abort();
    std::vector<Communicator> fresh = Communicator::make(config_.num_ranks);
    for (std::size_t i = 0; i < comms_.size(); ++i) comms_[i] = std::move(fresh[i]);
  }

  /// Joins rank r's communicator with its device.
  void attach(int r, Backend& backend) {
    if constexpr (requires { comm(r).attach(backend); }) comm(r).attach(backend);
  }

  /// Called by a rank while it handles the error that it cannot recover from.
  void release_others() {
    if (config_.num_ranks == 1) return;
    try {
      if (config_.processes) tell_failure(*config_.processes);
    } catch (...) {  // no memory for the words
    }
    abort();
  }

  /// Ends what the ranks of this process wait for. From any thread.
  void abort() {
    for (Communicator& end : comms_) end.abort();
  }

  /// Whether the step in `slot` is done on rank r. Throws when it has failed.
  [[nodiscard]] bool is_done([[maybe_unused]] int r, [[maybe_unused]] int slot) const {
    if constexpr (AsyncExecutorLike<Executor>) return (*this)[r].executor->is_done(slot);
    return true;
  }

 private:
  [[nodiscard]] Communicator& comm(int r) { return comms_[static_cast<std::size_t>(r)]; }

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

  RunnerConfig config_;
  std::vector<Communicator> comms_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace nanovllm
