// The laws with RadixPrefixCache.

#include "nanovllm/with/radix/radix_prefix_cache.hpp"

template <int kBlockSize>
using Cache = nanovllm::RadixPrefixCache<kBlockSize>;

#include "engine/laws/law_matrix_cpu.inc"
