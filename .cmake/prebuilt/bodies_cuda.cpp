// The cores that the engines of nanovllm::prebuilt_cuda share; they know no backend.
#include "nanovllm/full_policy.hpp"

namespace nanovllm {

template class EngineCore<CudaPolicy::Scheduling, BlocksOf<CudaPolicy>, CudaPolicy::Preemption>;
template class EngineCore<CudaFullPolicy::Scheduling, BlocksOf<CudaFullPolicy>,
                          CudaFullPolicy::Preemption>;

}  // namespace nanovllm
