#pragma once
/// `apply_functor` on the CPU. Contract: ops/logits_functor.hpp.

#include <cstdint>

#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/logits_functor.hpp"

namespace nanovllm::cpu {

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
