#pragma once
/// What a backend is: the place where memory lives and ops run. Every requirement has a name;
/// `BackendLike` is their sum, and backend_check.hpp says in words which one is not met.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/rope.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/ops/unpack_step.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// Ordinary memory of one loading thread, which grows as needed. What `acquire` gives may be read
/// until the `release` after it; its copies are done by then.
template <class T>
class HostStaging {
 public:
  T* acquire(std::size_t count) {
    if (memory_.size() < count) memory_.resize(count);
    return memory_.data();
  }
  void release() {}

 private:
  std::vector<T> memory_;
};

/// Run-time settings of a backend.
struct BackendConfig {
  std::optional<int> num_threads{};  ///< CPU: threads of this rank; unset: all of the machine's
  int device = 0;                    ///< CUDA: ordinal of this rank's device
};

/// Whether ops of backend `B` may have code of their own for a `HeadShape`, as they may unless
/// `B::kReadsHeadShape` is false. Where it is, one engine serves all sizes of a family.
template <class B>
inline constexpr bool kReadsHeadShape = true;
template <class B>
requires requires { B::kReadsHeadShape; }
inline constexpr bool kReadsHeadShape<B> = B::kReadsHeadShape;
class CpuBackend;
template <>
inline constexpr bool kReadsHeadShape<CpuBackend> = false;  // also where it is only declared

/// What a backend allocates its scratch memory by: the steps, and the model as this rank has it.
struct ReserveArgs {
  StepLimits limits{};
  std::int64_t vocab_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// `B` has the op whose arguments are `Args`; exact, so that a model can ask for one that not every
/// backend has.
template <class B, class Args>
concept RunsOp = requires(B& backend, const Args& args) {
  backend.run(args);
};

namespace detail {

template <class B, class T>
concept HasBuffer = requires {
  typename B::template Buffer<T>;
};
template <class B, class T>
concept HasMatrix = requires {
  typename B::template Matrix<T>;
};
template <class B, class T>
concept HasStaging = requires {
  typename B::template Staging<T>;
};
template <class B, class T>
concept Uploads = requires(B& backend, const T* from, T* to) {
  backend.upload(from, to, std::size_t{});
};
template <class B, class T>
concept Downloads = requires(B& backend, const T* from, T* to) {
  backend.download(from, to, std::size_t{});
};
template <class B, class Matrix, class T>
concept SetsRows = requires(B& backend, Matrix& matrix) {
  backend.set_rows(matrix, std::int64_t{}, MatrixView<const T>{});
};

}  // namespace detail

/// A backend `B` has memory for a KV pool of elements `T`: the members of MemoryLike that a pool
/// needs.
template <class B, class T>
concept PoolMemoryLike = detail::HasBuffer<B, T> && detail::Uploads<B, T> &&
    detail::Downloads<B, T> && requires(typename B::template Buffer<T>& buffer) {
  { buffer.data() } -> std::convertible_to<T*>;
};

/// A backend `B` has memory that holds elements of type `T`.
///
/// - `B::Buffer<U>`: owner of `size()` contiguous elements at `data()`, where ops can reach them.
/// - `B::Matrix<T>`: owner of a `[rows(), cols()]` weight in the layout that its `linear` needs.
/// - `B::Staging<T>`, made from a backend: host memory for weights that are being loaded.
///   `acquire(count)` gives memory to fill and pass to `set_rows` or `upload`; `release()` ends its
///   use.
/// - `set_rows(matrix, first, rows)`: rows [first, …) of a matrix from row-major host memory.
/// - `upload(from, to, count)`: copies host memory into a buffer. Like `set_rows`, it may return
///   before the copy is done, except for memory that is not a Staging's.
/// - `download(from, to, count)`: waits for all ops so far and copies a buffer to host memory.
/// - `activate()`: an object that makes this backend's device current for the calling thread while
///   it lives. All calls except the destructor are made under one.
/// - `available_memory()`: bytes that the KV pool may use now; `kSharedMemory` says whether all
///   ranks' backends take theirs from the same memory, `kKvShare` which part of it the pool gets by
///   default.
/// - `kLoadThreads`: threads that may call `set_rows` and `upload` at a time, each with a Staging.
template <class B, class T>
concept MemoryLike = Element<T> && PoolMemoryLike<B, T> && detail::HasMatrix<B, T> &&
    detail::HasStaging<B, T> && detail::SetsRows<B, typename B::template Matrix<T>, T> &&
    requires(B& backend, const B& cbackend, typename B::template Matrix<T>& matrix,
             typename B::template Staging<T>& staging) {
  { matrix.rows() } -> std::convertible_to<std::int64_t>;
  { matrix.cols() } -> std::convertible_to<std::int64_t>;
  requires std::constructible_from<typename B::template Staging<T>, B&>;
  { staging.acquire(std::size_t{}) } -> std::convertible_to<T*>;
  staging.release();
  backend.activate();
  { cbackend.available_memory() } -> std::convertible_to<std::size_t>;
  { B::kSharedMemory } -> std::convertible_to<bool>;
  { B::kKvShare } -> std::convertible_to<double>;
  { B::kLoadThreads } -> std::convertible_to<int>;
};

/// A backend `B` has the matrices of weights `W`, and the dense layers for activations `A`.
/// `kAccumulatesResidual`
/// says that adding a product to the residual is cheaper inside the product, in steps of up to
/// `kMaxAccumulatedRows<A>` rows if there is such a constant.
template <class B, class W, class A = WeightElement<W>>
concept DenseOpsLike = RunsOp<B, LinearArgs<A, MatrixOf<B, W>>> &&
    RunsOp<B, EmbeddingArgs<A, MatrixOf<B, W, MatrixRole::vocabulary>>> &&
    RunsOp<B, FloatLinearArgs<A, MatrixOf<B, W, MatrixRole::head>>> &&
    detail::SetsRows<B, MatrixOf<B, W>, WeightElement<W>> &&
    detail::SetsRows<B, MatrixOf<B, W, MatrixRole::vocabulary>, WeightElement<W>> &&
    detail::SetsRows<B, MatrixOf<B, W, MatrixRole::head>, WeightElement<W>> && requires {
  { B::kAccumulatesResidual } -> std::convertible_to<bool>;
};

/// Most rows of a step whose products `B` adds to a residual of `A`; by default any number.
template <class B, class A>
inline constexpr std::int64_t kMaxAccumulatedRows = [] {
  if constexpr (requires { B::template kMaxAccumulatedRows<A>; }) {
    return std::int64_t{B::template kMaxAccumulatedRows<A>};
  } else {
    return std::numeric_limits<std::int64_t>::max();
  }
}();

/// A backend `B` has every op that a model of these elements uses. Each has the contract of
/// `ops/<op>.hpp`; ops run in the order of the calls of `run`. `PlanAttentionArgs` come once a
/// step, before its attention calls; `reserve(limits)` once, before any op that `limits` applies
/// to.
template <class B, class W, class A = WeightElement<W>, class Kv = A>
concept OpsLike = DenseOpsLike<B, W, A> && RunsOp<B, RmsNormArgs<A, WeightElement<W>>> &&
    RunsOp<B, AddRmsNormArgs<A, WeightElement<W>>> &&
    RunsOp<B, QkNormRopeStoreArgs<A, Kv, WeightElement<W>>> && RunsOp<B, PlanAttentionArgs> &&
    RunsOp<B, VarlenAttentionArgs<A, Kv>> && RunsOp<B, DecodeAttentionArgs<A, Kv>> &&
    RunsOp<B, SiluMulArgs<A>> && RunsOp<B, GatherRowsArgs<A>> && RunsOp<B, SampleArgs> &&
    RunsOp<B, CopyBlocksArgs<Kv>> && RunsOp<B, UnpackStepArgs> && requires(B& backend) {
  backend.reserve(ReserveArgs{});
};

/// What a backend whose ops return before they are done (`kAsynchronous`) has in addition, so that
/// the host can run ahead and replay whole steps.
///
/// - `B::HostBuffer<T>`: owner of host memory that copies need not be waited for.
/// - `download_later(from, to, count)`: enqueued; `to` is a HostBuffer's.
/// - `B::Event`, `record(event)`: marks the end of what is enqueued; `is_done()` says whether that
///   was reached, or nothing was recorded, `synchronize()` waits.
/// - `B::Graph`, `capture(work)`, `replay(graph)`: the ops that `work()` calls, recorded without
///   being run, and run.
/// - `synchronize()`: waits for everything.
template <class B>
concept AsyncBackendLike = requires(B& backend, typename B::template HostBuffer<float>& host,
                                    typename B::Event& event, const typename B::Graph& graph,
                                    void (*work)()) {
  { host.data() } -> std::convertible_to<float*>;
  backend.download_later(static_cast<const float*>(nullptr), host.data(), std::size_t{});
  backend.record(event);
  { event.is_done() } -> std::convertible_to<bool>;
  event.synchronize();
  { backend.capture(work) } -> std::same_as<typename B::Graph>;
  backend.replay(graph);
  backend.synchronize();
};

/// An asynchronous backend whose copies need not wait for its ops: `upload_early(from, to, count)`
/// may begin at once, whatever is enqueued; ops that are enqueued later see the copy. `from`
/// belongs to a HostBuffer.
///
/// If it runs `PublishResultsArgs`, its ops can write to the memory of HostBuffers.
template <class B>
concept UploadsEarly = requires(B& backend) {
  backend.upload_early(static_cast<const std::byte*>(nullptr), static_cast<std::byte*>(nullptr),
                       std::size_t{});
};

/// An asynchronous backend whose graphs may begin with `UnpackStepArgs` and be replayed with
/// others, `replay(graph, inputs)`, where `takes_inputs(graph)`.
template <class B>
concept ReplaysWithInputs = requires(B& backend, const typename B::Graph& graph,
                                     const UnpackStepArgs& inputs) {
  { backend.takes_inputs(graph) } -> std::convertible_to<bool>;
  backend.replay(graph, inputs);
};

/// A backend that chooses among its ways to run a network's projections, by trying, once the
/// weights are there: `tune(projections)`, see ops/projections.hpp.
template <class B, class P>
concept TunableBackend = requires(B& backend, const P& projections) {
  backend.tune(projections);
};

/// A backend `B` that can run a model of weights `W` and activations `A`, with a KV cache of format
/// `Kv`.
/// `kDefaultBatchedTokens` is the default for the most tokens of a step.
///
/// A backend object belongs to one rank. Except for loading, one thread at a time uses it.
template <class B, class W, class A = WeightElement<W>, class Kv = A>
concept BackendLike = std::constructible_from<B, const BackendConfig&> &&
    MemoryLike<B, WeightElement<W>> && MemoryLike<B, A> && PoolMemoryLike<B, KvStored<Kv>> &&
    OpsLike<B, W, A, Kv> && requires(const B& cbackend) {
  { B::kAsynchronous } -> std::convertible_to<bool>;
  { B::kDefaultBatchedTokens } -> std::convertible_to<int>;
  { cbackend.describe() } -> std::convertible_to<std::string>;
  requires !B::kAsynchronous || AsyncBackendLike<B>;
};

/// Runs `args` by the backend's own op where it has one, or else by `compose(args, run)`: the ops
/// that its contract says it is made of.
template <class B, class Args>
void run_or_compose(B& backend, const Args& args) {
  if constexpr (RunsOp<B, Args>) {
    backend.run(args);
  } else {
    validate(args);
    compose(args, [&](const auto& part) { backend.run(part); });
  }
}

}  // namespace nanovllm
