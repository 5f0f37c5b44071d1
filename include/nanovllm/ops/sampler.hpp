#pragma once
/// Contract of `sample`: logits to token ids and log-probabilities.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/sampling_batch.hpp"

namespace nanovllm {

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
