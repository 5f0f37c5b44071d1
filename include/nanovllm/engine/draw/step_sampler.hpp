#pragma once
/// How an executor draws a step: from whole rows of logits or, where ranks share the vocabulary and
/// no row needs whole rows, each rank from its shard.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/with/shards/shard_draw.hpp"
#include "nanovllm/with/shards/vocab_shard.hpp"

namespace nanovllm {

/// Ranks of `Network` can draw from shards of the vocabulary on `Backend`.
template <class Network, class Backend>
concept DrawsByShard =
    SharesVocabulary<Network> && !std::same_as<VocabCommunicator<Network>, Single> &&
    RunsOp<Backend, SurveyShardArgs> && RunsOp<Backend, DrawShardArgs> &&
    RunsOp<Backend, PickWinnerArgs>;

/// One executor's. Without `DrawsByShard` all draws are from whole rows.
template <class Network, class Backend>
class StepSampler {
 public:
  /// For steps of up to `max_rows` rows; `network` and `backend` must outlive this.
  StepSampler(Network& network, Backend& backend, std::int64_t max_rows)
      : network_(network),
        backend_(backend),
        logits_(static_cast<std::size_t>(max_rows * network.padded_vocab_size())) {}

  /// Whether there are draws by shard.
  [[nodiscard]] static constexpr bool has_shards() { return false; }

  /// What `forward` is to write for a step of `m` rows: whole rows, or this rank's shard of them.
  [[nodiscard]] MatrixView<float> logits(std::int64_t m, bool /*by_shard*/) {
    return {logits_.data(), {m, network_.padded_vocab_size()}};
  }

  /// Draws as `draw` says from `logits(m, by_shard)`: all ranks together, and the same.
  void run(SampleArgs draw, bool /*by_shard*/) {
    draw.logits.extents[1] = network_.vocab_size();
    backend_.run(draw);
  }

 private:
  Network& network_;
  Backend& backend_;
  typename Backend::template Buffer<float> logits_;  // [max_rows, padded vocab]
};

template <class Network, class Backend>
requires DrawsByShard<Network, Backend>
class StepSampler<Network, Backend> {
  using Buffer = typename Backend::template Buffer<float>;

 public:
  StepSampler(Network& network, Backend& backend, std::int64_t max_rows)
      : network_(network),
        backend_(backend),
        shard_(network.lm_head().shard()),
        logits_(size(max_rows * network.padded_vocab_size())),
        survey_(size(has_shards() ? max_rows * kSurveyWords : 0)),
        surveys_(size(has_shards() ? max_rows * shard_.num_ranks * kSurveyWords : 0)),
        winner_(size(has_shards() ? max_rows * kWinnerWords : 0)),
        winners_(size(has_shards() ? max_rows * shard_.num_ranks * kWinnerWords : 0)) {}

  [[nodiscard]] bool has_shards() const {
    return shard_.num_ranks > 1 && shard_.num_ranks <= kMaxShards &&
           shard_.num_columns % kShardAlignment == 0;
  }

  [[nodiscard]] MatrixView<float> logits(std::int64_t m, bool by_shard) {
    return {logits_.data(), {m, by_shard ? shard_.num_columns : network_.padded_vocab_size()}};
  }

  void run(SampleArgs draw, bool by_shard) {
    if (by_shard) return run_by_shard(draw);
    draw.logits.extents[1] = network_.vocab_size();
    backend_.run(draw);
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  void run_by_shard(SampleArgs& draw) {
    const std::int64_t m = draw.logits.extent(0), ranks = shard_.num_ranks;
    draw.logits.extents[1] = shard_.num_tokens;
    const ShardLogits logits{.values = draw.logits,
                             .first_token = shard_.first_token,
                             .vocab_size = network_.vocab_size()};
    const MatrixView<float> surveys(surveys_.data(), {m, draw.plain ? 0 : ranks * kSurveyWords});
    if (!draw.plain) {
      const MatrixView<float> survey(survey_.data(), {m, kSurveyWords});
      backend_.run(SurveyShardArgs{.logits = logits, .batch = draw.batch, .survey = survey});
      network_.lm_head().exchange(survey, surveys);
    }
    const MatrixView<float> winner(winner_.data(), {m, kWinnerWords});
    const MatrixView<float> winners(winners_.data(), {m, ranks * kWinnerWords});
    backend_.run(DrawShardArgs{.logits = logits,
                               .batch = draw.batch,
                               .shard = shard_.rank,
                               .surveys = surveys,
                               .winner = winner});
    network_.lm_head().exchange(winner, winners);
    backend_.run(PickWinnerArgs{.rows = draw.batch.rows,
                                .surveys = surveys,
                                .winners = winners,
                                .tokens = draw.tokens,
                                .logprobs = draw.logprobs,
                                .top_tokens = draw.top_tokens,
                                .top_logprobs = draw.top_logprobs});
  }

  Network& network_;
  Backend& backend_;
  VocabShard shard_;
  Buffer logits_;            // [max_rows, padded vocab]
  Buffer survey_, surveys_;  // this rank's, and those of all
  Buffer winner_, winners_;
};

}  // namespace nanovllm
