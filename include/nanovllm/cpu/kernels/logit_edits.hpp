#pragma once
/// `mark_tokens`, `edit_logits`, `mark_drawn` and `token_logprobs` on the CPU: one row, or one slot,
/// is one thread's work, so that results do not depend on the number of threads. Contracts:
/// ops/logit_edits.hpp.
///
/// Penalties cost as much as there are distinct tokens, biases as much as there are biases; a mask
/// costs one look at its words and writes where they have zeros. Log-probabilities are those that
/// `sample` gives for the same logits, bit by bit.
///
/// Beyond the contracts: `TokenMarks` begins as zeros, words and num_seen; the memory of `seen` may
/// hold anything.

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "nanovllm/ops/logit_edits.hpp"

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

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES
#include "nanovllm/cpu/kernels/logit_edits.inc"
#endif
