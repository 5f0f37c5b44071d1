// The laws with NoPrefixCache.

#include "nanovllm/kv/prefix/no_prefix_cache.hpp"

template <int kBlockSize>
using Cache = nanovllm::NoPrefixCache<kBlockSize>;

#include "engine/laws/law_matrix_cpu.inc"
