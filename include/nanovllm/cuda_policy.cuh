#pragma once
/// Policies that run on the GPU. engine.hpp includes this in translation units of nvcc.

#include "nanovllm/policy.hpp"

#define NANOVLLM_FIRST(first, ...) first
#define NANOVLLM_FIRST_OF(...) NANOVLLM_FIRST(__VA_ARGS__, 0)
#if NANOVLLM_FIRST_OF(__CUDA_ARCH_LIST__) >= 800

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/parallel/communicator.hpp"

#if __has_include(<nccl.h>)
#include "nanovllm/parallel/nccl.cuh"
#endif

namespace nanovllm {

/// bfloat16 on CUDA devices. What is not here is as in `DefaultPolicy`.
struct CudaPolicy : DefaultPolicy {
  using Backend = CudaBackend;
#if __has_include(<nccl.h>)
  using Communicator = Nccl;  ///< one thread a device
#else
  using Communicator = Single;  ///< several devices need NCCL
#endif
  /// Blocks of 64 tokens are one TMA box a head.
  static constexpr KvConfig kv{.block_size = 64};
};

/// The same in float32: for tests, and where the last digit counts.
struct CudaFloat32Policy : CudaPolicy {
  using Element = float;
};

}  // namespace nanovllm

#else

namespace nanovllm {

/// The kernels need compute capability 8.0: only the CPU backend is there in a translation unit
/// that is compiled for less, as it is when nothing is chosen.
struct CudaPolicy_needs_CMAKE_CUDA_ARCHITECTURES_of_80_or_90a;
using CudaPolicy = CudaPolicy_needs_CMAKE_CUDA_ARCHITECTURES_of_80_or_90a;
using CudaFloat32Policy = CudaPolicy;

}  // namespace nanovllm

#endif
#undef NANOVLLM_FIRST_OF
#undef NANOVLLM_FIRST
