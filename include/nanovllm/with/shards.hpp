#pragma once
/// Draws by shard: with `using Draws = nanovllm::VocabShards;` in a policy each rank draws from its
/// part of the vocabulary. `FullPolicy` and `CudaPolicy` have it.

#include "nanovllm/with/shards/shard_draw.hpp"
#include "nanovllm/with/shards/step_sampler.hpp"
