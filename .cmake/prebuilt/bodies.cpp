// The bodies of what core/prebuilt.hpp tells of, as ordinary functions, and the cores of the engines.
#define NANOVLLM_PREBUILT_SOURCE
#include "nanovllm/nanovllm.hpp"

namespace nanovllm {

template class EngineCore<DefaultPolicy::Scheduling, BlocksOf<DefaultPolicy>,
                          DefaultPolicy::Preemption>;
template class EngineCore<FullPolicy::Scheduling, BlocksOf<FullPolicy>, FullPolicy::Preemption>;

}  // namespace nanovllm
