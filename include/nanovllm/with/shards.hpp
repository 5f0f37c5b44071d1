#pragma once
/// Draws by shard: each rank draws from its part of the vocabulary.

#include "nanovllm/with/shards/shard_draw.hpp"
