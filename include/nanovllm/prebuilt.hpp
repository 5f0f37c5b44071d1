#pragma once
/// The engines that the CMake targets nanovllm::prebuilt and nanovllm::prebuilt_cuda have compiled.
///
///     target_link_libraries(app PRIVATE nanovllm::prebuilt)
///
/// is all that changes: the target defines NANOVLLM_PREBUILT, engine.hpp then includes this at its
/// end, and the engines named here are linked, not compiled again. Any other engine is compiled as
/// always.

#if defined(NANOVLLM_PREBUILT)

/// The shapes, each with the policies below. CMake reads this list too.
#define NANOVLLM_FOR_EACH_PREBUILT_SHAPE(use) \
  use(fairytale);                             \
  use(qwen3_0_6b);                            \
  use(qwen3_1_7b);                            \
  use(qwen3_4b);                              \
  use(qwen3_8b);                              \
  use(qwen3_14b);                             \
  use(qwen3_32b);                             \
  use(qwen3_any)

namespace nanovllm {

/// The core of every engine whose policy schedules as the stock policies do.
extern template class EngineCore<
    DefaultPolicy::Scheduling,
    BlockManager<DefaultPolicy::kv.block_size,
                 DefaultPolicy::PrefixCache<DefaultPolicy::kv.block_size>>,
    DefaultPolicy::Preemption>;

#define NANOVLLM_PREBUILT_ENGINES(shape)                                             \
  extern template class Runner<Qwen3<shapes::shape>, RunnerPolicyOf<DefaultPolicy>>; \
  extern template class Runner<Qwen3<shapes::shape>, RunnerPolicyOf<Float32Policy>>; \
  extern template class Engine<Qwen3<shapes::shape>, DefaultPolicy>;                 \
  extern template class Engine<Qwen3<shapes::shape>, Float32Policy>
NANOVLLM_FOR_EACH_PREBUILT_SHAPE(NANOVLLM_PREBUILT_ENGINES);
#undef NANOVLLM_PREBUILT_ENGINES

#if defined(NANOVLLM_PREBUILT_CUDA) && defined(__CUDACC__)
#define NANOVLLM_PREBUILT_ENGINES(shape)                                          \
  extern template class Runner<Qwen3<shapes::shape>, RunnerPolicyOf<CudaPolicy>>; \
  extern template class Engine<Qwen3<shapes::shape>, CudaPolicy>
NANOVLLM_FOR_EACH_PREBUILT_SHAPE(NANOVLLM_PREBUILT_ENGINES);
#undef NANOVLLM_PREBUILT_ENGINES
#endif

}  // namespace nanovllm

#undef NANOVLLM_FOR_EACH_PREBUILT_SHAPE

#endif
