// The laws with NoPrefixCache.

#include "nanovllm/kv/no_prefix_cache.hpp"

template <int kBlockSize>
using Cache = nanovllm::NoPrefixCache<kBlockSize>;

#include "engine/law_matrix_cpu.inc"
