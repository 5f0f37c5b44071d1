#pragma once
/// The engines with all tiers and ranks that nanovllm::prebuilt and nanovllm::prebuilt_cuda have
/// compiled. full_policy.hpp includes this at its end; see prebuilt.hpp.

#include "nanovllm/engine/prebuilt.hpp"

#if defined(NANOVLLM_PREBUILT)

namespace nanovllm {

NANOVLLM_PREBUILT_CORE(extern, FullPolicy);

#define NANOVLLM_PREBUILT_ENGINES(shape)              \
  NANOVLLM_PREBUILT_RUNNER(shape, FullPolicy);        \
  NANOVLLM_PREBUILT_RUNNER(shape, FullFloat32Policy); \
  NANOVLLM_PREBUILT_ENGINE(shape, FullPolicy);        \
  NANOVLLM_PREBUILT_ENGINE(shape, FullFloat32Policy)
NANOVLLM_FOR_EACH_PREBUILT_SHAPE(NANOVLLM_PREBUILT_ENGINES);
NANOVLLM_FOR_EACH_PREBUILT_CPU_SHAPE(NANOVLLM_PREBUILT_ENGINES);
#undef NANOVLLM_PREBUILT_ENGINES

#if defined(NANOVLLM_PREBUILT_CUDA)
NANOVLLM_PREBUILT_CORE(extern, CudaFullPolicy);
#define NANOVLLM_PREBUILT_ENGINES(shape) NANOVLLM_PREBUILT_CUDA_ENGINE(shape, CudaFullPolicy)
NANOVLLM_FOR_EACH_PREBUILT_SHAPE(NANOVLLM_PREBUILT_ENGINES);
#undef NANOVLLM_PREBUILT_ENGINES
#endif

}  // namespace nanovllm

#endif
