#pragma once
/// Policies that run on the GPU, with all that they name. engine.hpp includes this in translation
/// units of nvcc.

#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"

#define NANOVLLM_FIRST(first, ...) first
#define NANOVLLM_FIRST_OF(...) NANOVLLM_FIRST(__VA_ARGS__, 0)
#if NANOVLLM_FIRST_OF(__CUDA_ARCH_LIST__) >= 800

#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda_policy.hpp"
#include "nanovllm/with/batch_invariant/batch_invariant_backend.cuh"
#include "nanovllm/with/eight_bits/cuda/kv_bytes.cuh"
#include "nanovllm/with/gpt2/cuda/ops.cuh"
#include "nanovllm/with/shards/cuda/shard_draw.cuh"
#include "nanovllm/with/shards/step_sampler.hpp"
#if __has_include("nanovllm/with/speculation.cuh")
#include "nanovllm/with/speculation/eagle3/cuda/ops.cuh"
#endif
#include "nanovllm/with/tiers/cuda/swap_blocks.cuh"

#if __has_include(<nccl.h>)
#include "nanovllm/parallel/nccl.cuh"
#include "nanovllm/with/peers/peer_memory.cuh"
#endif

#else

namespace nanovllm {

/// The kernels need compute capability 8.0: only the CPU backend is there in a translation unit
/// that is compiled for less, as it is when nothing is chosen.
struct CudaPolicy_needs_CMAKE_CUDA_ARCHITECTURES_of_80_or_90a;
using CudaPolicy = CudaPolicy_needs_CMAKE_CUDA_ARCHITECTURES_of_80_or_90a;
using CudaFloat32Policy = CudaPolicy;
using CudaFullPolicy = CudaPolicy;
using CudaFullFloat32Policy = CudaPolicy;
using CudaBatchInvariantPolicy = CudaPolicy;

}  // namespace nanovllm

#endif
#undef NANOVLLM_FIRST_OF
#undef NANOVLLM_FIRST
