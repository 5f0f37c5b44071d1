#pragma once
/// The ops on CUDA that every engine has. Of these a library for CUDA, whose target defines
/// NANOVLLM_CUDA_OPS, has those of bfloat16: all that name no model's shape, and attention with the
/// heads of the published ones. A program that links it compiles none of their kernels, whatever
/// its model and policy are; other element types, formats and heads it compiles itself.
///
/// Each list is one source of the library, which calls it with nothing. A wing has its own.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/cuda/attention/varlen/varlen_attention.cuh"
#include "nanovllm/cuda/elementwise/kv_store.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/sampling/logit_edits.cuh"
#include "nanovllm/cuda/sampling/logprobs.cuh"
#include "nanovllm/cuda/sampling/sampler.cuh"
#include "nanovllm/cuda/sampling/token_marks.cuh"

#if defined(NANOVLLM_CUDA_OPS)

namespace nanovllm::cuda {

#define NANOVLLM_CUDA_OP(extern_or_nothing, ...) \
  extern_or_nothing template void run_op(const __VA_ARGS__&, OpState&)

/// Dense layers. `execute` is what start-up times.
#define NANOVLLM_CUDA_DENSE_OPS(extern_or_nothing)                                               \
  extern_or_nothing template bool DenseEngine<DeviceArchitectures>::execute<bf16, bf16>(         \
      const DenseLayer<bf16, bf16>&, const DensePlan&, const Context&);                          \
  extern_or_nothing template bool DenseEngine<DeviceArchitectures>::execute<bf16>(               \
      const QkvArgs<bf16>&, const DensePlan&, const Context&);                                   \
  NANOVLLM_CUDA_OP(extern_or_nothing, LinearArgs<bf16, DeviceMatrix<bf16>, bf16>);               \
  NANOVLLM_CUDA_OP(extern_or_nothing, GatedLinearArgs<bf16, DeviceMatrix<bf16>, bf16>);          \
  NANOVLLM_CUDA_OP(extern_or_nothing, ProjectQkvArgs<bf16, DeviceMatrix<bf16>, bf16, bf16>);     \
  extern_or_nothing template void detail::fill_noise<bf16>(bf16*, std::int64_t, const Context&); \
  extern_or_nothing template void detail::fill_noise<float>(float*, std::int64_t, const Context&)

/// Attention: head_dim 64 and 128, or any, by groups of 1, 2, 4, 5 and 8 heads, or any.
#define NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, group)              \
  NANOVLLM_CUDA_OP(extern_or_nothing,                                            \
                   VarlenAttentionArgs<bf16, bf16, HeadShape<head_dim, group>>); \
  NANOVLLM_CUDA_OP(extern_or_nothing, DecodeAttentionArgs<bf16, bf16, HeadShape<head_dim, group>>)
#define NANOVLLM_CUDA_GROUPS_OPS(extern_or_nothing, head_dim) \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, 0);    \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, 1);    \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, 2);    \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, 4);    \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, 5);    \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, head_dim, 8)
#define NANOVLLM_CUDA_ATTENTION_OPS(extern_or_nothing)    \
  NANOVLLM_CUDA_OP(extern_or_nothing, PlanAttentionArgs); \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, 0, 0);       \
  NANOVLLM_CUDA_HEADS_OPS(extern_or_nothing, 0, 1);       \
  NANOVLLM_CUDA_GROUPS_OPS(extern_or_nothing, 64);        \
  NANOVLLM_CUDA_GROUPS_OPS(extern_or_nothing, 128)

/// What is done with logits.
#define NANOVLLM_CUDA_SAMPLING_OPS(extern_or_nothing)  \
  NANOVLLM_CUDA_OP(extern_or_nothing, SampleArgs);     \
  NANOVLLM_CUDA_OP(extern_or_nothing, EditLogitsArgs); \
  NANOVLLM_CUDA_OP(extern_or_nothing, MarkTokensArgs); \
  NANOVLLM_CUDA_OP(extern_or_nothing, MarkDrawnArgs);  \
  NANOVLLM_CUDA_OP(extern_or_nothing, TokenLogprobsArgs)

/// All others, and the product for logits.
#define NANOVLLM_CUDA_OTHER_OPS(extern_or_nothing)                                        \
  extern_or_nothing template bool DenseEngine<DeviceArchitectures>::execute<bf16, float>( \
      const DenseLayer<bf16, float>&, const DensePlan&, const Context&);                  \
  NANOVLLM_CUDA_OP(extern_or_nothing, LinearArgs<bf16, DeviceMatrix<bf16>, float>);       \
  NANOVLLM_CUDA_OP(extern_or_nothing, EmbeddingArgs<bf16, DeviceMatrix<bf16>>);           \
  NANOVLLM_CUDA_OP(extern_or_nothing, RmsNormArgs<bf16>);                                 \
  NANOVLLM_CUDA_OP(extern_or_nothing, AddRmsNormArgs<bf16>);                              \
  NANOVLLM_CUDA_OP(extern_or_nothing, SiluMulArgs<bf16>);                                 \
  NANOVLLM_CUDA_OP(extern_or_nothing, QkNormRopeStoreArgs<bf16, bf16>);                   \
  NANOVLLM_CUDA_OP(extern_or_nothing, KvStoreArgs<bf16, bf16>);                           \
  NANOVLLM_CUDA_OP(extern_or_nothing, GatherRowsArgs<bf16>);                              \
  NANOVLLM_CUDA_OP(extern_or_nothing, CopyBlocksArgs<bf16>)

NANOVLLM_CUDA_DENSE_OPS(extern);
NANOVLLM_CUDA_ATTENTION_OPS(extern);
NANOVLLM_CUDA_SAMPLING_OPS(extern);
NANOVLLM_CUDA_OTHER_OPS(extern);

}  // namespace nanovllm::cuda

#endif
