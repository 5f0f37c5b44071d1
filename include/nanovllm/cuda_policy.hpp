#pragma once
/// Policies that run on the GPU, declared for the host compiler. Where nanovllm::cuda_engines is
/// linked, engine.hpp includes this in any translation unit: an engine that is compiled already, or
/// one of the same model and backend with another scheduling, needs no nvcc.

#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/policy.hpp"

namespace nanovllm {

class BatchInvariantCudaBackend;
class CudaBackend;
class Nccl;
class PeerMemory;
struct DiskTier;
struct DraftsOnDemand;
struct VocabShards;

/// bfloat16 on CUDA devices. What is not here is as in `DefaultPolicy`.
struct CudaPolicy : DefaultPolicy {
  using Backend = CudaBackend;
  using Ranks = ThreadRanks;  ///< a thread for each device
#if __has_include(<nccl.h>)
  using Communicator = Nccl;
#else
  using Communicator = Single;  ///< several devices need NCCL
#endif
  using Draws = VocabShards;  ///< several devices draw each from its part of the vocabulary
  /// Blocks of 64 tokens are one TMA box a head.
  static constexpr KvConfig kv{.block_size = 64};
};

/// `CudaPolicy` with all tiers and drafters, and sums over ranks through the memory of peers. An
/// engine of it needs full_policy.hpp.
struct CudaFullPolicy : CudaPolicy {
  using Tiers = DiskTier;
#if __has_include(<nccl.h>)
  using Communicator = PeerMemory;
#endif
#if __has_include("nanovllm/with/speculation.hpp")
  using Guesses = DraftsOnDemand;
#endif
};

/// `CudaPolicy` in float32: for tests, and where the last digit counts.
struct CudaFloat32Policy : CudaPolicy {
  using Element = float;
};

/// `CudaFullPolicy` in float32.
struct CudaFullFloat32Policy : CudaFullPolicy {
  using Element = float;
};

/// bfloat16 with the same bits for a request whatever it is batched with: docs/numerics.md,
/// "Batch-invariant mode".
struct CudaBatchInvariantPolicy : CudaPolicy {
  using Backend = BatchInvariantCudaBackend;
};

}  // namespace nanovllm
