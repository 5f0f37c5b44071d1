#pragma once
/// Says in our own words what a backend lacks: a compiler may only say that a concept is not met.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"

namespace nanovllm {

namespace detail {

/// The memory of a pool of elements `T`, see `PoolMemoryLike`.
template <class B, class T>
consteval void check_pool_memory() {
  static_assert(
      requires { typename B::template Buffer<T>; },
      "nanovllm: the policy's Backend must have 'Buffer<T>'");
  static_assert(
      requires(B & b, const T* from, T* to) { b.upload(from, to, std::size_t{}); },
      "nanovllm: the policy's Backend must have 'upload(from, to, count)'");
  static_assert(
      requires(B & b, const T* from, T* to) { b.download(from, to, std::size_t{}); },
      "nanovllm: the policy's Backend must have 'download(from, to, count)'");
  static_assert(PoolMemoryLike<B, T>, "nanovllm: the policy's Backend is no 'PoolMemoryLike'");
}

/// The memory of elements `T`, see `MemoryLike`.
template <class B, class T>
consteval void check_memory() {
  check_pool_memory<B, T>();
  static_assert(
      requires { typename B::template Matrix<T>; },
      "nanovllm: the policy's Backend must have 'Matrix<T>'");
  static_assert(
      requires { typename B::template Staging<T>; },
      "nanovllm: the policy's Backend must have 'Staging<T>'");
  static_assert(
      requires(B & b, typename B::template Matrix<T> & matrix) {
        b.set_rows(matrix, std::int64_t{}, MatrixView<const T>{});
      },
      "nanovllm: the policy's Backend must have 'set_rows(matrix, first_row, rows)'");
  static_assert(
      requires(B & b) { b.activate(); }, "nanovllm: the policy's Backend must have 'activate()'");
  static_assert(
      requires(const B& b) { static_cast<std::size_t>(b.available_memory()); },
      "nanovllm: the policy's Backend must have 'available_memory()'");
  static_assert(
      requires { static_cast<bool>(B::kSharedMemory); },
      "nanovllm: the policy's Backend must have 'kSharedMemory'");
  static_assert(
      requires { static_cast<double>(B::kKvShare); },
      "nanovllm: the policy's Backend must have 'kKvShare'");
  static_assert(
      requires { static_cast<int>(B::kLoadThreads); },
      "nanovllm: the policy's Backend must have 'kLoadThreads'");
  static_assert(MemoryLike<B, T>, "nanovllm: the policy's Backend is no 'MemoryLike'");
}

/// The ops, see `OpsLike`.
template <class B, class Weight, class A, class Kv>
consteval void check_ops() {
  using W = WeightElement<Weight>;
  using Matrix = MatrixOf<B, Weight>;
  using Table = MatrixOf<B, Weight, MatrixRole::vocabulary>;
  static_assert(
      requires(B & b, Matrix & matrix, Table & table) {
        b.set_rows(matrix, std::int64_t{}, MatrixView<const W>{});
        b.set_rows(table, std::int64_t{}, MatrixView<const W>{});
      },
      "nanovllm: the policy's Backend must have 'set_rows(matrix, first_row, rows)' for the "
      "matrices of the policy's Weight");
  static_assert(RunsOp<B, EmbeddingArgs<A, Table>>,
                "nanovllm: the policy's Backend has no 'run' for 'EmbeddingArgs' with the policy's "
                "Weight, Activation and KvElement; see ops/embedding.hpp");
  static_assert(RunsOp<B, LinearArgs<A, Matrix>>,
                "nanovllm: the policy's Backend has no 'run' for 'LinearArgs' with the policy's "
                "Weight, Activation and KvElement; see ops/linear.hpp");
  static_assert(RunsOp<B, FloatLinearArgs<A, Table>>,
                "nanovllm: the policy's Backend has no 'run' for 'LinearArgs' with results in "
                "float with the policy's Weight, Activation and KvElement; see ops/linear.hpp");
  static_assert(RunsOp<B, RmsNormArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'RmsNormArgs' with the policy's "
                "Weight, Activation and KvElement; see ops/rms_norm.hpp");
  static_assert(RunsOp<B, AddRmsNormArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'AddRmsNormArgs' with the "
                "policy's Weight, Activation and KvElement; see ops/rms_norm.hpp");
  static_assert(RunsOp<B, QkNormRopeStoreArgs<A, Kv, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'QkNormRopeStoreArgs' with the "
                "policy's Weight, Activation and KvElement; see ops/qk_norm_rope_store.hpp");
  static_assert(
      RunsOp<B, PlanAttentionArgs>,
      "nanovllm: the policy's Backend has no 'run' for 'PlanAttentionArgs'; see ops/attention.hpp");
  static_assert(RunsOp<B, VarlenAttentionArgs<A, Kv>>,
                "nanovllm: the policy's Backend has no 'run' for 'VarlenAttentionArgs' with the "
                "policy's Weight, Activation and KvElement; see ops/attention.hpp");
  static_assert(RunsOp<B, DecodeAttentionArgs<A, Kv>>,
                "nanovllm: the policy's Backend has no 'run' for 'DecodeAttentionArgs' with the "
                "policy's Weight, Activation and KvElement; see ops/attention.hpp");
  static_assert(RunsOp<B, SiluMulArgs<A>>,
                "nanovllm: the policy's Backend has no 'run' for 'SiluMulArgs' with the policy's "
                "Weight, Activation and KvElement; see ops/silu_mul.hpp");
  static_assert(RunsOp<B, GatherRowsArgs<A>>,
                "nanovllm: the policy's Backend has no 'run' for 'GatherRowsArgs' with the "
                "policy's Weight, Activation and KvElement; see ops/gather_rows.hpp");
  static_assert(
      RunsOp<B, SampleArgs>,
      "nanovllm: the policy's Backend has no 'run' for 'SampleArgs'; see ops/sampler.hpp");
  static_assert(
      RunsOp<B, CopyBlocksArgs<Kv>>,
      "nanovllm: the policy's Backend has no 'run' for 'CopyBlocksArgs' with the policy's "
      "KvElement; see ops/copy_blocks.hpp");
  static_assert(RunsOp<B, UnpackStepArgs>,
                "nanovllm: the policy's Backend has no 'run' for 'UnpackStepArgs'; see "
                "ops/unpack_step.hpp");
  static_assert(
      requires(B & b) { b.reserve(ReserveArgs{}); },
      "nanovllm: the policy's Backend must have 'reserve(ReserveArgs)'");
  static_assert(
      requires { static_cast<bool>(B::kAccumulatesResidual); },
      "nanovllm: the policy's Backend must have 'kAccumulatesResidual'");
}

/// What is asked of a backend that runs ahead, see `AsyncBackendLike`.
template <class B>
consteval void check_async() {
  static_assert(
      requires { typename B::template HostBuffer<float>; },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'HostBuffer<T>'");
  static_assert(
      requires { typename B::Event; },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'Event'");
  static_assert(
      requires { typename B::Graph; },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'Graph'");
  static_assert(
      requires(B & b, const float* from, float* to) { b.download_later(from, to, std::size_t{}); },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'download_later(from, to, "
      "count)'");
  static_assert(
      requires(B & b, typename B::Event & event) { b.record(event); },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'record(event)'");
  static_assert(
      requires(B & b, void (*work)()) { b.capture(work); },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'capture(work)'");
  static_assert(
      requires(B & b, const typename B::Graph& graph) { b.replay(graph); },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'replay(graph)'");
  static_assert(
      requires(B & b) { b.synchronize(); },
      "nanovllm: the policy's Backend is 'kAsynchronous' and must have 'synchronize()'");
  static_assert(AsyncBackendLike<B>, "nanovllm: the policy's Backend is no 'AsyncBackendLike'");
}

}  // namespace detail

/// True if `B` can run a model of the elements `E`; a compile error that names what is missing if
/// not. For the head of a template that takes a policy's backend:
///
/// ```cpp
/// static_assert(check_backend<Backend, ElementsOf<Policy>>());
/// ```
template <class B, class E>
consteval bool check_backend() {
  using W = typename E::Weight;
  using A = typename E::Activation;
  using Kv = typename E::KvElement;
  detail::check_memory<B, WeightElement<W>>();
  detail::check_memory<B, A>();
  detail::check_pool_memory<B, KvStored<Kv>>();
  detail::check_ops<B, W, A, Kv>();
  static_assert(
      requires { static_cast<bool>(B::kAsynchronous); },
      "nanovllm: the policy's Backend must have 'kAsynchronous'");
  if constexpr (requires { requires static_cast<bool>(B::kAsynchronous); })
    detail::check_async<B>();
  static_assert(
      requires { static_cast<int>(B::kDefaultBatchedTokens); },
      "nanovllm: the policy's Backend must have 'kDefaultBatchedTokens'");
  static_assert(
      requires(const B& b) { std::string(b.describe()); },
      "nanovllm: the policy's Backend must have 'describe()'");
  static_assert(std::constructible_from<B, const BackendConfig&>,
                "nanovllm: the policy's Backend must have a constructor from 'BackendConfig'");
  static_assert(BackendLike<B, W, A, Kv>, "nanovllm: the policy's Backend is no 'BackendLike'");
  return true;
}

}  // namespace nanovllm
