#pragma once
/// Policies with everything that an engine can do in one process: the pool in host memory, the
/// files below it, tensor-parallel ranks in threads, and drafters where a SpeculativeConfig is set,
/// as far as these wings are there. Costs compile time; `DefaultPolicy` has none of it. On a GPU it
/// is `CudaFullPolicy`, which cuda_policy.hpp names.

#include "nanovllm/cpu.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/policy.hpp"
#if __has_include("nanovllm/with/shards.hpp")
#include "nanovllm/with/shards/step_sampler.hpp"
#endif
#if __has_include("nanovllm/with/speculation.hpp")
#include "nanovllm/with/speculation/drafts_on_demand.hpp"
#endif
#if __has_include("nanovllm/with/tiers.hpp")
#include "nanovllm/with/tiers/disk_tier.hpp"
#endif

namespace nanovllm {

/// `DefaultPolicy` with all tiers, ranks and drafters: bfloat16 on the CPU.
struct FullPolicy : DefaultPolicy {
  using Ranks = ThreadRanks;
#if __has_include("nanovllm/with/tiers.hpp")
  using Tiers = DiskTier;
#endif
#if __has_include("nanovllm/with/shards.hpp")
  using Draws = VocabShards;
#endif
#if __has_include("nanovllm/with/speculation.hpp")
  using Guesses = DraftsOnDemand;
#endif
};

/// The same in float32.
struct FullFloat32Policy : FullPolicy {
  using Element = float;
};

}  // namespace nanovllm
