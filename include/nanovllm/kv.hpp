#pragma once
/// The KV cache: blocks, who holds them, and which are found again by their tokens.

#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/block_map.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/eviction_by_value.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/kv/prefix/no_prefix_cache.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
