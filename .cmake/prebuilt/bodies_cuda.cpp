// The cores that the engines of nanovllm::prebuilt_cuda share; they know no backend.
#include "nanovllm/full_policy.hpp"

namespace nanovllm {

NANOVLLM_PREBUILT_CORE(, CudaPolicy);
NANOVLLM_PREBUILT_CORE(, CudaFullPolicy);

}  // namespace nanovllm
