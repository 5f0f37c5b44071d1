#pragma once
/// The part of an engine's ranks that has an EAGLE-3 head.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/step/rank_part.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/eagle3/chains.hpp"
#include "nanovllm/with/speculation/eagle3/config.hpp"
#include "nanovllm/with/speculation/eagle3/head.hpp"
#include "nanovllm/with/speculation/eagle3/ops.hpp"

namespace nanovllm {

/// What a step has computed of one sequence, by its place in the plan.
struct Eagle3Rows {
  std::size_t place = 0;
  std::int32_t num_rows = 0;  ///< of the step, those of refused guesses included
  Eagle3Request request{};    ///< without `first_row`
};

/// One rank's part, whatever its model and backend are. Every rank has the whole head and gives the
/// same drafts.
class Eagle3Part : public RankPart {
 public:
  /// Stores the pairs of sequences of the last step, whose residual streams are still there, and
  /// drafts: a list of `num_drafts` tokens for each, valid until the next call.
  [[nodiscard]] virtual const std::vector<std::vector<TokenId>>& draft(
      std::span<const Eagle3Rows> rows) = 0;
};

/// Its head has the elements of the network's activations, in whatever format its weights are.
template <class Network, class Backend>
class Eagle3PartOf final : public Eagle3Part {
  using HeadElements = Elements<typename Network::Activation>;

 public:
  /// Reads the head of `files`. `network` keeps the streams that it needs from now on.
  /// @param own  the head's backend, where it cannot be the network's, or null.
  Eagle3PartOf(const Checkpoint& files, Eagle3Config config, const RunnerConfig& runner,
               std::int32_t max_drafts, Network& network, Backend& backend,
               std::unique_ptr<Backend> own)
      : network_(network),
        own_(std::move(own)),
        backend_(own_ ? *own_ : backend),
        limits_(runner.limits),
        block_size_(runner.block_size),
        max_drafts_(max_drafts),
        head_(config, target_of(network), limits_, backend_) {
    if (own_) own_->reserve(head_.reserve_args());
    head_.weights().load(files, backend_);
    network_.taps().open(head_.stream_layers(), network_.num_layers());
    make_chains(1);
  }

  [[nodiscard]] static Eagle3Target target_of(const Network& network) {
    return {network.hidden_size(), network.num_layers(), network.vocab_size()};
  }

  void profile_run() override {
    if constexpr (Backend::kAsynchronous) {
      const auto count =
          static_cast<std::size_t>(std::min(limits_.max_num_batched_tokens, limits_.max_model_len));
      const std::vector<TokenId> next(count);
      const std::vector<BlockId> blocks(count / static_cast<std::size_t>(block_size_) + 1);
      const Eagle3Request request{.next = next, .blocks = blocks, .num_drafts = 1};
      draft_of({&request, 1}, static_cast<std::int64_t>(count));
    }
  }
  [[nodiscard]] std::int64_t block_bytes() const override {
    return head_.kv_shape(block_size_).block_bytes();
  }
  void set_num_blocks(std::int32_t num_blocks) override { make_chains(num_blocks); }

  /// Blocks within the pool are copied as the network's are. What comes from outside of it does not
  /// come here: drafts for such a sequence are worse.
  void begin_step(const StepInputs& inputs) override {
    row_ends_.assign(inputs.row_ends().begin(), inputs.row_ends().end());
    num_rows_ = inputs.num_tokens();
    const auto copies = array_at<BlockCopy>(inputs.bytes().data(), inputs.fields().block_copies);
    chains_->copy_blocks({copies.data, static_cast<std::size_t>(copies.extent(0))});
  }

  [[nodiscard]] const std::vector<std::vector<TokenId>>& draft(
      std::span<const Eagle3Rows> rows) override {
    requests_.clear();
    for (const Eagle3Rows& one : rows) {
      requests_.push_back(one.request);
      requests_.back().first_row = row_ends_.at(one.place) - one.num_rows;
    }
    draft_of(requests_, num_rows_);
    return drafts_;
  }

 private:
  void make_chains(std::int32_t num_blocks) {
    chains_.reset();
    chains_.emplace(head_, backend_, limits_, block_size_, num_blocks, max_drafts_);
  }

  /// @param num_rows  of the step.
  void draft_of(std::span<const Eagle3Request> requests, std::int64_t num_rows) {
    chains_->draft(network_.taps().rows(num_rows), requests, network_, drafts_);
    // Of two backends the next step would not wait for the other one's.
    if constexpr (requires { backend_.synchronize(); }) {
      if (own_) own_->synchronize();
    }
  }

  Network& network_;
  std::unique_ptr<Backend> own_;
  Backend& backend_;
  StepLimits limits_;
  std::int64_t block_size_;
  std::int32_t max_drafts_;
  Eagle3Head<HeadElements, Backend> head_;
  std::optional<Eagle3Chains<HeadElements, Backend>> chains_;
  std::vector<std::int32_t> row_ends_;  // of the last step's sequences, in the plan's order
  std::int64_t num_rows_ = 0;
  std::vector<Eagle3Request> requests_;
  std::vector<std::vector<TokenId>> drafts_;
};

/// What makes them, see NoRankParts. The head is that of `SpeculativeConfig::model`.
struct Eagle3Parts {
  template <class Rank>
  [[nodiscard]] static std::unique_ptr<RankPart> make(Rank& rank,
                                                      const typename Rank::Config& model,
                                                      const RunnerConfig& config,
                                                      const BackendConfig& made_from) {
    using Network = typename Rank::Network;
    using Backend = typename Rank::Backend;
    check<ConfigError>(config.processes == nullptr,
                       "SpeculativeConfig::method eagle3 needs all ranks in one process, but "
                       "EngineConfig::processes is set");
    if constexpr (!kHasStreams<Network>) {
      throw ConfigError(
          "SpeculativeConfig::method eagle3: this model gives no residual streams to draft from");
    } else if constexpr (!RunsOp<Backend, MapTokensArgs>) {
      throw ConfigError(
          "SpeculativeConfig::method eagle3: the backend has no op 'MapTokensArgs', which heads "
          "need; see with/speculation/eagle3/ops.hpp");
    } else {
      const auto options = config.extras.of<SpeculativeConfig>();
      check<ConfigError>(!options.model.empty(),
                         "SpeculativeConfig::model must be the directory of an EAGLE-3 head for "
                         "the method eagle3, and is empty");
      return naming(options.model.string(), [&]() -> std::unique_ptr<RankPart> {
        const Checkpoint files(options.model);
        Eagle3Config head = Eagle3Config::load(files);
        static_cast<void>(
            stream_layers(head, Eagle3PartOf<Network, Backend>::target_of(rank.network)));
        auto own = backend_for(head, rank, model, config, made_from);
        return std::make_unique<Eagle3PartOf<Network, Backend>>(
            files, std::move(head), config, options.num_speculative_tokens, rank.network,
            *rank.backend, std::move(own));
      });
    }
  }

 private:
  template <class Network>
  static constexpr bool kHasStreams = requires(Network& network) {
    network.taps().open(std::vector<std::int64_t>{}, std::int64_t{});
    network.weights().embedding();
    network.lm_head().communicator();
    network.hidden_size();
  };

  /// `make()`; what it throws names the head.
  template <class Make>
  [[nodiscard]] static auto naming(const std::string& head, const Make& make) {
    const auto named = [&](const std::exception& error) {
      return concat("SpeculativeConfig::model, '", head, "': ", error.what());
    };
    try {
      return make();
    } catch (const LoadError& error) {
      throw LoadError(named(error));
    } catch (const ConfigError& error) {
      throw ConfigError(named(error));
    }
  }

  /// A backend for a head whose heads are not as those of the rank's share of `model`, where ops
  /// have scratch memory for one shape; null if it is the rank's. Throws ConfigError where the head
  /// would need an embedding of its own.
  template <class Rank, class Model>
  [[nodiscard]] static std::unique_ptr<typename Rank::Backend> backend_for(
      const Eagle3Config& head, Rank& rank, const Model& model, const RunnerConfig& config,
      const BackendConfig& made_from) {
    using Backend = typename Rank::Backend;
    if constexpr (Backend::kAsynchronous) {
      std::int64_t num_heads = 0;  // of the rank
      if constexpr (requires { std::int64_t{model.num_attention_heads}; })
        num_heads = model.num_attention_heads / config.num_ranks;
      if (head.layer.num_attention_heads == num_heads &&
          head.layer.head_dim == rank.network.head_dim() &&
          head.layer.num_key_value_heads == rank.network.num_kv_heads())
        return nullptr;
      bool is_divided = config.num_ranks > 1 && !head.has_embedding;
      if constexpr (requires { rank.network.weights().has_whole_embedding(); })
        is_divided = is_divided && !rank.network.weights().has_whole_embedding();
      check<ConfigError>(!is_divided, "the head has no 'embed_tokens.weight', and the target's is ",
                         "divided among ", config.num_ranks, " ranks, which this head of ",
                         head.layer.num_attention_heads, " heads cannot ask for it; a rank has ",
                         num_heads, " heads");
      return std::make_unique<Backend>(made_from);
    } else {
      return nullptr;
    }
  }
};

}  // namespace nanovllm
