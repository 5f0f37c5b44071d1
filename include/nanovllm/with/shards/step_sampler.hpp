#pragma once
/// Draws by shard: where ranks share the vocabulary and no row needs whole rows, each rank draws
/// from its own.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/with/shards/cpu/shard_draw.hpp"
#include "nanovllm/with/shards/shard_draw.hpp"

namespace nanovllm {

/// A network that can leave each rank with its own logits: `forward` takes logits of
/// `lm_head().part_width()` columns, too, and then writes those of this rank alone. Those of rank r
/// begin at token r · part_width(). `lm_head().communicator()` joins the ranks.
template <class N>
concept SharesVocabulary = requires(N& network, MatrixView<const float> part,
                                    MatrixView<float> whole) {
  { network.lm_head().part_width() } -> std::same_as<std::int64_t>;
  network.lm_head().communicator().all_gather_columns(part, whole);
};

/// Ranks of `Network` can draw from shards of the vocabulary on `Backend`.
template <class Network, class Backend>
concept DrawsByShard = SharesVocabulary<Network> && requires(Network& network) {
  requires !std::same_as<std::remove_cvref_t<decltype(network.lm_head().communicator())>, Single>;
} && RunsOp<Backend, SurveyShardArgs> && RunsOp<Backend, DrawShardArgs> &&
    RunsOp<Backend, PickWinnerArgs>;

/// One executor's, of which way 1 is to draw by shard; others draw from whole rows alone.
template <class Network, class Backend>
class ShardSampler : public StepSampler<Network, Backend> {
 public:
  using StepSampler<Network, Backend>::StepSampler;
};
template <class Network, class Backend>
requires DrawsByShard<Network, Backend>
class ShardSampler<Network, Backend> {
  using Buffer = typename Backend::template Buffer<float>;

 public:
  ShardSampler(Network& network, Backend& backend, std::int64_t max_rows)
      : network_(network),
        backend_(backend),
        num_ranks_(network.lm_head().communicator().size()),
        logits_(size(max_rows * network.padded_vocab_size())),
        survey_(size(has_shards() ? max_rows * kSurveyWords : 0)),
        surveys_(size(has_shards() ? max_rows * num_ranks_ * kSurveyWords : 0)),
        winner_(size(has_shards() ? max_rows * kWinnerWords : 0)),
        winners_(size(has_shards() ? max_rows * num_ranks_ * kWinnerWords : 0)) {}

  [[nodiscard]] int num_ways() const { return has_shards() ? 2 : 1; }
  /// 1 where shards can draw all rows.
  template <class Inputs>
  [[nodiscard]] int way_of(const Inputs& inputs) const {
    const auto by_shard = [](const SamplingRow& row, bool has_bans) {
      return is_drawn_by_shard(row, has_bans);
    };
    return has_shards() && !inputs.is_deferred() && inputs.all_rows(by_shard) ? 1 : 0;
  }

  [[nodiscard]] MatrixView<float> logits(std::int64_t m, int way) {
    return {logits_.data(),
            {m, way == 1 ? network_.lm_head().part_width() : network_.padded_vocab_size()}};
  }

  void run(SampleArgs draw, int way) {
    if (way == 1) return run_by_shard(draw);
    draw.logits.extents[1] = network_.vocab_size();
    backend_.run(draw);
  }

 private:
  [[nodiscard]] bool has_shards() const {
    return num_ranks_ > 1 && num_ranks_ <= kMaxShards &&
           network_.lm_head().part_width() % kShardAlignment == 0;
  }
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  void run_by_shard(SampleArgs& draw) {
    auto& comm = network_.lm_head().communicator();
    const std::int64_t m = draw.logits.extent(0), ranks = num_ranks_, rank = comm.rank();
    const std::int64_t width = network_.lm_head().part_width(), vocab = network_.vocab_size();
    draw.logits.extents[1] = std::clamp<std::int64_t>(vocab - rank * width, 0, width);
    const ShardLogits logits{
        .values = draw.logits, .first_token = rank * width, .vocab_size = vocab};
    const MatrixView<float> surveys(surveys_.data(), {m, draw.plain ? 0 : ranks * kSurveyWords});
    if (!draw.plain) {
      const MatrixView<float> survey(survey_.data(), {m, kSurveyWords});
      backend_.run(SurveyShardArgs{.logits = logits, .batch = draw.batch, .survey = survey});
      comm.all_gather_columns(MatrixView<const float>(survey), surveys);
    }
    const MatrixView<float> winner(winner_.data(), {m, kWinnerWords});
    const MatrixView<float> winners(winners_.data(), {m, ranks * kWinnerWords});
    backend_.run(DrawShardArgs{.logits = logits,
                               .batch = draw.batch,
                               .shard = rank,
                               .surveys = surveys,
                               .winner = winner});
    comm.all_gather_columns(MatrixView<const float>(winner), winners);
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
  std::int64_t num_ranks_;
  Buffer logits_;            // [max_rows, padded vocab]
  Buffer survey_, surveys_;  // this rank's, and those of all
  Buffer winner_, winners_;
};

/// A policy's `Draws`: each rank draws from its part of the vocabulary where it can.
struct VocabShards {
  template <class Network, class Backend>
  using Sampler = ShardSampler<Network, Backend>;
};

}  // namespace nanovllm
