#pragma once
/// Contracts of the ops that change logits between the model and the sampler, and of those that
/// remember tokens for them.
///
/// A step in which any row has edits is sampled by these, in this order; other steps by `sample`
/// alone (ops/sampler.hpp):
///
///     mark_tokens      what sequences have so far, where that is not known yet
///     edit_logits      masks, biases and penalties, in place; keeps a copy of the logits
///     apply_functor    a function of a user's own, ops/logits_functor.hpp
///     sample           bans, temperature, filters, the draw
///     mark_drawn       what was drawn, for the rows that count tokens
///     token_logprobs   the model's log-probabilities of what was drawn, and of chosen tokens

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/ops/batch_field.hpp"

namespace nanovllm {

/// Which tokens some sequences have, and how often they were generated: memory of the backend's
/// that stays from step to step. Slot s belongs to one sequence at a time.
///
/// A word is 0 for a token that the sequence does not have; else bit 31 says that the prompt has
/// it, and the bits below how often it was generated. `seen` lists the tokens of which the word is
/// not 0, in no order, each once. At first words and num_seen are zeros, and `seen` may hold
/// anything.
struct TokenMarks {
  MatrixView<std::uint32_t> words;  ///< [slots, vocab]
  MatrixView<TokenId> seen;  ///< [slots, capacity]; capacity ≥ the distinct tokens there are
  VectorView<std::int32_t> num_seen;  ///< [slots]
};

inline constexpr std::uint32_t kPromptMark = std::uint32_t{1} << 31;

/// How the logits of one row are changed. Plain data.
struct EditRow {
  float repetition = 1;     ///< > 0; of all tokens that the sequence has. 1: none
  float frequency = 0;      ///< for each time that a token was generated
  float presence = 0;       ///< of tokens that were generated
  std::int32_t marks = -1;  ///< slot of `TokenMarks`; -1: none of the three above
  std::int32_t mask = -1;   ///< row of `masks`; -1: every token may be drawn

  friend bool operator==(const EditRow&, const EditRow&) = default;
};

/// What is added to one token's logit.
struct TokenBias {
  TokenId token = 0;
  float bias = 0;

  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

/// A slot of `TokenMarks` that is to be filled.
struct MarkHead {
  std::int32_t slot = 0;
  std::int32_t num_prompt_tokens = 0;  ///< of its list: the first; the others were generated
};

/// The part of a step's fields that edits are made from: one row a row of logits.
template <template <class Field> class Stored>
struct EditFields {
  Stored<PerSample<EditRow>> rows;
  /// Of the rows that a functor is applied to: its argument, which is not 0, and the token before
  /// the one to be drawn. Empty where no row has a functor.
  Stored<PerSample<float>> functor_arguments;
  Stored<ColumnField<TokenId, BatchRows::samples, TokenSource>> previous;
  Stored<PerSampleList<TokenBias>> biases;  ///< in a row each token at most once
  Stored<PerSampleList<TokenId>> chosen;    ///< tokens whose log-probabilities are reported
  /// Bits of the tokens that may be drawn: masks one after another, each of mask_words(vocab).
  Stored<AnyNumberOf<std::uint32_t>> masks;
  Stored<AnyNumberOf<MarkHead>> mark_heads;
  /// List i is all that the sequence in slot `mark_heads[i].slot` has.
  Stored<ListField<TokenId, BatchRows::free>> mark_tokens;

  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    visit(EditRow{}, batches.rows...);
    visit(0.f, batches.functor_arguments...);
    visit(TokenId{0}, batches.previous...);
    visit(TokenBias{}, batches.biases...);
    visit(TokenId{0}, batches.chosen...);
    visit(std::uint32_t{0}, batches.masks...);
    visit(MarkHead{}, batches.mark_heads...);
    visit(TokenId{0}, batches.mark_tokens...);
  }
};

static_assert(visits_every_field<EditFields>());

/// Views of one step's in the backend's memory.
using EditBatch = EditFields<ViewOf>;

/// Words of one mask: token i is bit i % 32 of word i / 32.
[[nodiscard]] constexpr std::int64_t mask_words(std::int64_t vocab) { return (vocab + 31) / 32; }

/// For every i, slot heads[i].slot becomes what list i says: of its tokens the first
/// num_prompt_tokens are the prompt's, the others were generated. What the slot had is gone.
struct MarkTokensArgs {
  TokenMarks marks;
  VectorView<const MarkHead> heads;  ///< each slot once
  ListsView<const TokenId> lists;    ///< one a head; every token in [0, vocab)
};

/// Changes the logits of a row, in this order (that of vLLM):
/// 1. a token whose bit of the row's mask is 0 becomes -inf;
/// 2. biases are added;
/// 3. for tokens that are marked in the row's slot: positive logits are divided by `repetition`,
///    others multiplied by it; then, of those that were generated `count` > 0 times,
///    count · frequency + presence is subtracted.
/// In float32, in the order written: x - (count · frequency + presence) is x - count · frequency,
/// rounded (the product, too), - presence, rounded. Rows without edits stay unchanged.
/// `originals`, unless it is empty, gets all rows before the edits.
struct EditLogitsArgs {
  MatrixView<float> logits;  ///< [rows, vocab], in and out
  EditBatch batch;
  TokenMarks marks;             ///< may be empty where no row has a slot
  MatrixView<float> originals;  ///< [rows, vocab] or empty
};

/// tokens[i] was generated by the sequence in slot rows[i].marks, where that is not -1.
struct MarkDrawnArgs {
  TokenMarks marks;
  VectorView<const EditRow> rows;    ///< [n]; each slot at most once
  VectorView<const TokenId> tokens;  ///< [n]
};

/// Log-probabilities of given tokens: log_softmax of the row, within 1e-5. -inf where a logit is
/// NaN or -inf; as `sample` does where some are +inf. A backend may use the sampler's workspace, so
/// `reserve` comes before.
struct TokenLogprobsArgs {
  MatrixView<const float> logits;     ///< [rows, vocab]
  VectorView<const TokenId> tokens;   ///< [rows], one of each row
  VectorView<float> logprobs;         ///< [rows], out
  ListsView<const TokenId> chosen;    ///< further ones, a list a row
  VectorView<float> chosen_logprobs;  ///< [chosen.values], out
};

namespace detail {

inline void check_marks(const char* op, const TokenMarks& marks) {
  const std::int64_t slots = marks.words.extent(0);
  check_shape(op, "marks.seen", marks.seen, {slots, -1});
  check_shape(op, "marks.num_seen", marks.num_seen, {slots});
}

}  // namespace detail

/// Throws ShapeError when the operands do not fit together.
inline void validate(const MarkTokensArgs& args) {
  detail::check_marks("mark_tokens", args.marks);
  check_shape("mark_tokens", "lists.starts", args.lists.starts, {args.heads.extent(0) + 1});
}
inline void validate(const EditLogitsArgs& args) {
  detail::check_marks("edit_logits", args.marks);
  const std::int64_t n = args.logits.extent(0), vocab = args.logits.extent(1);
  check_shape("edit_logits", "rows", args.batch.rows, {n});
  check_shape("edit_logits", "biases.starts", args.batch.biases.starts, {n + 1});
  check<ShapeError>(args.batch.masks.extent(0) % mask_words(vocab) == 0,
                    "edit_logits: 'masks' must have ", mask_words(vocab),
                    " words for each mask, got ", args.batch.masks.extent(0), " in all");
  if (args.marks.words.extent(0) > 0)
    check_shape("edit_logits", "marks.words", args.marks.words, {-1, vocab});
  if (!args.originals.empty())
    check_shape("edit_logits", "originals", args.originals, args.logits.extents);
}
inline void validate(const MarkDrawnArgs& args) {
  detail::check_marks("mark_drawn", args.marks);
  check_shape("mark_drawn", "tokens", args.tokens, {args.rows.extent(0)});
}
inline void validate(const TokenLogprobsArgs& args) {
  const std::int64_t n = args.logits.extent(0);
  check_shape("token_logprobs", "tokens", args.tokens, {n});
  check_shape("token_logprobs", "logprobs", args.logprobs, {n});
  check_shape("token_logprobs", "chosen.starts", args.chosen.starts, {n + 1});
  check_shape("token_logprobs", "chosen_logprobs", args.chosen_logprobs,
              {args.chosen.values.extent(0)});
}

}  // namespace nanovllm
