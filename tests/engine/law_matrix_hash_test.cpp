// The laws with HashPrefixCache.

#include "nanovllm/kv/hash_prefix_cache.hpp"

template <int kBlockSize>
using Cache = nanovllm::HashPrefixCache<kBlockSize>;

#include "engine/law_matrix_cpu.inc"
