#pragma once
/// Page-locked staging memory for weights on their way to the device.

#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"

namespace nanovllm::cuda {

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
