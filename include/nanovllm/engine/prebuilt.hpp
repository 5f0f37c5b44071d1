#pragma once
/// The engines that the CMake targets nanovllm::prebuilt and nanovllm::prebuilt_cuda have compiled.
///
/// ```cmake
/// target_link_libraries(app PRIVATE nanovllm::prebuilt)
/// ```
///
/// is all that changes: the target defines NANOVLLM_PREBUILT, engine.hpp then includes this at its
/// end, and the engines named here are linked, not compiled again. Any other engine is compiled as
/// always.

#if defined(NANOVLLM_PREBUILT)

#include <memory>

/// The shapes, each with the policies below. CMake reads this list too.
#define NANOVLLM_FOR_EACH_PREBUILT_SHAPE(use) \
  use(fairytale);                             \
  use(qwen3_0_6b);                            \
  use(qwen3_1_7b);                            \
  use(qwen3_4b);                              \
  use(qwen3_8b);                              \
  use(qwen3_14b);                             \
  use(qwen3_32b);                             \
  use(qwen3_any);                             \
  use(gpt2_any)
/// Those of models that run on the CPU alone, where the target has them: it says so by the
/// definition, so that a program whose target leaves them out compiles them itself.
#if defined(NANOVLLM_PREBUILT_EXPERTS)
#define NANOVLLM_FOR_EACH_PREBUILT_CPU_SHAPE(use) use(qwen3_moe_any)
#else
#define NANOVLLM_FOR_EACH_PREBUILT_CPU_SHAPE(use) static_assert(true)
#endif

namespace nanovllm {

/// The core of every engine whose policy plans and caches as the stock policies do, and what it has
/// for sessions. These macros stay defined, for prebuilt_full.hpp and the library's sources.
#define NANOVLLM_PREBUILT_CORE(extern_or_nothing, Policy)                           \
  extern_or_nothing template class EngineCore<Policy::Scheduling, BlocksOf<Policy>, \
                                              Policy::Preemption>;                  \
  extern_or_nothing template class SessionKv<                                       \
      EngineCore<Policy::Scheduling, BlocksOf<Policy>, Policy::Preemption>, BlocksOf<Policy>>
NANOVLLM_PREBUILT_CORE(extern, DefaultPolicy);

/// An engine, and what computes the steps of every engine of this model that differs from it in
/// scheduling, preemption, cache, processors or block size.
#define NANOVLLM_PREBUILT_ENGINE(shape, Policy)                                                   \
  extern template std::unique_ptr<StepRunner>                                                     \
  make_runner<ModelOf<shapes::shape>, RunnerPolicyOf<Policy>>(                                    \
      const ModelOf<shapes::shape>::Config&, const RunnerSetup&);                                 \
  extern template BackendTraits backend_traits<ModelOf<shapes::shape>, RunnerPolicyOf<Policy>>(); \
  extern template class Conversations<Engine<ModelOf<shapes::shape>, Policy>>;                    \
  extern template class Engine<ModelOf<shapes::shape>, Policy>
#define NANOVLLM_PREBUILT_RUNNER(shape, Policy) \
  extern template class Runner<ModelOf<shapes::shape>, RunnerPolicyOf<Policy>>

#define NANOVLLM_PREBUILT_ENGINES(shape)          \
  NANOVLLM_PREBUILT_RUNNER(shape, DefaultPolicy); \
  NANOVLLM_PREBUILT_RUNNER(shape, Float32Policy); \
  NANOVLLM_PREBUILT_ENGINE(shape, DefaultPolicy); \
  NANOVLLM_PREBUILT_ENGINE(shape, Float32Policy)
NANOVLLM_FOR_EACH_PREBUILT_SHAPE(NANOVLLM_PREBUILT_ENGINES);
NANOVLLM_FOR_EACH_PREBUILT_CPU_SHAPE(NANOVLLM_PREBUILT_ENGINES);
#undef NANOVLLM_PREBUILT_ENGINES

#if defined(NANOVLLM_PREBUILT_CUDA)
#if defined(__CUDACC__)  // elsewhere the backend is a name
#define NANOVLLM_PREBUILT_CUDA_ENGINE(shape, Policy) \
  NANOVLLM_PREBUILT_RUNNER(shape, Policy);           \
  NANOVLLM_PREBUILT_ENGINE(shape, Policy)
#else
#define NANOVLLM_PREBUILT_CUDA_ENGINE(shape, Policy) NANOVLLM_PREBUILT_ENGINE(shape, Policy)
#endif
NANOVLLM_PREBUILT_CORE(extern, CudaPolicy);
#define NANOVLLM_PREBUILT_ENGINES(shape) NANOVLLM_PREBUILT_CUDA_ENGINE(shape, CudaPolicy)
NANOVLLM_FOR_EACH_PREBUILT_SHAPE(NANOVLLM_PREBUILT_ENGINES);
#undef NANOVLLM_PREBUILT_ENGINES
#endif

}  // namespace nanovllm

#endif
