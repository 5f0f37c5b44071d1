// The kernels that a step of Qwen3 in bfloat16 is made of, compiled to be looked at: check_cuda.sh
// fails when one of them spills registers or ptxas reports a serialised wgmma. Every shape that the
// launchers may choose is among them; Qwen3 has heads of 128 and groups of 2, 4, 5 and 8.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/decode_attention.cuh"
#include "nanovllm/cuda/device_matrix.cuh"
#include "nanovllm/cuda/embedding.cuh"
#include "nanovllm/cuda/gather_rows.cuh"
#include "nanovllm/cuda/kv_store.cuh"
#include "nanovllm/cuda/linear.cuh"
#include "nanovllm/cuda/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/rms_norm.cuh"
#include "nanovllm/cuda/rope.cuh"
#include "nanovllm/cuda/sampler.cuh"
#include "nanovllm/cuda/silu_mul.cuh"
#include "nanovllm/cuda/simt_attention.cuh"
#include "nanovllm/cuda/unpack_step.cuh"
#include "nanovllm/cuda/varlen_attention.cuh"

namespace nanovllm {

using Matrix = cuda::DeviceMatrix<bf16>;
using Context = cuda::Context;

template void cuda::embedding(const EmbeddingArgs<bf16, Matrix>&, const Context&);
template void cuda::gather_rows(const GatherRowsArgs<bf16>&, const Context&);
template void cuda::rms_norm(const RmsNormArgs<bf16>&, const Context&);
template void cuda::add_rms_norm(const AddRmsNormArgs<bf16>&, const Context&);
template void cuda::rope(const RopeArgs<bf16>&, const Context&);
template void cuda::kv_store(const KvStoreArgs<bf16>&, const Context&);
template void cuda::qk_norm_rope_store(const QkNormRopeStoreArgs<bf16>&, const Context&);
template void cuda::silu_mul(const SiluMulArgs<bf16>&, const Context&);
template void cuda::linear(const LinearArgs<bf16, Matrix>&, cuda::LinearEngine&, const Context&);
template void cuda::linear(const LinearArgs<bf16, Matrix, float>&, cuda::LinearEngine&,
                           const Context&);
template void cuda::varlen_attention(const VarlenAttentionArgs<bf16>&, const cuda::VarlenWorkspace&,
                                     const Context&);
template void cuda::decode_attention(const DecodeAttentionArgs<bf16>&, cuda::DecodeWorkspace&,
                                     const Context&);

/// Refers to the ops that are no templates.
extern void* const hot_ops[];
void* const hot_ops[] = {
    reinterpret_cast<void*>(&cuda::sample), reinterpret_cast<void*>(&cuda::plan_decode),
    reinterpret_cast<void*>(&cuda::unpack_step), reinterpret_cast<void*>(&cuda::resolve_tokens)};

}  // namespace nanovllm
