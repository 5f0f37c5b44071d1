// A list of cuda/compiled_ops.cuh, and those of wings.
#if !defined(NANOVLLM_CUDA_OPS)  // the target defines it; a check of this file alone does not
#define NANOVLLM_CUDA_OPS
#endif
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/with/gpt2/cuda/ops.cuh"
#include "nanovllm/with/tiers/cuda/swap_blocks.cuh"

namespace nanovllm::cuda {

NANOVLLM_CUDA_OTHER_OPS();
NANOVLLM_CUDA_GPT2_OPS();
NANOVLLM_CUDA_TIERS_OPS();

}  // namespace nanovllm::cuda
