#pragma once
/// Owner of a captured sequence of kernels.

#include <cuda_runtime.h>

#include <utility>

#include "nanovllm/cuda/runtime/check.cuh"

namespace nanovllm::cuda {

/// Kernels recorded once and launched as one. Pointers and sizes are those of the recording.
class Graph {
 public:
  /// Records what `work()` enqueues on `stream`. Nothing runs. `work` must not allocate, copy from
  /// pageable memory or synchronise; it should have run once before, so that all modules are
  /// loaded. Throws what `work` throws, or CudaError; the stream is usable afterwards.
  template <class Work>
  static Graph capture(cudaStream_t stream, const Work& work) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      static_cast<void>(cudaGetLastError());
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    Graph out;
    const cudaError_t status = cudaGraphInstantiate(&out.exec_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    check(cudaGraphUpload(out.exec_, stream), "cudaGraphUpload");
    return out;
  }

  Graph() = default;
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }

  /// Enqueues all of it on `stream`.
  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace nanovllm::cuda
