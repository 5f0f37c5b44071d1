#pragma once
/// What every launcher needs to know: the stream, and the device it runs on.
/// Measured: not at all: the kernel is never launched.

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/device_features.hpp"

namespace nanovllm::cuda {

/// Makes a device the calling thread's current one, and the one before it again when destroyed.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device == previous_) return;
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

namespace detail {

inline constexpr int kWaitsForGrids = 8 * 1024;
inline constexpr int kHasHopperCode = 16 * 1024;

/// Says by its static shared memory what the code that the driver picked for a device was compiled
/// for; never run. A template, so that every program has one.
template <int kUnused>
__global__ void code_probe_kernel() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ volatile char marker[kHasHopperCode];
  marker[threadIdx.x] = 0;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ volatile char marker[kWaitsForGrids];
  marker[threadIdx.x] = 0;
#endif
}

}  // namespace detail

/// A stream, and the features of its device. Non-owning, cheap to copy.
struct Context : DeviceFeatures {
  cudaStream_t stream = nullptr;
  int device = 0;

  /// `stream` on the current device.
  static Context on(cudaStream_t stream) {
    Context out;
    out.stream = stream;
    check_cuda(cudaGetDevice(&out.device), "cudaGetDevice");
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      check_cuda(cudaDeviceGetAttribute(&value, which, out.device), "cudaDeviceGetAttribute");
      return value;
    };
    out.num_sms = attribute(cudaDevAttrMultiProcessorCount);
    out.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                             attribute(cudaDevAttrComputeCapabilityMinor);
    out.l2_bytes = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize));
    out.max_shared_bytes =
        static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    cudaFuncAttributes code{};
    check_cuda(cudaFuncGetAttributes(&code, detail::code_probe_kernel<0>), "cudaFuncGetAttributes");
    out.can_overlap = code.sharedSizeBytes >= detail::kWaitsForGrids;
    out.has_clusters = out.can_overlap;
    if (code.sharedSizeBytes >= detail::kHasHopperCode) out.native_code = 90;
    return out;
  }
};

/// `const LaunchContext auto&` in place of `const Context&` makes a launcher a template: its
/// kernels are compiled where it is called, and not wherever its header is included.
template <class C>
concept LaunchContext = std::derived_from<C, Context>;

}  // namespace nanovllm::cuda
