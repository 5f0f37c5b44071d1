#pragma once
/// The CUDA backend: one device of compute capability 8.0 or later.

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/cuda/linear/tune/layer_tuner.cuh"
#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_claim.hpp"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/cuda/sampling/logit_edits.cuh"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/projections.hpp"

namespace nanovllm {

namespace cuda {
class Fp8Matrix;
}

/// Owns one rank's stream, library handles and scratch memory, and runs every op by its function in
/// `cuda/`. Ops are enqueued and return at once; none allocates or synchronises, so any sequence of
/// them can be captured.
class CudaBackend {
 public:
  template <class T>
  using Buffer = cuda::DeviceBuffer<T>;
  /// Page-locked, for copies that the host does not wait for.
  template <class T>
  using HostBuffer = cuda::PinnedBuffer<T>;
  template <Element T>
  using Matrix = cuda::DeviceMatrix<T>;
  using Fp8Matrix = cuda::Fp8Matrix;  ///< with/eight_bits/cuda/ops.cuh
  using Graph = cuda::Graph;
  using Event = cuda::Event;

  /// Pinned buffers of one loading thread.
  template <class T>
  class Staging : public cuda::StagingBuffers<T> {
   public:
    explicit Staging(const CudaBackend& backend)
        : cuda::StagingBuffers<T>(backend.state_.context.device, backend.state_.context.stream) {}
  };

  static constexpr bool kAsynchronous = true;
  static constexpr bool kSharedMemory = false;
  static constexpr bool kAccumulatesResidual = true;
  static constexpr bool kSharesPrefixes = true;
  /// Whether a step may read shared prefixes now.
  [[nodiscard]] static bool may_share_prefixes() { return cuda::WaitingGroup::num_alive() < 2; }
  static constexpr bool kSamplesPlainRows = true;
  static constexpr double kKvShare = 0.9;
  static constexpr int kLoadThreads = 4;
  /// The default for the most tokens of a step: enough to run the dense
  /// layers at full rate.
  static constexpr int kDefaultBatchedTokens = 16384;

  /// Throws CudaError when there is no such device or it is older than compute capability 8.0.
  explicit CudaBackend(const BackendConfig& config)
      : guard_(std::make_unique<cuda::DeviceGuard>(checked_device(config.device))),
        stream_(),
        state_{.context = cuda::Context::on(stream_.get())} {
    check<CudaError>(state_.context.compute_capability >= 80, "CUDA device ", config.device,
                     " has compute capability ", state_.context.compute_capability / 10, ".",
                     state_.context.compute_capability % 10, ", at least 8.0 is needed");
    guard_.reset();
  }

  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  [[nodiscard]] cuda::DeviceGuard activate() const {
    return cuda::DeviceGuard(state_.context.device);
  }
  [[nodiscard]] const cuda::Context& context() const { return state_.context; }

  /// Allocates the scratch memory of attention and sampler.
  void reserve(const ReserveArgs& args) { state_.reserve(args); }
  /// The same of an op that not every engine has, by `reserve_op(args, state)` next to it.
  template <class Args>
  requires requires(const Args& args, cuda::OpState& state) { reserve_op(args, state); }
  void reserve(const Args& args) { reserve_op(args, state_); }

  // ---- Memory ----

  /// Enqueued; pageable memory is read before the call returns.
  template <class T>
  void upload(const T* from, T* to, std::size_t count) {
    copy(from, to, count, cudaMemcpyHostToDevice);
  }

  /// The same without waiting for ops under way: only those enqueued later wait for the copy.
  /// `from` is page-locked.
  template <class T>
  void upload_early(const T* from, T* to, std::size_t count) {
    if (count == 0) return;
    cuda::check_cuda(
        cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, early_stream_.get()),
        "cudaMemcpyAsync");
    uploaded_.record(early_stream_.get());
    uploaded_.hold(stream_.get());
  }

  /// Waits.
  template <class T>
  void download(const T* from, T* to, std::size_t count) {
    copy(from, to, count, cudaMemcpyDeviceToHost);
    stream_.synchronize();
  }

  /// The same beside ops under way, from any thread: elements as they are by now. Waits for the
  /// copy alone.
  template <class T>
  void download_early(const T* from, T* to, std::size_t count) const {
    const auto active = activate();
    cuda::check_cuda(
        cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToHost, read_stream_.get()),
        "cudaMemcpyAsync");
    read_stream_.synchronize();
  }

  /// Enqueued; `to` is page-locked and holds the elements once an event recorded later is done.
  template <class T>
  void download_later(const T* from, T* to, std::size_t count) {
    copy(from, to, count, cudaMemcpyDeviceToHost);
  }

  /// Enqueued; pageable memory is read before the call returns.
  template <class T>
  void set_rows(Matrix<T>& matrix, std::int64_t first_row, MatrixView<const T> rows) {
    matrix.set_rows(first_row, rows, stream_.get());
  }

  /// The same of a matrix of another format, and of rows as a checkpoint has stored them.
  template <class AnyMatrix, class Rows>
  requires requires(AnyMatrix& matrix, const Rows& rows, const cuda::Context& context) {
    matrix.set_rows(std::int64_t{}, rows, context);
  }
  auto set_rows(AnyMatrix& matrix, std::int64_t first_row, const Rows& rows) {
    return matrix.set_rows(first_row, rows, state_.context);
  }

  /// Marks the end of what is enqueued.
  void record(Event& event) { event.record(stream_.get()); }
  void synchronize() const {
    early_stream_.synchronize();
    state_.parts.synchronize();
    stream_.synchronize();
  }

  // ---- Graphs ----

  /// Records the ops that `work` calls, without running them.
  template <class Work>
  [[nodiscard]] Graph capture(const Work& work) {
    return Graph::capture(stream_.get(), work);
  }
  void replay(const Graph& graph) { graph.launch(stream_.get()); }
  /// Of a graph whose work begins with `unpack_step`, and whether it may be replayed so: with these
  /// arguments instead of the recorded ones.
  [[nodiscard]] static bool takes_inputs(const Graph& graph) { return graph.begins_with_kernel(); }
  void replay(const Graph& graph, const UnpackStepArgs& inputs) {
    graph.set_first(cuda::unpack_grid(inputs), inputs);
    graph.launch(stream_.get());
  }

  // ---- Ops ----

  /// Enqueues the op that `args` is for: `run_op(args, state)`, next to the op in `cuda/`, or next
  /// to the arguments where they are a user's own. Throws what the op throws.
  template <class Args>
  requires requires(const Args& args, cuda::OpState& state) { run_op(args, state); }
  void run(const Args& args) { run_op(args, state_); }

  /// Finds the fastest ways to run a network's projections by timing on the device. After
  /// `reserve`. Blocks.
  template <class A, class W, class Heads>
  void tune(const Projections<A, cuda::DeviceMatrix<W>, W, Heads>& network) {
    cuda::tune_projections(network, state_, [&](const auto& op) {
      run(op);
      if constexpr (std::same_as<std::remove_cvref_t<decltype(op)>, PlanAttentionArgs>) {
        stream_.synchronize();
        state_.plan_start.waited();  // as after the first layer's norm
      }
    });
  }

  /// The same of matrices of another format, by `tune_network(network, state)` next to them.
  template <class Network>
  requires requires(const Network& network, cuda::OpState& state) { tune_network(network, state); }
  void tune(const Network& network) { tune_network(network, state_); }

  /// Bytes of device memory that no process uses.
  [[nodiscard]] std::size_t available_memory() const {
    const cuda::DeviceGuard guard(state_.context.device);
    std::size_t free = 0, total = 0;
    cuda::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

  /// "cuda:0, NVIDIA H200, sm_90, 132 SMs".
  [[nodiscard]] std::string describe() const {
    cudaDeviceProp properties{};
    cuda::check_cuda(cudaGetDeviceProperties(&properties, state_.context.device),
                     "cudaGetDeviceProperties");
    const char* const missing = cuda::DeviceArchitectures::missing_code(state_.context);
    return concat("cuda:", state_.context.device, ", ", properties.name, ", sm_",
                  state_.context.compute_capability, ", ", state_.context.num_sms, " SMs",
                  missing != nullptr ? ", slower kernels: the program was not compiled for " : "",
                  missing != nullptr ? missing : "");
  }

 private:
  static int checked_device(int device) {
    int count = 0;
    cuda::check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    check<CudaError>(device >= 0 && device < count, "CUDA device ", device,
                     " was asked for, but there are ", count);
    return device;
  }

  template <class T>
  void copy(const T* from, T* to, std::size_t count, cudaMemcpyKind kind) {
    if (count == 0) return;
    cuda::check_cuda(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream_.get()),
                     "cudaMemcpyAsync");
  }

  std::unique_ptr<cuda::DeviceGuard> guard_;  // while the members are made
  cuda::Stream stream_;
  cuda::Stream early_stream_;  // of `upload_early`
  cuda::Stream read_stream_;   // of `download_early`
  cuda::Event uploaded_;

 protected:
  cuda::OpState state_;
};

static_assert(BackendLike<CudaBackend, float>);
static_assert(BackendLike<CudaBackend, bf16>);

}  // namespace nanovllm
