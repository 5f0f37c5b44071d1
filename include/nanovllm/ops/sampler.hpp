#pragma once
/// Contract of `sample`: logits to token ids and log-probabilities, and what it reads in addition
/// to the logits.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/batch_field.hpp"

namespace nanovllm {

/// How one row is sampled. Plain data: rows are copied to the device as they are.
struct SamplingRow {
  float temperature = 1.f;  ///< 0 is greedy
  std::int32_t top_k = 0;   ///< ≤ 0 keeps all
  float top_p = 1.f;        ///< ≥ 1 keeps all
  float min_p = 0.f;        ///< ≤ 0 keeps all
  std::uint64_t seed = 0;
  std::uint64_t position = 0;      ///< index in its sequence of the token to be drawn
  std::int32_t num_logprobs = -1;  ///< -1: none; n ≥ 0: the sampled token's and the n most likely
};

/// Whether the row is greedy or drawn from the whole vocabulary, and wants no log-probabilities.
/// There is no vocabulary here, so that any top_k counts as a filter.
[[nodiscard]] constexpr bool is_plain(const SamplingRow& row) {
  const bool has_filter = row.top_k > 0 || row.top_p < 1 || row.min_p > 0;
  return row.num_logprobs < 0 && !(row.temperature > 0 && has_filter);
}

/// The part of a step's fields that is for the sampler: one row a row of logits.
template <template <class Field> class Stored>
struct SamplingFields {
  Stored<PerSample<SamplingRow>> rows;
  Stored<PerSampleList<TokenId>> banned;  ///< tokens that must not be drawn

  /// A padded row is sampled greedily.
  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    visit(SamplingRow{.temperature = 0.f}, batches.rows...);
    visit(TokenId{0}, batches.banned...);
  }
};

static_assert(visits_every_field<SamplingFields>());

/// Views of one step's in the backend's memory.
using SamplingBatch = SamplingFields<ViewOf>;

/// One token for every row.
///
/// 1. Logits of the row's banned tokens become -inf.
/// 2. temperature = 0: the largest logit wins, the lowest id among equals.
/// 3. Otherwise logits are divided by the temperature and filtered, in this order: top_k keeps
///    everything ≥ the k-th largest (ties stay); top_p keeps, of what is left and renormalised,
///    the shortest prefix in descending order (lower id first among equals) whose mass reaches
///    top_p, at least one token; min_p keeps what has at least min_p times the largest probability.
/// 4. The token is drawn by the Gumbel-max rule: argmax over the kept tokens of
///    logit / temperature - log(-log1p(-u)), u = to_unit_interval(sampling_bits(seed, position,
///    id)). A draw therefore depends on nothing but the row's own logits, seed and position.
/// Log-probabilities are those of the model: log_softmax of the unedited logits, before bans,
/// temperature and filters; the most likely come in descending order, lower id first among equals.
struct SampleArgs {
  MatrixView<float> logits;        ///< [rows, vocab]; scratch, destroyed
  SamplingBatch batch;             ///< how each row is sampled
  VectorView<TokenId> tokens;      ///< [rows], out
  VectorView<float> logprobs;      ///< [rows], out; written where num_logprobs ≥ 0
  MatrixView<TokenId> top_tokens;  ///< [rows, ≥ the largest num_logprobs], out
  MatrixView<float> top_logprobs;  ///< like top_tokens, out
  /// The caller's promise that all rows are plain (`is_plain`) and none has banned tokens. Backends
  /// may take a shorter way then; tokens are the same bit for bit. Not checked.
  bool plain = false;
};

/// Throws ShapeError when the operands do not fit together.
inline void validate(const SampleArgs& args) {
  const std::int64_t n = args.logits.extent(0);
  check<ShapeError>(n == 0 || args.logits.extent(1) > 0, "sample: 'logits' must have a vocabulary");
  check_shape("sample", "rows", args.batch.rows, {n});
  check_shape("sample", "banned.starts", args.batch.banned.starts, {n + 1});
  check_shape("sample", "tokens", args.tokens, {n});
  check_shape("sample", "logprobs", args.logprobs, {n});
  check_shape("sample", "top_tokens", args.top_tokens, {n, -1});
  check_shape("sample", "top_logprobs", args.top_logprobs, args.top_tokens.extents);
}

}  // namespace nanovllm
