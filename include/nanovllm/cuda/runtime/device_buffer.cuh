#pragma once
/// Owners of device memory, of page-locked host memory, and of that through which weights go to the
/// device.

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"

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

/// Two pinned buffers, alternately: one is filled while the other is copied. Belongs to one thread,
/// whose current device it sets and leaves set. The destructor waits for the copies.
template <class T>
class StagingBuffers {
 public:
  StagingBuffers(int device, cudaStream_t stream) : device_(select(device)), stream_(stream) {}
  ~StagingBuffers() {
    for (const Slot& slot : slots_) cudaEventSynchronize(slot.copied.get());
  }
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  /// Memory for `count` elements, no longer read by any copy.
  T* acquire(std::size_t count) {
    Slot& slot = slots_[next_];
    slot.copied.synchronize();
    if (slot.memory.size() < count) {
      slot.memory = PinnedBuffer<T>();  // the old one goes first
      slot.memory = PinnedBuffer<T>(count);
    }
    return slot.memory.data();
  }

  /// Everything that was enqueued on the stream so far may still read what `acquire` gave last.
  void release() {
    slots_[next_].copied.record(stream_);
    next_ = (next_ + 1) % slots_.size();
  }

 private:
  struct Slot {
    PinnedBuffer<T> memory;
    Event copied;
  };
  static int select(int device) {
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    return device;
  }

  int device_;  // ahead of the events, which belong to the device that is current
  cudaStream_t stream_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace nanovllm::cuda
