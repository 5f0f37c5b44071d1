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

/// What a step's sampled sequences got, in the plan's order. Valid until the next launch but one.
struct StepResults {
  VectorView<const TokenId> tokens;      ///< [samples]
  VectorView<const float> logprobs;      ///< [samples]; meaningful where logprobs were asked for
  MatrixView<const TokenId> top_tokens;  ///< [samples, ≥ max num_logprobs]
  MatrixView<const float> top_logprobs;  ///< like top_tokens
};

/// Owner of one model on all its ranks.
///
/// `launch` hands over a step and `wait` gives the results of the oldest that was launched. Up to
/// two steps may be under way, so that one can be planned while the other is computed; steps are
/// computed in the order of their launches. The CPU computes a step inside `launch`.
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

  /// Begins a step. `inputs` may be changed or go as soon as this returns. Its tokens may be those
  /// that the step launched just before draws (`StepInputs::has_pending_tokens`).
  ///
  /// What goes wrong in the step is thrown by its `wait`. A step launched while one that failed is
  /// still under way fails with it, for it may build on what that one did not compute.
  void launch(const StepInputs& inputs) {
    check(num_launched_ - num_finished_ < 2, "launch: two steps are under way, wait for the first");
    const Draws& before = draws_[(num_launched_ + 1) % 2];
    Draws& draws = draws_[num_launched_ % 2];
    draws.error = num_launched_ == num_finished_ ? nullptr : before.error;
    ++num_launched_;
    if (draws.error) return;
    try {
      compute(inputs, before, draws);
    } catch (...) {
      draws.error = std::current_exception();
    }
  }

  /// Ends the oldest step under way and returns its results. Throws what the first failing rank
  /// threw; the step has ended then, too.
  StepResults wait() {
    check(num_finished_ < num_launched_, "wait: no step is under way");
    const Draws& draws = draws_[num_finished_++ % 2];
    if (draws.error) std::rethrow_exception(draws.error);
    return draws.results();
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
          network(model,
                  {.max_tokens = config.max_tokens,
                   .max_context = config.max_context,
                   .max_samples = config.max_samples},
                  backend, comm),
          logits(static_cast<std::size_t>(config.max_samples * network.padded_vocab_size())) {}

    Backend backend;
    Network network;
    typename Backend::template Buffer<float> logits;  // [max_samples, padded vocab]
    std::optional<Pool> kv;
  };

  /// What a step draws.
  struct Draws {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;
    std::vector<TokenId> top_tokens;
    std::vector<float> top_logprobs;
    std::int64_t num_top = 0;
    std::exception_ptr error;

    void resize(std::int64_t num_samples, std::int64_t top) {
      num_top = top;
      tokens.resize(static_cast<std::size_t>(num_samples));
      logprobs.resize(static_cast<std::size_t>(num_samples));
      top_tokens.resize(static_cast<std::size_t>(num_samples * top));
      top_logprobs.resize(static_cast<std::size_t>(num_samples * top));
    }

    [[nodiscard]] StepResults results() const {
      const auto m = static_cast<std::int64_t>(tokens.size());
      return {.tokens = {tokens.data(), {m}},
              .logprobs = {logprobs.data(), {m}},
              .top_tokens = {top_tokens.data(), {m, num_top}},
              .top_logprobs = {top_logprobs.data(), {m, num_top}}};
    }
  };

  void on_all_ranks(const std::function<void(int)>& task) {
    threads_.run(task, [this](int r) { comms_[static_cast<std::size_t>(r)].abort(); });
  }

  void compute(const StepInputs& inputs, const Draws& before, Draws& draws) {
    const std::int64_t m = inputs.num_samples();
    check<ShapeError>(m <= config_.max_samples, "run: at most ", config_.max_samples,
                      " samples a step, got ", m);
    draws.resize(m, inputs.max_logprobs());
    ForwardInputs forward = inputs.forward_inputs();
    if (inputs.has_pending_tokens()) forward.tokens = resolve(forward.tokens, before);
    on_all_ranks([&](int r) {
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      const MatrixView<float> logits(rank.logits.data(), {m, rank.network.padded_vocab_size()});
      rank.network.forward(forward, *rank.kv, logits);
      if (r == 0 && m > 0) sample(rank, inputs, logits, draws);
    });
  }

  /// `tokens` with those filled in that the step before drew.
  VectorView<const TokenId> resolve(VectorView<const TokenId> tokens, const Draws& before) {
    resolved_.assign(tokens.data, tokens.data + tokens.extent(0));
    for (TokenId& token : resolved_) {
      if (!is_pending(token)) continue;
      const auto sample = static_cast<std::size_t>(pending_sample(token));
      check(sample < before.tokens.size(), "launch: a token is to be what sample ", sample,
            " of the step before draws, but that has ", before.tokens.size(), " samples");
      token = before.tokens[sample];
    }
    return {resolved_.data(), tokens.extents};
  }

  /// All ranks have the same logits; rank 0 draws for all.
  void sample(Rank& rank, const StepInputs& inputs, MatrixView<float> logits, Draws& draws) {
    const std::int64_t m = inputs.num_samples(), top = draws.num_top;
    logits.extents[1] = rank.network.vocab_size();
    rank.backend.sample(SampleArgs{.logits = logits,
                                   .rows = inputs.rows(),
                                   .banned_starts = inputs.banned_starts(),
                                   .banned_tokens = inputs.banned_tokens(),
                                   .tokens = {draws.tokens.data(), {m}},
                                   .logprobs = {draws.logprobs.data(), {m}},
                                   .top_tokens = {draws.top_tokens.data(), {m, top}},
                                   .top_logprobs = {draws.top_logprobs.data(), {m, top}}});
  }

  RunnerConfig config_;
  std::vector<Communicator> comms_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::array<Draws, 2> draws_;  // of the last two steps, by launch
  std::uint64_t num_launched_ = 0;
  std::uint64_t num_finished_ = 0;
  std::vector<TokenId> resolved_;
  RankThreads threads_;  // last: joined before what its threads use is gone
};

}  // namespace nanovllm
