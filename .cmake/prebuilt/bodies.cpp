// The bodies of what core/prebuilt.hpp tells of, as ordinary functions, and the core of the engines.
#define NANOVLLM_PREBUILT_SOURCE
#include "nanovllm/nanovllm.hpp"

namespace nanovllm {

template class EngineCore<
    DefaultPolicy::Scheduling,
    DefaultPolicy::Blocks<DefaultPolicy::kv.block_size,
                          DefaultPolicy::PrefixCache<DefaultPolicy::kv.block_size>>,
    DefaultPolicy::Preemption>;

}  // namespace nanovllm
