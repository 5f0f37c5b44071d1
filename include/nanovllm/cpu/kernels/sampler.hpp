#pragma once
/// `sample` on the CPU: one row is one thread's work.
///
/// Each tile of 64 logits is summed up by its maximum first; everything after looks only into tiles
/// whose maximum says that it must:
/// - the k-th largest maximum is a lower bound of the k-th largest logit, so few tokens are left to
///   select the k largest from;
/// - all three filters together keep the tokens above a logit and, among those equal to it, the
///   lowest ids: they end in a `Cut`, not in a list;
/// - noise is at most 22.9, so a tile far enough below the best token so far needs none.
/// Decisions are made in float64. Where a float32 estimate comes first (the total mass for top_p,
/// the noise of a token) it decides only what lies outside its error. Hence tokens depend neither
/// on the number of threads nor on the instruction set (which may only change the order of top_p's
/// float64 sums: a prefix within 1e-13 of top_p could fall either way). Log-probabilities are
/// within 1e-5 and may differ in their last bits between instruction sets.
///
/// Beyond the contract:
/// - a logit that is NaN counts as -inf;
/// - a largest logit of +inf wins whatever the temperature, the lowest id among equals; the log-
///   probability of n such tokens is -log n, that of all others -inf;
/// - without any logit above -inf the lowest id that is not banned wins, 0 when all are; if that
///   holds before the bans, all log-probabilities are -inf;
/// - of more log-probabilities than tokens, those that do not exist are not written.

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cpu {

/// See ops/sampler.hpp, and the top of this file for what that leaves open. Throws ShapeError when
/// the operands do not fit together or a banned token does not exist, and ConfigError for a
/// temperature that is negative or not finite.
void sample(const SampleArgs& args, const Context& context);

inline void run_op(const SampleArgs& args, Context& context) { sample(args, context); }

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES
#include "nanovllm/cpu/kernels/sampler.inc"
#endif
