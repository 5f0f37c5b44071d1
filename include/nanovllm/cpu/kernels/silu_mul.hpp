#pragma once
/// `silu_mul` on the CPU. Contract: ops/silu_mul.hpp.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/silu_mul.hpp"

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/silu_mul_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T>
void silu_mul(const SiluMulArgs<T>& args, const Context& context) {
  validate(args);
  const auto rows = NANOVLLM_PICK(context.isa, silu_mul_rows<T>);
  context.pool->parallel_for(
      args.out.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { rows(args, begin, end); });
}

template <Element T>
void run_op(const SiluMulArgs<T>& args, Context& context) {
  silu_mul(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void silu_mul(const SiluMulArgs<float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void silu_mul(const SiluMulArgs<bf16>&, const Context&))

}  // namespace nanovllm::cpu
