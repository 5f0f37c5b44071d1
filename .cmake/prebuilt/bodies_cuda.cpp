// The core that the engines of nanovllm::prebuilt_cuda share; it knows no backend.
#include "nanovllm/engine.hpp"

namespace nanovllm {

template class EngineCore<CudaPolicy::Scheduling,
                          CudaPolicy::Blocks<CudaPolicy::kv.block_size,
                                             CudaPolicy::PrefixCache<CudaPolicy::kv.block_size>>,
                          CudaPolicy::Preemption>;

}  // namespace nanovllm
