#pragma once
/// Owner of a captured sequence of kernels.

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "nanovllm/cuda/runtime/check.cuh"

namespace nanovllm::cuda {

/// Kernels recorded once and launched as one. Pointers and sizes are those of the recording, but for
/// the arguments of its first kernel, which may be set anew.
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
    out.graph_ = graph;
    check(cudaGraphInstantiate(&out.exec_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphUpload(out.exec_, stream), "cudaGraphUpload");
    return out;
  }

  Graph() = default;
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(Graph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)), exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(exec_, other.exec_);
    return *this;
  }

  /// Whether everything in it comes behind one kernel: `set_first` can tell which that is. NCCL may
  /// put work of its own beside the first kernel.
  [[nodiscard]] bool begins_with_kernel() const {
    std::size_t count = 0;
    check(cudaGraphGetRootNodes(graph_, nullptr, &count), "cudaGraphGetRootNodes");
    if (count != 1) return false;
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(first(), &type), "cudaGraphNodeGetType");
    return type == cudaGraphNodeTypeKernel;
  }

  /// Launches from now on run the first kernel, whose only argument is an `Args`, on `grid` with
  /// `args`; those that are under way do not change. Only where it `begins_with_kernel`.
  template <class Args>
  void set_first(dim3 grid, const Args& args) const {
    cudaKernelNodeParams params{};
    check(cudaGraphKernelNodeGetParams(first(), &params), "cudaGraphKernelNodeGetParams");
    void* arguments[] = {const_cast<Args*>(&args)};
    params.gridDim = grid;
    params.kernelParams = arguments;
    params.extra = nullptr;
    check(cudaGraphExecKernelNodeSetParams(exec_, first(), &params),
          "cudaGraphExecKernelNodeSetParams");
  }

  /// Enqueues all of it on `stream`.
  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
  }

 private:
  [[nodiscard]] cudaGraphNode_t first() const {
    cudaGraphNode_t out = nullptr;
    std::size_t count = 1;
    check(cudaGraphGetRootNodes(graph_, &out, &count), "cudaGraphGetRootNodes");
    return out;
  }

  cudaGraph_t graph_ = nullptr;  ///< its nodes are what `set_first` names
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace nanovllm::cuda
