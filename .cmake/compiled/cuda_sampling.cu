// A list of cuda/compiled_ops.cuh.
#if !defined(NANOVLLM_CUDA_OPS)  // the target defines it; a check of this file alone does not
#define NANOVLLM_CUDA_OPS
#endif
#include "nanovllm/cuda/compiled_ops.cuh"

namespace nanovllm::cuda {

NANOVLLM_CUDA_SAMPLING_OPS();

}  // namespace nanovllm::cuda
