#pragma once
/// `rms_norm` and `add_rms_norm` on the CPU. Contract: ops/rms_norm.hpp.

#include <cmath>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/rms_norm.hpp"

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/rms_norm_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T>
void rms_norm(const RmsNormArgs<T>& args, const Context& context) {
  validate(args);
  const auto norm =
      pick(context.isa, portable::norm_rows<T>, avx2::norm_rows<T>, avx512::norm_rows<T>);
  context.pool->parallel_for(
      args.x.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { norm(args, begin, end); });
}

template <Element T>
void run_op(const RmsNormArgs<T>& args, Context& context) {
  rms_norm(args, context);
}

/// As `rms_norm`.
template <Element T>
void add_rms_norm(const AddRmsNormArgs<T>& args, const Context& context) {
  validate(args);
  const auto norm = pick(context.isa, portable::add_norm_rows<T>, avx2::add_norm_rows<T>,
                         avx512::add_norm_rows<T>);
  context.pool->parallel_for(
      args.x.extent(0), kRowGrain,
      [&](std::int64_t begin, std::int64_t end, int) { norm(args, begin, end); });
}

template <Element T>
void run_op(const AddRmsNormArgs<T>& args, Context& context) {
  add_rms_norm(args, context);
}

}  // namespace nanovllm::cpu
