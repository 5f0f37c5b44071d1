#pragma once
/// `qk_norm_rope_store` on the CPU: the row kernels of rms_norm, rope and kv_store, one token after
/// the other while it is in the cache. Contract: ops/qk_norm_rope_store.hpp.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/cpu/kernels/rms_norm.hpp"
#include "nanovllm/cpu/kernels/rope.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/qk_norm_rope_store.hpp"

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/qk_norm_rope_store_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

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

NANOVLLM_COMPILED_TEMPLATE(void qk_norm_rope_store(const QkNormRopeStoreArgs<float, float, float>&,
                                                   const Context&))
NANOVLLM_COMPILED_TEMPLATE(void qk_norm_rope_store(const QkNormRopeStoreArgs<bf16, bf16, bf16>&,
                                                   const Context&))

}  // namespace nanovllm::cpu
