#pragma once
/// `mark_tokens`, `edit_logits`, `mark_drawn` and `token_logprobs` on the CPU: one row, or one
/// slot, is one thread's work, so that results do not depend on the number of threads. Contracts:
/// ops/logit_edits.hpp.
///
/// Penalties cost as much as there are distinct tokens, biases as much as there are biases; a mask
/// costs one look at its words and writes where they have zeros. Log-probabilities are those that
/// `sample` gives for the same logits, bit by bit.
///
/// Beyond the contracts: `TokenMarks` begins as zeros, words and num_seen; the memory of `seen` may
/// hold anything.
///
/// `apply_functor`, a user's function on every logit, has its contract in ops/logits_functor.hpp.

#include <cstdint>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "nanovllm/ops/logit_edits.hpp"
#include "nanovllm/ops/logits_functor.hpp"

namespace nanovllm::cpu {

/// Throws ShapeError when the operands do not fit together, for a slot or a token that does not
/// exist, for a slot that two heads fill and, after filling what fits, where `seen` is too short.
void mark_tokens(const MarkTokensArgs& args, const Context& context);

/// Throws ShapeError when the operands do not fit together and for a token, a slot or a mask that
/// does not exist, ConfigError for penalties that are not finite or a repetition that is not above
/// 0; nothing is changed then.
void edit_logits(const EditLogitsArgs& args, const Context& context);

/// Throws ShapeError when the operands do not fit together, for a slot or a token that does not
/// exist, and where `seen` is full.
void mark_drawn(const MarkDrawnArgs& args);

/// Throws ShapeError when the operands do not fit together or for a token that does not exist.
void token_logprobs(const TokenLogprobsArgs& args, const Context& context);

inline void run_op(const MarkTokensArgs& args, Context& context) { mark_tokens(args, context); }
inline void run_op(const EditLogitsArgs& args, Context& context) { edit_logits(args, context); }
inline void run_op(const MarkDrawnArgs& args, Context&) { mark_drawn(args); }
inline void run_op(const TokenLogprobsArgs& args, Context& context) {
  token_logprobs(args, context);
}

template <LogitsFunctorLike F>
void apply_functor(const ApplyFunctorArgs<F>& args, const Context& context) {
  validate(args);
  const std::int64_t vocab = args.logits.extent(1);
  context.pool->parallel_for(
      args.logits.extent(0), 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t r = begin; r < end; ++r) {
          if (args.arguments.data[r] == 0) continue;
          const FunctorContext row = args.context(r);
          float* const logits = args.logits.at(r);
          for (std::int64_t t = 0; t < vocab; ++t)
            logits[t] = args.functor(logits[t], static_cast<TokenId>(t), row);
        }
      });
}

template <LogitsFunctorLike F>
void run_op(const ApplyFunctorArgs<F>& args, Context& context) {
  apply_functor(args, context);
}

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/kernels/sampler_filters.hpp"

namespace nanovllm::cpu {
namespace detail {

// ---- What operands must be beyond their shapes.

/// Throws unless the lists lie after each other within their values.
template <class T>
void check_lists(const char* op, const char* operand, const ListsView<T>& lists) {
  const std::int64_t n = lists.starts.extent(0) - 1;
  const std::int32_t* const starts = lists.starts.data;
  check<ShapeError>(starts[0] == 0 && starts[n] <= lists.values.extent(0), op, ": '", operand,
                    ".starts' must run from 0 to ", lists.values.extent(0), " at the most, got ",
                    starts[0], " to ", starts[n]);
  for (std::int64_t i = 0; i < n; ++i) {
    check<ShapeError>(starts[i] <= starts[i + 1], op, ": '", operand, ".starts' must ascend, got ",
                      starts[i], " then ", starts[i + 1]);
  }
}

/// Throws unless `i`-th of `what` is in [low, size).
inline void check_index(const char* op, const char* what, std::int64_t i, std::int64_t index,
                        std::int64_t low, std::int64_t size) {
  check<ShapeError>(index >= low && index < size, op, ": ", what, " ", i, " must be in [", low,
                    ", ", size, "), got ", index);
}

// ---- Marks.

/// Notes that the sequence in `slot` has `token`, from its prompt or generated once more. Returns
/// false, and notes nothing, where `seen` is full.
[[nodiscard]] inline bool mark(const TokenMarks& marks, std::int64_t slot, TokenId token,
                               bool is_prompt) {
  std::uint32_t& word = *marks.words.at(slot, token);
  if (word == 0) {
    std::int32_t& num_seen = marks.num_seen.data[slot];
    if (num_seen >= marks.seen.extent(1)) return false;
    *marks.seen.at(slot, num_seen++) = token;
  }
  word = is_prompt ? word | kPromptMark : word + 1;
  return true;
}

/// Makes a slot that of a sequence without tokens.
inline void clear_marks(const TokenMarks& marks, std::int64_t slot) {
  const TokenId* const seen = marks.seen.at(slot);
  std::int32_t& num_seen = marks.num_seen.data[slot];
  for (std::int32_t i = 0; i < num_seen; ++i) *marks.words.at(slot, seen[i]) = 0;
  num_seen = 0;
}

inline void check_heads(const MarkTokensArgs& args) {
  constexpr const char* kOp = "mark_tokens";
  const std::int64_t n = args.heads.extent(0), slots = args.marks.words.extent(0);
  check_lists(kOp, "lists", args.lists);
  auto* const is_filled = scratch<MarkTokensArgs, bool>(slots);
  std::fill_n(is_filled, slots, false);
  for (std::int64_t i = 0; i < n; ++i) {
    const MarkHead& head = args.heads.data[i];
    check_index(kOp, "slot of head", i, head.slot, 0, slots);
    check<ShapeError>(!is_filled[head.slot], kOp, ": slot ", head.slot,
                      " must be filled by one head, got another, ", i);
    is_filled[head.slot] = true;
    check_index(kOp, "num_prompt_tokens of head", i, head.num_prompt_tokens, 0,
                args.lists[i].extent(0) + 1);
  }
  for (std::int64_t i = 0; i < args.lists.starts.data[n]; ++i) {
    check_index(kOp, "token", i, args.lists.values.data[i], 0, args.marks.words.extent(1));
  }
}

// ---- Edits.

/// The tokens whose bit is 0 become -inf.
inline void apply_mask(const std::uint32_t* mask, std::int64_t vocab, float* logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::int64_t begin = 0; begin < vocab; begin += 32) {
    const std::uint32_t word = mask[begin / 32];
    if (word == ~std::uint32_t{0}) continue;
    const std::int64_t count = std::min<std::int64_t>(32, vocab - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      logits[begin + i] = (word >> i & 1) != 0 ? logits[begin + i] : -kInfinity;
    }
  }
}

/// A logit of a token that the sequence has, `word` of its marks, after the row's penalties.
[[nodiscard]] inline float penalised(float logit, const EditRow& row, std::uint32_t word) {
  logit = logit > 0 ? logit / row.repetition : logit * row.repetition;
  const std::uint32_t count = word & ~kPromptMark;
  if (count == 0) return logit;
  // The product is exact in float64 and rounded once: no compiler can fuse it with the difference.
  const double product = double{static_cast<float>(count)} * double{row.frequency};
  return logit - static_cast<float>(product) - row.presence;
}

[[nodiscard]] inline bool has_penalties(const EditRow& row) {
  return row.marks >= 0 && (row.repetition != 1 || row.frequency != 0 || row.presence != 0);
}

inline void edit_row(const EditLogitsArgs& args, std::int64_t r) {
  const EditRow& row = args.batch.rows.data[r];
  const std::int64_t vocab = args.logits.extent(1);
  float* const logits = args.logits.at(r);
  if (!args.originals.empty()) std::copy_n(logits, vocab, args.originals.at(r));
  if (row.mask >= 0) {
    apply_mask(args.batch.masks.data + row.mask * mask_words(vocab), vocab, logits);
  }
  const auto biases = args.batch.biases[r];
  for (std::int64_t i = 0; i < biases.extent(0); ++i) {
    logits[biases.data[i].token] += biases.data[i].bias;
  }
  if (!has_penalties(row)) return;
  const std::uint32_t* const words = args.marks.words.at(row.marks);
  const TokenId* const seen = args.marks.seen.at(row.marks);
  const std::int32_t num_seen = args.marks.num_seen.data[row.marks];
  for (std::int32_t i = 0; i < num_seen; ++i) {
    logits[seen[i]] = penalised(logits[seen[i]], row, words[seen[i]]);
  }
}

inline void check_edits(const EditLogitsArgs& args) {
  constexpr const char* kOp = "edit_logits";
  const std::int64_t n = args.logits.extent(0), vocab = args.logits.extent(1);
  check_lists(kOp, "biases", args.batch.biases);
  const std::int64_t num_masks = vocab == 0 ? 0 : args.batch.masks.extent(0) / mask_words(vocab);
  for (std::int64_t r = 0; r < n; ++r) {
    const EditRow& row = args.batch.rows.data[r];
    check_index(kOp, "slot of row", r, row.marks, -1, args.marks.words.extent(0));
    check_index(kOp, "mask of row", r, row.mask, -1, num_masks);
    check<ConfigError>(row.repetition > 0 && std::isfinite(row.repetition), kOp,
                       ": repetition of row ", r, " must be finite and > 0, got ", row.repetition);
    check<ConfigError>(std::isfinite(row.frequency) && std::isfinite(row.presence), kOp,
                       ": frequency and presence of row ", r, " must be finite, got ",
                       row.frequency, " and ", row.presence);
  }
  for (std::int64_t i = 0; i < args.batch.biases.starts.data[n]; ++i) {
    check_index(kOp, "token of bias", i, args.batch.biases.values.data[i].token, 0, vocab);
  }
}

// ---- Log-probabilities.

inline void check_logprob_tokens(const TokenLogprobsArgs& args) {
  constexpr const char* kOp = "token_logprobs";
  const std::int64_t n = args.logits.extent(0), vocab = args.logits.extent(1);
  check_lists(kOp, "chosen", args.chosen);
  for (std::int64_t i = 0; i < n; ++i) {
    check_index(kOp, "token", i, args.tokens.data[i], 0, vocab);
  }
  for (std::int64_t i = 0; i < args.chosen.starts.data[n]; ++i) {
    check_index(kOp, "chosen token", i, args.chosen.values.data[i], 0, vocab);
  }
}

}  // namespace detail

NANOVLLM_INLINE void mark_tokens(const MarkTokensArgs& args, const Context& context) {
  validate(args);
  detail::check_heads(args);
  std::atomic<bool> is_full = false;
  context.pool->parallel_for(args.heads.extent(0), 1, [&](std::int64_t i, std::int64_t, int) {
    const MarkHead& head = args.heads.data[i];
    const auto list = args.lists[i];
    detail::clear_marks(args.marks, head.slot);
    for (std::int64_t j = 0; j < list.extent(0); ++j) {
      const bool is_prompt = j < head.num_prompt_tokens;
      if (!detail::mark(args.marks, head.slot, list.data[j], is_prompt)) is_full = true;
    }
  });
  check<ShapeError>(!is_full,
                    "mark_tokens: 'marks.seen' must have a column for each distinct "
                    "token of a sequence, got ",
                    args.marks.seen.extent(1));
}

NANOVLLM_INLINE void edit_logits(const EditLogitsArgs& args, const Context& context) {
  validate(args);
  if (args.logits.empty()) return;
  detail::check_edits(args);
  context.pool->parallel_for(args.logits.extent(0), 1,
                             [&](std::int64_t r, std::int64_t, int) { detail::edit_row(args, r); });
}

NANOVLLM_INLINE void mark_drawn(const MarkDrawnArgs& args) {
  constexpr const char* kOp = "mark_drawn";
  validate(args);
  for (std::int64_t i = 0; i < args.rows.extent(0); ++i) {
    const std::int32_t slot = args.rows.data[i].marks;
    detail::check_index(kOp, "slot of row", i, slot, -1, args.marks.words.extent(0));
    if (slot < 0) continue;
    const TokenId token = args.tokens.data[i];
    detail::check_index(kOp, "token", i, token, 0, args.marks.words.extent(1));
    check<ShapeError>(detail::mark(args.marks, slot, token, false), kOp,
                      ": 'marks.seen' must have a column for each distinct token of a sequence, "
                      "got ",
                      args.marks.seen.extent(1));
  }
}

NANOVLLM_INLINE void token_logprobs(const TokenLogprobsArgs& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.logits.extent(0), vocab = args.logits.extent(1);
  if (n == 0) return;
  detail::check_logprob_tokens(args);
  const std::int64_t num_tiles = ceil_div(vocab, detail::kLogitTile);
  auto* const maxima =
      detail::scratch<TokenLogprobsArgs, float>(context.pool->num_threads() * num_tiles);
  const detail::SamplerKernels kernels(context.isa);
  context.pool->parallel_for(n, 1, [&](std::int64_t r, std::int64_t, int thread) {
    // The kernels that follow only read the logits.
    const detail::LogitRow row{.logits = const_cast<float*>(args.logits.at(r)),
                               .vocab = vocab,
                               .num_tiles = num_tiles,
                               .maxima = maxima + thread * num_tiles,
                               .sorted = nullptr,
                               .candidates = nullptr};
    kernels.find_tile_maxima(row, 0, num_tiles);
    const detail::LogSoftmax log_prob = detail::log_softmax(row, kernels);
    args.logprobs.data[r] = log_prob(row.logits[args.tokens.data[r]]);
    const auto chosen = args.chosen[r];
    float* const out = args.chosen_logprobs.data + args.chosen.starts.data[r];
    for (std::int64_t i = 0; i < chosen.extent(0); ++i)
      out[i] = log_prob(row.logits[chosen.data[i]]);
  });
}

}  // namespace nanovllm::cpu

#endif  // NANOVLLM_BODIES
