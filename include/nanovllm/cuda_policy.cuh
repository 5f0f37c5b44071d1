#pragma once
/// Policies that run on the GPU. policy.hpp includes this in translation units of nvcc.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sched/continuous_batching.hpp"

#if __has_include(<nccl.h>)
#include "nanovllm/parallel/nccl.cuh"
#endif

namespace nanovllm {

/// Qwen3 in bfloat16 on CUDA devices.
struct CudaPolicy {
  using Element = bf16;
  using Backend = CudaBackend;
#if __has_include(<nccl.h>)
  using Communicator = Nccl;  ///< one thread a device
#else
  using Communicator = Single;  ///< several devices need NCCL
#endif
  using Scheduling = ContinuousBatching;
  using LogitsProcessors = nanovllm::LogitsProcessors<MinTokensProcessor>;
  /// Blocks of 64 tokens are one TMA box a head.
  static constexpr KvConfig kv{.block_size = 64};
};

/// The same in float32: for tests, and where the last digit counts.
struct CudaFloat32Policy : CudaPolicy {
  using Element = float;
};

}  // namespace nanovllm
