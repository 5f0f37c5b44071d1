#pragma once
/// Policies with everything that an engine can do in one process: the pool in host memory, the
/// files below it, and tensor-parallel ranks in threads. Costs compile time; `DefaultPolicy` has
/// none of it. On a GPU it is `CudaFullPolicy`, which cuda_policy.hpp names.

#include "nanovllm/engine.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/shards/step_sampler.hpp"
#include "nanovllm/with/tiers/disk_tier.hpp"

namespace nanovllm {

/// `DefaultPolicy` with all tiers and ranks: bfloat16 on the CPU.
struct FullPolicy : DefaultPolicy {
  using Tiers = DiskTier;
  using Ranks = ThreadRanks;
  using Draws = VocabShards;
};

/// The same in float32.
struct FullFloat32Policy : FullPolicy {
  using Element = float;
};

}  // namespace nanovllm
