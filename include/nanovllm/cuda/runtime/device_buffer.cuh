#pragma once
/// Owners of device memory and of page-locked host memory.

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/runtime/check.cuh"

namespace nanovllm::cuda {

/// Owner of `size()` elements of device memory, 256-byte aligned, on the device that is current
/// when it is made. The elements have no initial value. Destruction waits for work that uses them.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;

  /// Throws CudaError naming the size and what was free when the device has no room.
  explicit DeviceBuffer(std::size_t size) : size_(size) {
    if (size == 0) return;
    void* pointer = nullptr;
    if (cudaMalloc(&pointer, size * sizeof(T)) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      std::size_t free = 0, total = 0;
      check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      throw CudaError(concat("cudaMalloc: ", size * sizeof(T), " bytes were asked for, ", free,
                             " of ", total, " bytes of device memory are free"));
    }
    data_ = static_cast<T*>(pointer);
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) cudaFree(data_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t size_bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Owner of `size()` elements of page-locked host memory, which the device copies from and to
/// without a detour.
template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;

  explicit PinnedBuffer(std::size_t size) : size_(size) {
    if (size == 0) return;
    void* pointer = nullptr;
    check_cuda(cudaMallocHost(&pointer, size * sizeof(T)), "cudaMallocHost");
    data_ = static_cast<T*>(pointer);
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace nanovllm::cuda
