#pragma once
/// Draws by shard: where this is included, each rank draws from its part of the vocabulary. All
/// files of a program that name an engine with several ranks include it, or none does;
/// full_policy.hpp, cuda.cuh and with/mpi.hpp do.

#include "nanovllm/with/shards/shard_draw.hpp"
#include "nanovllm/with/shards/step_sampler.hpp"
