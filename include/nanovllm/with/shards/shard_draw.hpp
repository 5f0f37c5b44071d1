#pragma once
/// Contracts of the ops by which ranks that share a vocabulary draw: each looks at the logits of
/// its shard alone, and what it found is exchanged.
///
///     survey_shard   what filters and log-probabilities need of every shard    → exchanged
///     draw_shard     the token that wins in the shard, among what is kept      → exchanged
///     pick_winner    the token that wins; log-probabilities
///
/// Steps whose rows are all plain (`is_plain`) begin with draw_shard. Tokens are those of `sample`
/// of the whole rows (ops/sampler.hpp), whatever the number of shards; a prefix whose mass is
/// within 1e-13 of top_p may fall either way. Log-probabilities are within 1e-5, as those of
/// `sample`.
///
/// Messages are rows of 32-bit words in memory for floats; ids and counts are stored by their bits.

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// Tokens that a shard lists of a row: the largest top_k and number of log-probabilities.
inline constexpr std::int64_t kShardTop = 64;

/// The most shards.
inline constexpr std::int64_t kMaxShards = 16;

/// Shards begin at multiples of so many tokens.
inline constexpr std::int64_t kShardAlignment = 64;

/// Words of what a shard tells of a row, whose banned tokens have logits of -inf:
///
/// | word | |
/// |---|---|
/// | 0 | the largest logit; -inf without any above |
/// | 1 | with top_k: how many tokens equal the k-th in logit and are not among the first k |
/// | 2 + 2 i | logit of the i-th token: the larger first, the lower id first among equals |
/// | 3 + 2 i | its id; -1: there is none |
///
/// Listed are `num_listed(row)` tokens; the words of others are not written.
inline constexpr std::int64_t kSurveyWords = 2 + 2 * kShardTop;

/// Words of what wins a row in a shard: its logit, its id (-1: nothing may win), and in two words a
/// float64, of rows with log-probabilities the sum of e^(logit - the largest of all shards), or how
/// many logits are +inf when that is. The lower half of the float64 comes first.
inline constexpr std::int64_t kWinnerWords = 4;

/// How many tokens of a row shards list.
[[nodiscard]] constexpr std::int32_t num_listed(const SamplingRow& row) {
  std::int32_t count = row.num_logprobs > 0 ? row.num_logprobs : 0;
  if (row.temperature > 0 && row.top_k > count) count = row.top_k;
  return count;
}

/// Whether shards can draw the row. Otherwise it needs the whole logits: for top_p without top_k,
/// for a top_k or a number of log-probabilities above kShardTop, and for log-probabilities of a row
/// with banned tokens.
[[nodiscard]] constexpr bool is_drawn_by_shard(const SamplingRow& row, bool has_bans) {
  if (num_listed(row) > kShardTop || (has_bans && row.num_logprobs >= 0)) return false;
  return row.temperature == 0 || row.top_k > 0 || row.top_p >= 1;
}

/// A rank's logits of some rows.
struct ShardLogits {
  MatrixView<float> values;      ///< [rows, tokens of the shard, which may be none]; scratch
  std::int64_t first_token = 0;  ///< id of the first column, a multiple of kShardAlignment
  std::int64_t vocab_size = 0;   ///< tokens of all shards
};

/// What the shard tells of rows for which `is_drawn_by_shard`.
struct SurveyShardArgs {
  ShardLogits logits;
  SamplingBatch batch;       ///< banned tokens by their ids in the whole vocabulary
  MatrixView<float> survey;  ///< [rows, kSurveyWords], dense, out
};

/// What wins in the shard. With surveys it comes after `survey_shard` of the same rows, without
/// `sample` or another survey between: a backend may keep what it has found there.
struct DrawShardArgs {
  ShardLogits logits;
  SamplingBatch batch;
  std::int64_t shard = 0;  ///< index of this one
  MatrixView<const float>
      surveys;  ///< [rows, shards · kSurveyWords]; without columns rows are plain and have no bans
  MatrixView<float> winner;  ///< [rows, kWinnerWords], dense, out
};

/// The tokens, and log-probabilities as `sample` gives them.
struct PickWinnerArgs {
  VectorView<const SamplingRow> rows;
  MatrixView<const float> surveys;  ///< as above
  MatrixView<const float> winners;  ///< [rows, shards · kWinnerWords]
  VectorView<TokenId> tokens;       ///< [rows], out
  VectorView<float> logprobs;       ///< [rows], out; written where num_logprobs ≥ 0
  MatrixView<TokenId> top_tokens;   ///< [rows, ≥ the largest num_logprobs], out
  MatrixView<float> top_logprobs;   ///< like top_tokens, out
};

namespace detail {

inline void check_shard(const char* op, const ShardLogits& logits, const SamplingBatch& batch) {
  const std::int64_t n = logits.values.extent(0);
  check<ShapeError>(logits.first_token >= 0 && logits.first_token % kShardAlignment == 0, op,
                    ": a shard must begin at a multiple of ", kShardAlignment, ", got ",
                    logits.first_token);
  const std::int64_t size = logits.values.extent(1);
  check<ShapeError>(size == 0 || logits.first_token + size <= logits.vocab_size, op,
                    ": a shard of ", size, " tokens from ", logits.first_token,
                    " on must end within the vocabulary, ", logits.vocab_size);
  check_shape(op, "rows", batch.rows, {n});
  check_shape(op, "banned.starts", batch.banned.starts, {n + 1});
}

inline void check_surveys(const char* op, const MatrixView<const float>& surveys, std::int64_t n,
                          std::int64_t num_shards) {
  if (surveys.extent(1) > 0) check_shape(op, "surveys", surveys, {n, num_shards * kSurveyWords});
}

}  // namespace detail

/// Throws ShapeError when the operands do not fit together.
inline void validate(const SurveyShardArgs& args) {
  detail::check_shard("survey_shard", args.logits, args.batch);
  check_shape("survey_shard", "survey", args.survey, {args.logits.values.extent(0), kSurveyWords});
}
inline void validate(const DrawShardArgs& args) {
  const std::int64_t n = args.logits.values.extent(0);
  const std::int64_t num_shards = args.surveys.extent(1) / kSurveyWords;
  detail::check_shard("draw_shard", args.logits, args.batch);
  detail::check_surveys("draw_shard", args.surveys, n, num_shards);
  check<ShapeError>(num_shards <= kMaxShards, "draw_shard: at most ", kMaxShards, " shards, got ",
                    num_shards);
  check_shape("draw_shard", "winner", args.winner, {n, kWinnerWords});
}
inline void validate(const PickWinnerArgs& args) {
  const std::int64_t n = args.rows.extent(0), num_shards = args.winners.extent(1) / kWinnerWords;
  check<ShapeError>(num_shards >= 1 && num_shards <= kMaxShards, "pick_winner: 1 to ", kMaxShards,
                    " shards, got ", num_shards);
  check_shape("pick_winner", "winners", args.winners, {n, num_shards * kWinnerWords});
  detail::check_surveys("pick_winner", args.surveys, n, num_shards);
  check_shape("pick_winner", "tokens", args.tokens, {n});
  check_shape("pick_winner", "logprobs", args.logprobs, {n});
  check_shape("pick_winner", "top_tokens", args.top_tokens, {n, -1});
  check_shape("pick_winner", "top_logprobs", args.top_logprobs, args.top_tokens.extents);
}

}  // namespace nanovllm
