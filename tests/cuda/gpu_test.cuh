#pragma once
/// What the GPU tests share: a stream, memory that goes there and back, and 'skipped' without a
/// GPU.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <span>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"

namespace nanovllm::test {

inline int num_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

/// Whether there are so many GPUs; says 'skipped' when not.
inline bool has_gpus(int needed) {
  const int count = num_gpus();
  if (count >= needed) return true;
  std::cout << "skipped: " << count << " GPUs, needed: " << needed << '\n';
  return false;
}

/// Test cases begin with `if (!has_gpu()) return;`.
inline bool has_gpu() { return has_gpus(1); }

/// A stream with its context; `sync()` throws what any kernel before it did wrong.
struct Gpu {
  cuda::Stream stream;
  cuda::Context context = cuda::Context::on(stream.get());
  void sync() const { stream.synchronize(); }
  /// Whether Hopper's own kernels run here.
  [[nodiscard]] bool is_hopper() const {
    return cuda::HopperTables::is(context) && cuda::HopperTables::has_code(context);
  }
};

/// Fills a block's dynamic shared memory, `bytes` of it, with ones: NaN in every float type.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) poison_shared_memory_kernel(int bytes) {
  extern __shared__ unsigned poison_of_shared_memory[];
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 4; i += kThreads)
    reinterpret_cast<volatile unsigned*>(poison_of_shared_memory)[i] = ~0u;
  cuda::grid_dependency_wait();
}

/// Leaves NaN in the shared memory of all multiprocessors for the kernel after: what that one reads
/// without having written it shows. A block takes a whole multiprocessor, so that each gets one; the
/// kernel after starts when all of them have ended.
inline void poison_shared_memory(const cuda::Context& context) {
  const auto bytes = static_cast<int>(context.max_shared_bytes);
  cuda::launch(poison_shared_memory_kernel<1024>,
               {.grid = static_cast<unsigned>(context.num_sms),
                .block = dim3(1024),
                .shared_bytes = context.max_shared_bytes,
                .overlap = false},
               context, bytes);
}

/// Fills device memory with ones, after what is enqueued.
template <class T>
void poison(T* memory, std::int64_t count, const cuda::Context& context) {
  cuda::check_cuda(
      cudaMemsetAsync(memory, 0xff, static_cast<std::size_t>(count) * sizeof(T), context.stream),
      "cudaMemsetAsync");
}

/// Unit roundoff of an element type.
template <class T>
inline constexpr double kUnit = std::is_same_v<T, float>  ? 0x1p-24
                                : std::is_same_v<T, half> ? 0x1p-11
                                                          : 0x1p-8;

/// Rounds a double to `T` by way of float, as the contracts' rounding points do.
template <class T>
double rounded(double x) {
  return static_cast<float>(T(static_cast<float>(x)));
}

/// An array with a copy on the host and one on the device. `guard` elements of poison (NaN bits)
/// stand before and after the device's, so that writes outside show.
template <class T>
class GpuArray {
 public:
  static constexpr std::size_t kGuard = 64;

  /// Poisoned: every byte is 0xff, a NaN in every float type.
  explicit GpuArray(std::size_t size) : host(size), device_(size + 2 * kGuard) {
    cuda::check_cuda(cudaMemset(device_.data(), 0xff, device_.size_bytes()), "cudaMemset");
    cuda::check_cuda(cudaDeviceSynchronize(),
                     "cudaDeviceSynchronize");  // streams do not wait for it
    if (size > 0) std::memset(static_cast<void*>(host.data()), 0xff, size * sizeof(T));
  }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(values.size()) {
    host = values;
    upload();
  }

  /// Uniform in [low, high), a function of `seed` alone.
  static GpuArray random(std::size_t size, std::uint64_t seed, double low = -2, double high = 2) {
    GpuArray out(size);
    for (std::size_t i = 0; i < size; ++i) {
      const auto word = philox4x32(seed, {static_cast<std::uint32_t>(i / 4), 0, 0, 7})[i % 4];
      out.host[i] = T(static_cast<float>(low + (high - low) * to_unit_interval(word)));
    }
    out.upload();
    return out;
  }

  [[nodiscard]] T* data() { return device_.data() + kGuard; }
  [[nodiscard]] std::size_t size() const { return host.size(); }

  void upload() { copy(data(), host.data(), host.size(), cudaMemcpyHostToDevice); }
  void download() { copy(host.data(), data(), host.size(), cudaMemcpyDeviceToHost); }

  /// Whether the poison around the array is still there.
  [[nodiscard]] bool guards_intact() {
    std::vector<T> guards(2 * kGuard);
    copy(guards.data(), device_.data(), kGuard, cudaMemcpyDeviceToHost);
    copy(guards.data() + kGuard, data() + host.size(), kGuard, cudaMemcpyDeviceToHost);
    const auto* bytes = reinterpret_cast<const unsigned char*>(guards.data());
    for (std::size_t i = 0; i < guards.size() * sizeof(T); ++i) {
      if (bytes[i] != 0xff) return false;
    }
    return true;
  }

  std::vector<T> host;

 private:
  static void copy(T* to, const T* from, std::size_t count, cudaMemcpyKind kind) {
    if (count == 0) return;
    cuda::check_cuda(cudaMemcpy(to, from, count * sizeof(T), kind), "cudaMemcpy");
    // The call may return before pageable memory has arrived, and streams do not wait for it.
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  cuda::DeviceBuffer<T> device_;
};

}  // namespace nanovllm::test
