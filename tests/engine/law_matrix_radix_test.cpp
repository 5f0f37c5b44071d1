// The laws with RadixPrefixCache.

#include "nanovllm/kv/radix_prefix_cache.hpp"

template <int kBlockSize>
using Cache = nanovllm::RadixPrefixCache<kBlockSize>;

#include "engine/law_matrix_cpu.inc"
