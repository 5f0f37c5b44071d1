#pragma once
/// What a backend is: the place where memory lives and ops run.

#include <concepts>
#include <cstddef>
#include <string>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/gather_rows.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/qk_norm_rope_store.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/rope.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/ops/silu_mul.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm {

/// Run-time settings of a backend.
struct BackendConfig {
  int num_threads = 0;  ///< CPU: threads of this rank, 0 for all of the machine's
  int device = 0;       ///< CUDA: ordinal of this rank's device
};

/// What the steps of one engine need at the most: a backend allocates its scratch memory by it.
struct StepLimits {
  std::int64_t max_tokens = 0;     ///< rows of a step
  std::int64_t max_sequences = 0;  ///< sequences of a step, and rows that are sampled
  std::int64_t vocab_size = 0;
  std::int64_t num_heads = 0;  ///< of this rank, like num_kv_heads
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// `B` has the op whose arguments are `Args`; exact, so that a model can ask for one that not every
/// backend has.
template <class B, class Args>
concept RunsOp = requires(B& backend, const Args& args) {
  backend.run(args);
};

/// A backend `B` that can run a model of element type `T`.
///
/// - `B::Buffer<U>`: owner of `size()` contiguous elements at `data()`, where ops can reach them.
/// - `B::Matrix<T>`: owner of a `[rows(), cols()]` weight in the layout its `linear` likes best.
/// - `B::Staging<T>`, made from a backend: host memory for weights on their way. `acquire(count)`
///   gives memory to be filled and handed to `set_rows` or `upload`; `release()` says that it was.
/// - `set_rows(matrix, first, rows)`: rows [first, …) of a matrix from row-major host memory.
/// - `upload(from, to, count)`: copies host memory into a buffer. Like `set_rows`, it may return
///   before the copy is done, except for memory that is not a Staging's.
/// - `download(from, to, count)`: waits for all ops so far and copies a buffer to host memory.
/// - `reserve(limits)`: called once, before any op that `limits` is about.
/// - `run(args)`: the op that `args` is for, with the contract of `ops/<op>.hpp`; ops run in the
///   order of the calls. `PlanAttentionArgs` come once a step, ahead of its attention calls.
/// - `activate()`: an object that makes this backend's device the calling thread's as long as it
///   lives. All calls but the destructor are made under one.
/// - `available_memory()`: bytes that the KV pool may count on now; `kSharedMemory` says whether
///   all ranks' backends take theirs from the same memory, `kKvShare` how much of it the pool gets
///   unless the user says otherwise.
/// - `kLoadThreads`: threads that may call `set_rows` and `upload` at a time, each with a Staging.
/// - `kAsynchronous`: ops return before they are done, so the host may run ahead of them.
/// - `kAccumulatesResidual`: a product that is added to the residual costs less than one that is
///   not; rounding then happens once.
///
/// A backend object belongs to one rank and, loading apart, is used by one thread at a time.
template <class B, class T>
concept BackendLike = Element<T> && std::constructible_from<B, const BackendConfig&> &&
    requires(B& backend, const B& cbackend, typename B::template Matrix<T>& matrix,
             typename B::template Buffer<T>& buffer) {
  { buffer.data() } -> std::convertible_to<T*>;
  { matrix.rows() } -> std::convertible_to<std::int64_t>;
  { matrix.cols() } -> std::convertible_to<std::int64_t>;
  requires std::constructible_from<typename B::template Staging<T>, B&>;
  backend.set_rows(matrix, std::int64_t{}, MatrixView<const T>{});
  backend.upload(static_cast<const T*>(nullptr), buffer.data(), std::size_t{});
  backend.download(static_cast<const T*>(nullptr), static_cast<T*>(nullptr), std::size_t{});
  backend.reserve(StepLimits{});
  backend.activate();
  requires RunsOp<B, EmbeddingArgs<T, typename B::template Matrix<T>>>;
  requires RunsOp<B, LinearArgs<T, typename B::template Matrix<T>>>;
  requires RunsOp<B, LinearArgs<T, typename B::template Matrix<T>, float>>;
  requires RunsOp<B, RmsNormArgs<T>>;
  requires RunsOp<B, AddRmsNormArgs<T>>;
  requires RunsOp<B, QkNormRopeStoreArgs<T>>;
  requires RunsOp<B, PlanAttentionArgs>;
  requires RunsOp<B, VarlenAttentionArgs<T>>;
  requires RunsOp<B, DecodeAttentionArgs<T>>;
  requires RunsOp<B, SiluMulArgs<T>>;
  requires RunsOp<B, GatherRowsArgs<T>>;
  requires RunsOp<B, SampleArgs>;
  requires RunsOp<B, CopyBlocksArgs<T>>;
  requires RunsOp<B, UnpackStepArgs>;
  { B::kSharedMemory } -> std::convertible_to<bool>;
  { B::kAsynchronous } -> std::convertible_to<bool>;
  { B::kAccumulatesResidual } -> std::convertible_to<bool>;
  { B::kKvShare } -> std::convertible_to<double>;
  { B::kLoadThreads } -> std::convertible_to<int>;
  { cbackend.available_memory() } -> std::convertible_to<std::size_t>;
  { cbackend.describe() } -> std::convertible_to<std::string>;
};

}  // namespace nanovllm
