#pragma once
/// The CUDA backend: one device of compute capability 8.0 or later.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/attention/decode/decode_attention.cuh"
#include "nanovllm/cuda/attention/varlen/varlen_attention.cuh"
#include "nanovllm/cuda/elementwise/embedding.cuh"
#include "nanovllm/cuda/elementwise/gather_rows.cuh"
#include "nanovllm/cuda/elementwise/kv_store.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rope.cuh"
#include "nanovllm/cuda/elementwise/silu_mul.cuh"
#include "nanovllm/cuda/elementwise/unpack_step.cuh"
#include "nanovllm/cuda/linear/linear.cuh"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/cuda/runtime/staging.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/cuda/sampling/sampler.cuh"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

/// Owns one rank's stream, library handles and scratch memory, and forwards every op to its
/// function in `cuda/`. Ops are enqueued and return at once; none allocates or synchronises, so
/// any sequence of them can be captured.
class CudaBackend {
 public:
  template <class T>
  using Buffer = cuda::DeviceBuffer<T>;
  /// Page-locked, for copies that the host does not wait for.
  template <class T>
  using HostBuffer = cuda::PinnedBuffer<T>;
  template <Element T>
  using Matrix = cuda::DeviceMatrix<T>;
  using Graph = cuda::Graph;
  using Event = cuda::Event;

  /// Pinned buffers of one loading thread.
  template <class T>
  class Staging : public cuda::StagingBuffers<T> {
   public:
    explicit Staging(const CudaBackend& backend)
        : cuda::StagingBuffers<T>(backend.context_.device, backend.context_.stream) {}
  };

  static constexpr bool kAsynchronous = true;
  static constexpr bool kSharedMemory = false;
  static constexpr bool kAccumulatesResidual = true;
  static constexpr double kKvShare = 0.9;
  static constexpr int kLoadThreads = 4;
  /// Tokens a step computes at the most unless the user says otherwise: enough to run the dense
  /// layers at full rate.
  static constexpr int kDefaultBatchedTokens = 16384;

  /// Throws CudaError when there is no such device or it is older than compute capability 8.0.
  explicit CudaBackend(const BackendConfig& config)
      : guard_(std::make_unique<cuda::DeviceGuard>(checked_device(config.device))),
        stream_(),
        context_(cuda::Context::on(stream_.get())) {
    check<CudaError>(context_.compute_capability >= 80, "CUDA device ", config.device,
                     " has compute capability ", context_.compute_capability / 10, ".",
                     context_.compute_capability % 10, ", at least 8.0 is needed");
    guard_.reset();
  }

  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  [[nodiscard]] cuda::DeviceGuard activate() const { return cuda::DeviceGuard(context_.device); }
  [[nodiscard]] const cuda::Context& context() const { return context_; }

  /// Allocates the scratch memory of attention and sampler.
  void reserve(const StepLimits& limits) {
    decode_.emplace(limits.max_sequences, limits.num_kv_heads,
                    limits.num_heads / limits.num_kv_heads, limits.head_dim, context_);
    varlen_.emplace(limits.max_sequences, limits.max_tokens, context_);
    sampler_.emplace(limits.max_sequences, limits.vocab_size, context_);
  }

  // ---- Memory ----

  /// Enqueued; pageable memory is read before the call returns.
  template <class T>
  void upload(const T* from, T* to, std::size_t count) {
    copy(from, to, count, cudaMemcpyHostToDevice);
  }

  /// Waits.
  template <class T>
  void download(const T* from, T* to, std::size_t count) {
    copy(from, to, count, cudaMemcpyDeviceToHost);
    stream_.synchronize();
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

  /// Marks the end of what is enqueued.
  void record(Event& event) { event.record(stream_.get()); }
  void synchronize() const { stream_.synchronize(); }

  // ---- Graphs ----

  /// Records the ops that `work` calls, without running them.
  template <class Work>
  [[nodiscard]] Graph capture(const Work& work) {
    return Graph::capture(stream_.get(), work);
  }
  void replay(const Graph& graph) { graph.launch(stream_.get()); }

  // ---- Ops ----

  void unpack_step(const UnpackStepArgs& args) { cuda::unpack_step(args, context_); }
  void resolve_tokens(const ResolveTokensArgs& args) { cuda::resolve_tokens(args, context_); }

  template <class Args>
  void embedding(const Args& args) {
    cuda::embedding(args, context_);
  }
  template <class Args>
  void linear(const Args& args) {
    cuda::linear(args, linear_, context_);
  }
  /// Finds the fastest way to multiply by `weights`, all of one shape, for up to `max_rows` rows,
  /// by timing on the device. Blocks.
  template <class Out, class T>
  void tune_linear(std::span<const cuda::DeviceMatrix<T>* const> weights, bool accumulate,
                   std::int64_t max_rows) {
    std::vector<std::int64_t> row_counts;
    for (const std::int64_t rows : cuda::kRowBuckets) {
      row_counts.push_back(std::min(rows, max_rows));
      if (rows >= max_rows) break;
    }
    linear_.tune<T, Out>(weights, accumulate, row_counts, context_);
  }
  template <class T>
  void rms_norm(const RmsNormArgs<T>& args) {
    cuda::rms_norm(args, context_);
    plan_is_visible_ = true;
  }
  template <class T>
  void add_rms_norm(const AddRmsNormArgs<T>& args) {
    cuda::add_rms_norm(args, context_);
  }
  template <class T>
  void rope(const RopeArgs<T>& args) {
    cuda::rope(args, context_);
  }
  template <class T>
  void kv_store(const KvStoreArgs<T>& args) {
    cuda::kv_store(args, context_);
  }
  template <class T>
  void qk_norm_rope_store(const QkNormRopeStoreArgs<T>& args) {
    cuda::qk_norm_rope_store(args, context_);
  }
  void plan_attention(const PlanAttentionArgs& args);
  template <class T>
  void varlen_attention(const VarlenAttentionArgs<T>& args) {
    cuda::varlen_attention(args, *varlen_, context_);
  }
  template <class T>
  void decode_attention(const DecodeAttentionArgs<T>& args) {
    cuda::decode_attention(args, *decode_, context_,
                           plan_is_visible_ ? cuda::DecodeStart::early : cuda::DecodeStart{});
  }
  template <class T>
  void silu_mul(const SiluMulArgs<T>& args) {
    cuda::silu_mul(args, context_);
  }
  template <class T>
  void gather_rows(const GatherRowsArgs<T>& args) {
    cuda::gather_rows(args, context_);
  }
  void sample(const SampleArgs& args) { cuda::sample(args, *sampler_, context_); }

  /// Bytes of device memory that are free, whoever uses the rest.
  [[nodiscard]] std::size_t available_memory() const {
    const cuda::DeviceGuard guard(context_.device);
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

  /// "cuda:0, NVIDIA H200, sm_90, 132 SMs".
  [[nodiscard]] std::string describe() const {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, context_.device), "cudaGetDeviceProperties");
    return concat("cuda:", context_.device, ", ", properties.name, ", sm_",
                  context_.compute_capability, ", ", context_.num_sms, " SMs",
                  context_.compute_capability == 90 && !context_.has_hopper_code
                      ? ", slower kernels: the program was not compiled for 90a"
                      : "");
  }

 private:
  static int checked_device(int device) {
    int count = 0;
    cuda::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    check<CudaError>(device >= 0 && device < count, "CUDA device ", device,
                     " was asked for, but there are ", count);
    return device;
  }

  template <class T>
  void copy(const T* from, T* to, std::size_t count, cudaMemcpyKind kind) {
    if (count == 0) return;
    cuda::check(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream_.get()),
                "cudaMemcpyAsync");
  }

  std::unique_ptr<cuda::DeviceGuard> guard_;  // while the members are made
  cuda::Stream stream_;
  cuda::Context context_;
  cuda::LinearEngine linear_;
  std::optional<cuda::DecodeWorkspace> decode_;
  std::optional<cuda::VarlenWorkspace> varlen_;
  std::optional<cuda::SamplerWorkspace> sampler_;
  // A norm waits for what is ahead of it before it lets the next kernel start; behind one, decode
  // attention may read the plan before its own wait.
  bool plan_is_visible_ = false;
};

/// Divides the keys of the decodes among the blocks of their kernel, and lists the tiles of the
/// prompt chunks.
inline void CudaBackend::plan_attention(const PlanAttentionArgs& args) {
  plan_is_visible_ = false;
  const std::int64_t num_decodes = args.num_decodes;
  if (num_decodes > 0) {
    cuda::plan_decode(args.kv_lens.slice(0, num_decodes), args.num_kv_heads, *decode_, context_);
  }
  if (args.num_tokens > num_decodes) {
    cuda::plan_varlen(args.query_starts, args.kv_lens.slice(num_decodes, args.kv_lens.extent(0)),
                      args.num_tokens - num_decodes, *varlen_, context_);
  }
}

static_assert(BackendLike<CudaBackend, float>);
static_assert(BackendLike<CudaBackend, bf16>);

}  // namespace nanovllm
