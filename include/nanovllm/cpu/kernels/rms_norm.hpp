#pragma once
/// `rms_norm` and `add_rms_norm` on the CPU. Contract: ops/rms_norm.hpp.

#include <cmath>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/rms_norm.hpp"

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/rms_norm_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T, Element W>
void rms_norm(const RmsNormArgs<T, W>& args, const Context& context) {
  validate(args);
  const auto norm = NANOVLLM_PICK(context.isa, norm_rows<T, W>);
  context.pool->parallel_for(
      args.x.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { norm(args, begin, end); });
}

template <Element T, Element W>
void run_op(const RmsNormArgs<T, W>& args, Context& context) {
  rms_norm(args, context);
}

/// As `rms_norm`.
template <Element T, Element W>
void add_rms_norm(const AddRmsNormArgs<T, W>& args, const Context& context) {
  validate(args);
  const auto norm = NANOVLLM_PICK(context.isa, add_norm_rows<T, W>);
  context.pool->parallel_for(
      args.x.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { norm(args, begin, end); });
}

template <Element T, Element W>
void run_op(const AddRmsNormArgs<T, W>& args, Context& context) {
  add_rms_norm(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void rms_norm(const RmsNormArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void rms_norm(const RmsNormArgs<bf16, bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_rms_norm(const AddRmsNormArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_rms_norm(const AddRmsNormArgs<bf16, bf16>&, const Context&))

}  // namespace nanovllm::cpu
