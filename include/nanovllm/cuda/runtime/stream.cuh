#pragma once
/// Owners of streams and events.

#include <cuda_runtime.h>

#include <utility>

#include "nanovllm/cuda/runtime/check.cuh"

namespace nanovllm::cuda {

/// Owner of a non-blocking stream of the device that is current when it is made.
class Stream {
 public:
  Stream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
  }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  [[nodiscard]] cudaStream_t get() const { return stream_; }

  /// Blocks the host until everything enqueued so far is done. Throws CudaError for what failed.
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Owner of an event without timing, or with it.
class Event {
 public:
  explicit Event(bool timing = false) {
    check_cuda(
        cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  [[nodiscard]] cudaEvent_t get() const { return event_; }

  /// Marks the end of what `stream` has been given so far.
  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }

  /// Has what `stream` is given from now on wait for the recorded work.
  void hold(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

  /// Blocks the host until the recorded work is done; returns at once if nothing was recorded.
  void synchronize() const { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

  /// Whether the recorded work is done, or nothing was recorded. Throws CudaError when it failed.
  [[nodiscard]] bool is_done() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "cudaEventQuery");
    return true;
  }

  /// Milliseconds from `begin` to this event; both need timing and must be done.
  [[nodiscard]] float milliseconds_since(const Event& begin) const {
    float out = 0.f;
    check_cuda(cudaEventElapsedTime(&out, begin.event_, event_), "cudaEventElapsedTime");
    return out;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace nanovllm::cuda
