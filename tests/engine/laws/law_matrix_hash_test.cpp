// The laws with HashPrefixCache.

#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"

template <int kBlockSize>
using Cache = nanovllm::HashPrefixCache<kBlockSize>;

#include "engine/laws/law_matrix_cpu.inc"
