#pragma once
/// `add_bias` on the CPU. Contract: with/gpt2/add_bias.hpp.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/gpt2/add_bias.hpp"

#define NANOVLLM_KERNELS "nanovllm/with/gpt2/cpu/add_bias_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T, Element W>
void add_bias(const AddBiasArgs<T, W>& args, const Context& context) {
  validate(args);
  const auto rows = NANOVLLM_PICK(context.isa, add_bias_rows<T, W>);
  context.pool->parallel_for(
      args.x.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { rows(args, begin, end); });
}

template <Element T, Element W>
void run_op(const AddBiasArgs<T, W>& args, Context& context) {
  add_bias(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void add_bias(const AddBiasArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_bias(const AddBiasArgs<bf16, bf16>&, const Context&))

}  // namespace nanovllm::cpu
