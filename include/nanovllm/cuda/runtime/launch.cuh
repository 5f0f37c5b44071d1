#pragma once
/// Launching kernels: checked, and overlapping with the kernel before where the device can.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"

namespace nanovllm::cuda {

/// Waits until the kernels before this one in the stream are done and their writes are visible.
///
/// Every kernel that `launch` starts must call this on every path before it touches memory that an
/// earlier kernel writes or reads; only weights and shared memory may be touched before. What an
/// earlier kernel wrote must not be read through `const __restrict__` pointers or `__ldg`: the
/// compiler could read it through the non-coherent cache, ahead of the wait.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel in the stream start once all blocks of this one have called this or ended;
/// it then waits in its own `grid_dependency_wait`. Gives no visibility of writes.
///
/// Kernels call it first, ahead of their own wait: a kernel that stands by costs nothing but its
/// place on a multiprocessor, and a linear layer after it has its weights on their way sooner. It
/// makes nothing less safe for kernels that wait before they touch what others do: a kernel is done
/// only when those ahead of it are, because it has waited for them. The exceptions are readers that
/// do not wait: see `NextStart`, and cuda/experts, where a product by gates and ups calls it after
/// its wait, because the product after it reads the plan ahead of its own.
__device__ __forceinline__ void grid_dependency_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// When a kernel lets the next one in the stream start.
enum class NextStart : std::uint8_t {
  at_once,     ///< whatever is still running ahead of it
  after_wait,  ///< once all kernels ahead of it are done: what they wrote may be read at the start
               ///< of the next one, and of every one after it
};

/// The part of `grid_dependency_launch` that comes first; the wait and `launch_next_late` follow.
__device__ __forceinline__ void launch_next_early(NextStart start) {
  if (start == NextStart::at_once) grid_dependency_launch();
}
/// After `grid_dependency_wait`.
__device__ __forceinline__ void launch_next_late(NextStart start) {
  if (start == NextStart::after_wait) grid_dependency_launch();
}

/// Shape of a launch.
struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory; the 48 KiB default limit is raised
  int cluster = 1;               ///< blocks of a cluster, along x; compute capability ≥ 9.0
  /// Clusters go where there is room, for several blocks of one on a multiprocessor too. As a rule
  /// the blocks are spread, and wait for that: of 132 multiprocessors with room for one block
  /// each, 30 clusters of four come in beside another kernel and no 31st.
  bool packs_clusters = false;
  /// Percent of the memory that L1 and shared memory have in common that shared memory should get,
  /// -1 for what the kernel needs. A multiprocessor takes blocks of a kernel that wants another
  /// split only when it is idle; so kernels that are to overlap want the same.
  int shared_percent = -1;
  bool overlap = true;  ///< may start before the kernel ahead has ended (compute capability ≥ 9.0)
};

namespace detail {

/// Has `kernel` ask for up to `bytes` of dynamic shared memory on the current device, which is
/// `device`. The driver is called when that is more than in any call before, so once for each
/// kernel and device as a rule; returns whether it was. Thread-safe. Throws CudaError when the
/// driver refuses.
inline bool allow_shared_bytes(const void* kernel, int device, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return false;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  most = bytes;
  return true;
}

}  // namespace detail

/// Starts `kernel` on `context.stream`. Throws CudaError when the launch is refused; errors during
/// the run show in a later call.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& config, const Context& context,
            Arguments&&... arguments) {
  if (config.shared_bytes > 48 * 1024) {
    detail::allow_shared_bytes(reinterpret_cast<const void*>(kernel), context.device,
                               config.shared_bytes);
  }
  cudaLaunchAttribute attributes[4]{};
  unsigned num_attributes = 0;
  if (config.overlap && context.can_overlap) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.shared_percent >= 0) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute.val.sharedMemCarveout = static_cast<unsigned>(config.shared_percent);
  }
  if (config.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(config.cluster), 1, 1};
  }
  if (config.cluster > 1 && config.packs_clusters) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    attribute.val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
  }
  cudaLaunchConfig_t launch_config{};
  launch_config.gridDim = config.grid;
  launch_config.blockDim = config.block;
  launch_config.dynamicSmemBytes = config.shared_bytes;
  launch_config.stream = context.stream;
  launch_config.attrs = attributes;
  launch_config.numAttrs = num_attributes;
  check_cuda(cudaLaunchKernelEx(&launch_config, kernel, Parameters(arguments)...),
             "cudaLaunchKernelEx");
}

}  // namespace nanovllm::cuda
