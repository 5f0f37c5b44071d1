#pragma once
/// Rows of host memory on their way to matrices of few bits.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"

namespace nanovllm::cuda {

/// Copies rows of host memory to a device, enqueued on a stream. Page-locked rows must stay until
/// that is done, others are read before a call returns. If an error ends its scope before `finish`,
/// it waits for the copies: what is declared before it may then be freed.
class HostCopies {
 public:
  /// The context's device is current as long as this lives.
  explicit HostCopies(const Context& context) : guard_(context.device), stream_(context.stream) {}
  ~HostCopies() {
    if (is_finished_) return;
    for (void* const copy : copies_) static_cast<void>(cudaFreeAsync(copy, stream_));
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaGetLastError());
  }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Copies `rows` rows of `width` elements. Strides are in elements. Throws CudaError.
  template <class T>
  void copy(T* to, std::int64_t to_stride, const T* from, std::int64_t from_stride,
            std::int64_t width, std::int64_t rows) {
    const auto bytes = [](std::int64_t count) {
      return static_cast<std::size_t>(count) * sizeof(T);
    };
    if (rows == 1 || (to_stride == width && from_stride == width)) {
      check_cuda(cudaMemcpyAsync(to, from, bytes(rows * width), cudaMemcpyHostToDevice, stream_),
                 "cudaMemcpyAsync");
    } else {
      check_cuda(cudaMemcpy2DAsync(to, bytes(to_stride), from, bytes(from_stride), bytes(width),
                                   static_cast<std::size_t>(rows), cudaMemcpyHostToDevice, stream_),
                 "cudaMemcpy2DAsync");
    }
  }

  /// The same rows in device memory, [rows, width], for what is enqueued before `finish`.
  template <class T>
  [[nodiscard]] const T* upload(const T* from, std::int64_t from_stride, std::int64_t width,
                                std::int64_t rows) {
    copies_.reserve(copies_.size() + 1);
    void* copied = nullptr;
    check_cuda(
        cudaMallocAsync(&copied, static_cast<std::size_t>(rows * width) * sizeof(T), stream_),
        "cudaMallocAsync");
    copies_.push_back(copied);
    copy(static_cast<T*>(copied), width, from, from_stride, width, rows);
    return static_cast<const T*>(copied);
  }

  /// All that reads the copies is enqueued. Throws CudaError.
  void finish() {
    for (; !copies_.empty(); copies_.pop_back())
      check_cuda(cudaFreeAsync(copies_.back(), stream_), "cudaFreeAsync");
    is_finished_ = true;
  }

 private:
  const DeviceGuard guard_;
  const cudaStream_t stream_;
  std::vector<void*> copies_;
  bool is_finished_ = false;
};

}  // namespace nanovllm::cuda
