#pragma once
/// The vocabulary's two ends: tokens to rows, and rows to logits. Each rank has a shard of it, or
/// the whole table of embeddings.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/linear.hpp"

namespace nanovllm {

/// out[i] = the row of ids[i] in a table that begins with that of `first_id`, [n, hidden]; zeros
/// where it has none.
template <class Context>
void look_up(const Context& context, VectorView<const std::int32_t> ids,
             const typename Context::Table& table, typename Context::Rows out,
             std::int64_t first_id = 0) {
  context.backend.run(EmbeddingArgs<typename Context::Activation, typename Context::Table>{
      .tokens = ids, .table = &table, .first_token = static_cast<TokenId>(first_id), .out = out});
}

/// out[i] = the embedding of tokens[i], [n, hidden]. Of `weights`, see Decoder. A sum over ranks
/// follows unless every rank has the whole table.
template <class Context, class Weights>
void embed(const Context& context, VectorView<const TokenId> tokens, const Weights& weights,
           typename Context::Rows out) {
  if constexpr (requires { weights.has_whole_embedding(); }) {
    if (weights.has_whole_embedding()) return look_up(context, tokens, weights.embedding(), out);
  }
  look_up(context, tokens, weights.embedding(), out, weights.shard().first_token);
  context.comm.all_reduce(out);
}

/// Logits of some rows: every rank computes its shard of the vocabulary, and gathers the others'
/// where whole rows are wanted.
template <class Context>
class LmHead {
 public:
  using Communicator = typename Context::Communicator;

  /// For up to `max_rows` rows of logits of `vocab_size` tokens, of which each rank has
  /// `shard_rows`, padding included.
  LmHead(const Context& context, std::int64_t max_rows, std::int64_t vocab_size,
         std::int64_t shard_rows)
      : context_(context),
        max_rows_(max_rows),
        vocab_size_(vocab_size),
        shard_rows_(shard_rows),
        part_(static_cast<std::size_t>(context.comm.size() == 1 ? 0 : max_rows * shard_rows)) {}

  /// Columns that the logits have: the vocabulary, rounded up to equal shards.
  [[nodiscard]] std::int64_t width() const { return shard_rows_ * context_.comm.size(); }

  /// Columns of each rank's part of them, of ranks that are joined by `communicator()`.
  [[nodiscard]] std::int64_t part_width() const { return shard_rows_; }
  [[nodiscard]] Communicator& communicator() const { return context_.comm; }

  /// logits = x · weightᵀ: [m, width()] on all ranks, or of [m, shard_rows] each rank its own.
  /// Without rows in `weight`, of a model without a head, they are left as they are.
  template <class Matrix>
  void operator()(typename Context::ConstRows x, const Matrix& weight, MatrixView<float> logits) {
    if (weight.rows() == 0) return;
    const std::int64_t m = x.extent(0);
    if (logits.extent(1) == shard_rows_) {
      check_shape("forward", "logits", logits, {m, shard_rows_});
      return multiply(x, weight, logits);
    }
    check_shape("forward", "logits", logits, {m, width()});
    check<ShapeError>(m <= max_rows_, "forward: at most ", max_rows_,
                      " rows of logits a step, got ", m);
    const MatrixView<float> part(part_.data(), {m, shard_rows_});
    multiply(x, weight, part);
    context_.comm.all_gather_columns(MatrixView<const float>(part), logits);
  }

 private:
  template <class Matrix>
  void multiply(typename Context::ConstRows x, const Matrix& weight, MatrixView<float> y) {
    context_.backend.run(
        FloatLinearArgs<typename Context::Activation, Matrix>{.x = x, .weight = &weight, .y = y});
  }

  Context context_;
  std::int64_t max_rows_;
  std::int64_t vocab_size_;
  std::int64_t shard_rows_;
  typename Context::template Buffer<float> part_;  // [max_rows, shard_rows]; several ranks only
};

}  // namespace nanovllm
