// A list of cuda/compiled_ops.cuh.
#include "nanovllm/cuda/compiled_ops.cuh"

namespace nanovllm::cuda {

NANOVLLM_CUDA_ATTENTION_OPS();

}  // namespace nanovllm::cuda
