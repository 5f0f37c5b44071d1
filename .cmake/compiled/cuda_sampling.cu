// A list of cuda/compiled_ops.cuh, and that of a wing.
#if !defined(NANOVLLM_CUDA_OPS)  // the target defines it; a check of this file alone does not
#define NANOVLLM_CUDA_OPS
#endif
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/with/shards/cuda/shard_draw.cuh"

namespace nanovllm::cuda {

NANOVLLM_CUDA_SAMPLING_OPS();
NANOVLLM_CUDA_SHARDS_OPS();

}  // namespace nanovllm::cuda
