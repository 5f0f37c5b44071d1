#pragma once
/// Policies: what an engine is made of, chosen at compile time.
///
/// A policy is a type at namespace scope that derives from `DefaultPolicy` and replaces whole
/// slots:
///
///     struct MyPolicy : nanovllm::DefaultPolicy {
///       using Scheduling = nanovllm::PrefillFirst;
///       static constexpr nanovllm::KvConfig kv{.block_size = 32};
///     };
///
/// A misspelt field inside a slot is a compile error; a misspelt slot is silent, so look at
/// `describe<MyPolicy>()`. docs/policies.md shows how to write each slot's type.

#include <string>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/parallel/host_group.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sched/continuous_batching.hpp"
#include "nanovllm/sched/prefill_first.hpp"

namespace nanovllm {

/// Qwen3 in bfloat16 on the CPU.
struct DefaultPolicy {
  using Element = bf16;                   ///< of weights, activations and the KV cache
  using Backend = CpuBackend;             ///< where memory lives and ops run
  using Communicator = HostGroup;         ///< how tensor-parallel ranks talk
  using Scheduling = ContinuousBatching;  ///< what a step computes
  /// Rules for what may be drawn.
  using LogitsProcessors = nanovllm::LogitsProcessors<MinTokensProcessor>;
  static constexpr KvConfig kv{};  ///< block size, prefix caching
};

/// The same in float32: for tests, and where the last digit counts.
struct Float32Policy : DefaultPolicy {
  using Element = float;
};

/// The slots of `Policy` as they are in force, one a line.
template <class Policy>
[[nodiscard]] std::string describe() {
  return concat("Element        ", name(kDType<typename Policy::Element>),        //
                "\nBackend        ", type_name<typename Policy::Backend>(),       //
                "\nCommunicator   ", type_name<typename Policy::Communicator>(),  //
                "\nScheduling     ", type_name<typename Policy::Scheduling>(),    //
                "\nProcessors     ", type_name<typename Policy::LogitsProcessors>(),
                "\nkv             block_size = ", Policy::kv.block_size,  //
                ", prefix_caching = ", Policy::kv.prefix_caching, "\n");
}

}  // namespace nanovllm

#if defined(__CUDACC__)
#define NANOVLLM_FIRST(first, ...) first
#define NANOVLLM_FIRST_OF(...) NANOVLLM_FIRST(__VA_ARGS__, 0)
#if NANOVLLM_FIRST_OF(__CUDA_ARCH_LIST__) >= 800
#include "nanovllm/cuda_policy.cuh"
#else
namespace nanovllm {
/// The kernels need compute capability 8.0: only the CPU backend is there in a translation unit
/// that is compiled for less, as it is when nothing is chosen.
struct CudaPolicy_needs_CMAKE_CUDA_ARCHITECTURES_of_80_or_90a;
using CudaPolicy = CudaPolicy_needs_CMAKE_CUDA_ARCHITECTURES_of_80_or_90a;
using CudaFloat32Policy = CudaPolicy;
}  // namespace nanovllm
#endif
#undef NANOVLLM_FIRST_OF
#undef NANOVLLM_FIRST
#endif
