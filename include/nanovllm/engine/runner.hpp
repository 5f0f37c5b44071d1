#pragma once
/// Runs steps on every rank: weights, KV pool, forward pass and sampler, without a word of queues.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/config.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/rank_threads.hpp"

namespace nanovllm {

/// Sizes that a runner allocates for.
struct RunnerConfig {
  int num_ranks = 1;
  int num_threads = 0;           ///< of all ranks together; 0 for all of the machine's
  std::int64_t max_tokens = 0;   ///< a step
  std::int64_t max_context = 0;  ///< a sequence
  std::int64_t max_samples = 0;  ///< a step
};

/// What a step's sampled sequences got, in the plan's order. Valid until the next step.
struct StepResults {
  VectorView<const TokenId> tokens;      ///< [samples]
  VectorView<const float> logprobs;      ///< [samples]; meaningful where logprobs were asked for
  MatrixView<const TokenId> top_tokens;  ///< [samples, ≥ max num_logprobs]
  MatrixView<const float> top_logprobs;  ///< like top_tokens
};

/// Owner of one model on all its ranks. Every call drives all ranks and returns when they are done.
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
    const BackendConfig backend{.num_threads = std::max(1, num_threads / config.num_ranks)};
    ranks_.resize(static_cast<std::size_t>(config.num_ranks));
    on_all_ranks([&](int r) {
      auto rank =
          std::make_unique<Rank>(model, config, backend, comms_[static_cast<std::size_t>(r)]);
      fill(rank->network.weights(), rank->backend, r);
      ranks_[static_cast<std::size_t>(r)] = std::move(rank);
    });
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

  /// Bytes that one rank's KV pool may count on: an equal share of what the backend has left.
  [[nodiscard]] std::size_t available_memory() const {
    return ranks_[0]->backend.available_memory() / ranks_.size();
  }

  /// Makes every rank's KV pool of `num_blocks` blocks.
  void allocate_kv(std::int32_t num_blocks) {
    on_all_ranks(
        [&](int r) { ranks_[static_cast<std::size_t>(r)]->kv.emplace(kv_shape(), num_blocks); });
  }

  /// Computes one step. Throws what the first failing rank threw.
  StepResults run(const StepInputs& inputs) {
    on_all_ranks([&](int r) {
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      const std::int64_t m = inputs.num_samples(), width = rank.network.padded_vocab_size();
      check<ShapeError>(m <= config_.max_samples, "run: at most ", config_.max_samples,
                        " samples a step, got ", m);
      const MatrixView<float> logits(rank.logits.data(), {m, width});
      rank.network.forward(inputs.forward_inputs(), *rank.kv, logits);
      if (r == 0 && m > 0) sample(rank, inputs, logits);
    });
    const std::int64_t m = inputs.num_samples();
    return {.tokens = {tokens_.data(), {m}},
            .logprobs = {logprobs_.data(), {m}},
            .top_tokens = {top_tokens_.data(), {m, inputs.max_logprobs()}},
            .top_logprobs = {top_logprobs_.data(), {m, inputs.max_logprobs()}}};
  }

  /// Computes one step and copies the logits of its wanted rows to `out`, [m, vocab_size], without
  /// sampling. For evaluation; rows are limited by max_samples.
  void run_logits(const StepInputs& inputs, MatrixView<float> out) {
    on_all_ranks([&](int r) {
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      const std::int64_t m = inputs.num_samples(), width = rank.network.padded_vocab_size();
      check<ShapeError>(m <= config_.max_samples, "run_logits: at most ", config_.max_samples,
                        " rows a step, got ", m);
      const MatrixView<float> logits(rank.logits.data(), {m, width});
      rank.network.forward(inputs.forward_inputs(), *rank.kv, logits);
      if (r != 0) return;
      check_shape("run_logits", "out", out, {m, rank.network.vocab_size()});
      for (std::int64_t i = 0; i < m; ++i) std::copy_n(logits.at(i), out.extent(1), out.at(i));
    });
  }

  [[nodiscard]] int num_ranks() const { return config_.num_ranks; }
  [[nodiscard]] const Backend& backend() const { return ranks_[0]->backend; }

 private:
  struct Rank {
    Rank(const ModelConfig& model, const RunnerConfig& config, const BackendConfig& backend_config,
         Communicator& comm)
        : backend(backend_config),
          network(model, config.max_tokens, config.max_context, backend, comm),
          logits(static_cast<std::size_t>(config.max_samples * network.padded_vocab_size())) {}

    Backend backend;
    Network network;
    typename Backend::template Buffer<float> logits;  // [max_samples, padded vocab]
    std::optional<Pool> kv;
  };

  void on_all_ranks(const std::function<void(int)>& task) {
    threads_.run(task, [this](int r) { comms_[static_cast<std::size_t>(r)].abort(); });
  }

  /// All ranks have the same logits; rank 0 draws for all.
  void sample(Rank& rank, const StepInputs& inputs, MatrixView<float> logits) {
    const std::int64_t m = inputs.num_samples(), top = inputs.max_logprobs();
    tokens_.resize(static_cast<std::size_t>(m));
    logprobs_.resize(static_cast<std::size_t>(m));
    top_tokens_.resize(static_cast<std::size_t>(m * top));
    top_logprobs_.resize(static_cast<std::size_t>(m * top));
    logits.extents[1] = rank.network.vocab_size();
    rank.backend.sample(SampleArgs{.logits = logits,
                                   .rows = inputs.rows(),
                                   .banned_starts = inputs.banned_starts(),
                                   .banned_tokens = inputs.banned_tokens(),
                                   .tokens = {tokens_.data(), {m}},
                                   .logprobs = {logprobs_.data(), {m}},
                                   .top_tokens = {top_tokens_.data(), {m, top}},
                                   .top_logprobs = {top_logprobs_.data(), {m, top}}});
  }

  RunnerConfig config_;
  std::vector<Communicator> comms_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<TokenId> tokens_;
  std::vector<float> logprobs_;
  std::vector<TokenId> top_tokens_;
  std::vector<float> top_logprobs_;
  RankThreads threads_;  // last: joined before what its threads use is gone
};

}  // namespace nanovllm
