#pragma once
/// `rope` on the CPU. Contract: ops/rope.hpp.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/rope.hpp"

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/rope_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// Also throws ShapeError for a position outside the table.
template <Element T>
void rope(const RopeArgs<T>& args, const Context& context) {
  validate(args);
  check_positions("rope", args.positions, args.cos_sin.extent(0));
  const auto rotate = NANOVLLM_PICK(context.isa, rotate_tokens<T>);
  context.pool->parallel_for(
      args.x.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { rotate(args, begin, end); });
}

template <Element T>
void run_op(const RopeArgs<T>& args, Context& context) {
  rope(args, context);
}

}  // namespace nanovllm::cpu
