#pragma once
/// Ops that treat each row, or each token, on its own, on the CPU: `rms_norm`, `add_rms_norm`,
/// `rope`, `silu_mul`, and `qk_norm_rope_store`, which has the row kernels of norm, rotation and
/// store one token after the other while it is in the cache. Contracts: ops/<op>.hpp.

#include <cmath>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/rope.hpp"

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/rowwise_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T, Element W>
void rms_norm(const RmsNormArgs<T, W>& args, const Context& context) {
  validate(args);
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, norm_rows<T, W>), context);
}

template <Element T, Element W>
void run_op(const RmsNormArgs<T, W>& args, Context& context) {
  rms_norm(args, context);
}

/// As `rms_norm`.
template <Element T, Element W>
void add_rms_norm(const AddRmsNormArgs<T, W>& args, const Context& context) {
  validate(args);
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, add_norm_rows<T, W>), context);
}

template <Element T, Element W>
void run_op(const AddRmsNormArgs<T, W>& args, Context& context) {
  add_rms_norm(args, context);
}

/// Also throws ShapeError for a position outside the table.
template <Element T>
void rope(const RopeArgs<T>& args, const Context& context) {
  validate(args);
  check_positions("rope", args.positions, args.cos_sin.extent(0));
  for_rows(args.x.extent(0), args, NANOVLLM_PICK(context.isa, rotate_tokens<T>), context);
}

template <Element T>
void run_op(const RopeArgs<T>& args, Context& context) {
  rope(args, context);
}

/// A row's result depends on that row alone, bit for bit on a given instruction set.
template <Element T>
void silu_mul(const SiluMulArgs<T>& args, const Context& context) {
  validate(args);
  for_rows(args.out.extent(0), args, NANOVLLM_PICK(context.isa, silu_mul_rows<T>), context);
}

template <Element T>
void run_op(const SiluMulArgs<T>& args, Context& context) {
  silu_mul(args, context);
}

/// Also throws ShapeError for a position outside the table or a slot outside the cache.
template <Element T, KvFormat Kv, Element W>
void qk_norm_rope_store(const QkNormRopeStoreArgs<T, Kv, W>& args, const Context& context) {
  validate(args);
  check_positions("qk_norm_rope_store", args.positions, args.cos_sin.extent(0));
  detail::check_slots("qk_norm_rope_store", args.slots, args.kv);
  const auto norm_and_rotate = NANOVLLM_PICK(context.isa, norm_and_rotate_tokens<T, Kv, W>);
  const KvStoreArgs<T, Kv> store{.k = args.k, .v = args.v, .slots = args.slots, .kv = args.kv};
  context.pool->parallel_for(args.q.extent(0), kRowGrain,
                             [&](std::int64_t begin, std::int64_t end, int) {
                               norm_and_rotate(args, begin, end);
                               for (std::int64_t token = begin; token < end; ++token)
                                 detail::store_token(store, token);
                             });
}

template <Element T, KvFormat Kv, Element W>
void run_op(const QkNormRopeStoreArgs<T, Kv, W>& args, Context& context) {
  qk_norm_rope_store(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void rms_norm(const RmsNormArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void rms_norm(const RmsNormArgs<bf16, bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_rms_norm(const AddRmsNormArgs<float, float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void add_rms_norm(const AddRmsNormArgs<bf16, bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void silu_mul(const SiluMulArgs<float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void silu_mul(const SiluMulArgs<bf16>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void qk_norm_rope_store(const QkNormRopeStoreArgs<float, float, float>&,
                                                   const Context&))
NANOVLLM_COMPILED_TEMPLATE(void qk_norm_rope_store(const QkNormRopeStoreArgs<bf16, bf16, bf16>&,
                                                   const Context&))

}  // namespace nanovllm::cpu
