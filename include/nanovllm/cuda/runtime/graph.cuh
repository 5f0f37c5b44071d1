#pragma once
/// Owner of a captured sequence of kernels.

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/runtime/check.cuh"

namespace nanovllm::cuda {

/// Kernels recorded once and launched as one. Pointers and sizes are those of the recording, but
/// for the arguments of its first kernel, which may be set again.
class Graph {
 public:
  /// Records what `work()` enqueues on `stream`. Nothing runs. `work` must not allocate, copy from
  /// pageable memory or synchronise; it should have run once before, so that all modules are
  /// loaded. Throws what `work` throws, or CudaError; the stream is usable afterwards.
  template <class Work>
  static Graph capture(cudaStream_t stream, const Work& work) {
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
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
    check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    Graph out;
    out.graph_ = graph;
    out.first_ = find_first(graph);
    check_cuda(cudaGraphInstantiate(&out.exec_, graph, 0), "cudaGraphInstantiate");
    check_cuda(cudaGraphUpload(out.exec_, stream), "cudaGraphUpload");
    return out;
  }

  Graph() = default;
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(Graph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)),
        exec_(std::exchange(other.exec_, nullptr)),
        first_(std::exchange(other.first_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(exec_, other.exec_);
    std::swap(first_, other.first_);
    return *this;
  }

  /// Whether it begins with one kernel, which `set_first` names: of what comes after nothing, one
  /// thing is a kernel. Others may be there: NCCL's first call in a recording has a stream of its
  /// own wait for an event outside of it, in no order with the first kernel. That needs none: a
  /// replay comes after all that its stream was given before, what reads the kernel's results was
  /// recorded after it, and other arguments move no node.
  [[nodiscard]] bool begins_with_kernel() const { return first_ != nullptr; }

  /// Launches from now on run the first kernel, whose only argument is an `Args`, on `grid` with
  /// `args`; those that are under way do not change. Throws CudaError unless it
  /// `begins_with_kernel`.
  template <class Args>
  void set_first(dim3 grid, const Args& args) const {
    check<CudaError>(begins_with_kernel(),
                     "Graph::set_first: the recording does not begin with one kernel");
    cudaKernelNodeParams params{};
    check_cuda(cudaGraphKernelNodeGetParams(first_, &params), "cudaGraphKernelNodeGetParams");
    void* arguments[] = {const_cast<Args*>(&args)};
    params.gridDim = grid;
    params.kernelParams = arguments;
    params.extra = nullptr;
    check_cuda(cudaGraphExecKernelNodeSetParams(exec_, first_, &params),
               "cudaGraphExecKernelNodeSetParams");
  }

  /// Enqueues all of it on `stream`.
  void launch(cudaStream_t stream) const {
    check_cuda(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
  }

 private:
  /// The only kernel among the nodes without a predecessor; null if there is none, or several.
  [[nodiscard]] static cudaGraphNode_t find_first(cudaGraph_t graph) {
    std::size_t count = 0;
    check_cuda(cudaGraphGetRootNodes(graph, nullptr, &count), "cudaGraphGetRootNodes");
    std::vector<cudaGraphNode_t> roots(count);
    check_cuda(cudaGraphGetRootNodes(graph, roots.data(), &count), "cudaGraphGetRootNodes");
    cudaGraphNode_t out = nullptr;
    for (const cudaGraphNode_t root : roots) {
      cudaGraphNodeType type{};
      check_cuda(cudaGraphNodeGetType(root, &type), "cudaGraphNodeGetType");
      if (type == cudaGraphNodeTypeKernel && std::exchange(out, root) != nullptr) return nullptr;
    }
    return out;
  }

  cudaGraph_t graph_ = nullptr;  ///< owns `first_`
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t first_ = nullptr;
};

}  // namespace nanovllm::cuda
