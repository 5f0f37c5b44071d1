#pragma once
/// Says in our own words what a backend lacks: a compiler may only say that a concept is not met.
///
/// It tells of one fault, the first: what is missing may be the reason of all the rest.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "nanovllm/core/type_name.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/elements.hpp"

namespace nanovllm {

// Sentences that are said of many members; only the words, so that an error is at the condition.
#define NANOVLLM_HAS_NO(member) "nanovllm: the policy's Backend must have '" member "'"
#define NANOVLLM_AHEAD_HAS_NO(member) \
  "nanovllm: the policy's Backend is 'kAsynchronous' and must have '" member "'"
#define NANOVLLM_RUNS_NO(args, where)                     \
  "nanovllm: the policy's Backend has no 'run' for " args \
  " with the policy's Weight, Activation and KvElement; see ops/" where

/// True if `B` can run a model of the elements `E`; a compile error that names what is missing if
/// not. For the head of a template that takes a policy's backend:
///
/// ```cpp
/// static_assert(check_backend<Backend, ElementsOf<Policy>>());
/// ```
///
/// Longer than 60 lines, since a compiler tells by which calls it came to a fault: here by one.
template <class B, class E>
consteval bool check_backend() {
  using W = WeightElement<typename E::Weight>;
  using A = typename E::Activation;
  using Kv = typename E::KvElement;
  using Stored = KvStored<Kv>;
  if constexpr (!std::is_class_v<B>) {
    static_assert(kFits<B>, "nanovllm: the policy's Backend must be a class, as CpuBackend is");
  } else if constexpr (!(detail::HasBuffer<B, W> && detail::HasBuffer<B, A> &&
                         detail::HasBuffer<B, Stored>)) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("Buffer<T>"));
  } else if constexpr (!(detail::Uploads<B, A> && detail::Uploads<B, Stored>)) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("upload(from, to, count)"));
  } else if constexpr (!(detail::Downloads<B, A> && detail::Downloads<B, Stored>)) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("download(from, to, count)"));
  } else if constexpr (!(PoolMemoryLike<B, W> && PoolMemoryLike<B, A> &&
                         PoolMemoryLike<B, Stored>)) {
    static_assert(kFits<B>, "nanovllm: the policy's Backend is no 'PoolMemoryLike'");
  } else if constexpr (!(detail::HasMatrix<B, W> && detail::HasMatrix<B, A>)) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("Matrix<T>"));
  } else if constexpr (!(detail::HasStaging<B, W> && detail::HasStaging<B, A>)) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("Staging<T>"));
  } else if constexpr (!(detail::SetsRows<B, typename B::template Matrix<W>, W> &&
                         detail::SetsRows<B, typename B::template Matrix<A>, A>)) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("set_rows(matrix, first_row, rows)"));
  } else if constexpr (!requires(B & b) { b.activate(); }) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("activate()"));
  } else if constexpr (!requires(const B& b) { static_cast<std::size_t>(b.available_memory()); }) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("available_memory()"));
  } else if constexpr (!requires { static_cast<bool>(B::kSharedMemory); }) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("kSharedMemory"));
  } else if constexpr (!requires { static_cast<double>(B::kKvShare); }) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("kKvShare"));
  } else if constexpr (!requires { static_cast<int>(B::kLoadThreads); }) {
    static_assert(kFits<B>, NANOVLLM_HAS_NO("kLoadThreads"));
  } else if constexpr (!(MemoryLike<B, W> && MemoryLike<B, A>)) {
    static_assert(kFits<B>, "nanovllm: the policy's Backend is no 'MemoryLike'");
  } else {
    using Matrix = MatrixOf<B, typename E::Weight>;
    using Table = MatrixOf<B, typename E::Weight, MatrixRole::vocabulary>;
    using Head = MatrixOf<B, typename E::Weight, MatrixRole::head>;
    if constexpr (!(detail::SetsRows<B, Matrix, W> && detail::SetsRows<B, Table, W> &&
                    detail::SetsRows<B, Head, W>)) {
      static_assert(kFits<B>,
                    "nanovllm: the policy's Backend must have 'set_rows(matrix, first_row, rows)' "
                    "for the matrices of the policy's Weight");
    } else if constexpr (!RunsOp<B, EmbeddingArgs<A, Table>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'EmbeddingArgs'", "embedding.hpp"));
    } else if constexpr (!RunsOp<B, LinearArgs<A, Matrix>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'LinearArgs'", "linear.hpp"));
    } else if constexpr (!RunsOp<B, FloatLinearArgs<A, Head>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'LinearArgs' with results in float", "linear.hpp"));
    } else if constexpr (!RunsOp<B, RmsNormArgs<A, W>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'RmsNormArgs'", "rms_norm.hpp"));
    } else if constexpr (!RunsOp<B, AddRmsNormArgs<A, W>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'AddRmsNormArgs'", "rms_norm.hpp"));
    } else if constexpr (!RunsOp<B, QkNormRopeStoreArgs<A, Kv, W>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'QkNormRopeStoreArgs'", "project_qkv.hpp"));
    } else if constexpr (!RunsOp<B, PlanAttentionArgs>) {
      static_assert(kFits<B>,
                    "nanovllm: the policy's Backend has no 'run' for 'PlanAttentionArgs'; see "
                    "ops/attention.hpp");
    } else if constexpr (!RunsOp<B, VarlenAttentionArgs<A, Kv>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'VarlenAttentionArgs'", "attention.hpp"));
    } else if constexpr (!RunsOp<B, DecodeAttentionArgs<A, Kv>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'DecodeAttentionArgs'", "attention.hpp"));
    } else if constexpr (!RunsOp<B, SiluMulArgs<A>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'SiluMulArgs'", "gated_linear.hpp"));
    } else if constexpr (!RunsOp<B, GatherRowsArgs<A>>) {
      static_assert(kFits<B>, NANOVLLM_RUNS_NO("'GatherRowsArgs'", "embedding.hpp"));
    } else if constexpr (!RunsOp<B, SampleArgs>) {
      static_assert(
          kFits<B>,
          "nanovllm: the policy's Backend has no 'run' for 'SampleArgs'; see ops/sampler.hpp");
    } else if constexpr (!RunsOp<B, CopyBlocksArgs<Kv>>) {
      static_assert(kFits<B>,
                    "nanovllm: the policy's Backend has no 'run' for 'CopyBlocksArgs' with the "
                    "policy's KvElement; see ops/copy_blocks.hpp");
    } else if constexpr (!RunsOp<B, UnpackStepArgs>) {
      static_assert(kFits<B>,
                    "nanovllm: the policy's Backend has no 'run' for 'UnpackStepArgs'; see "
                    "ops/unpack_step.hpp");
    } else if constexpr (!requires(B & b) { b.reserve(ReserveArgs{}); }) {
      static_assert(kFits<B>, NANOVLLM_HAS_NO("reserve(ReserveArgs)"));
    } else if constexpr (!requires { static_cast<bool>(B::kAccumulatesResidual); }) {
      static_assert(kFits<B>, NANOVLLM_HAS_NO("kAccumulatesResidual"));
    } else if constexpr (!requires { static_cast<bool>(B::kAsynchronous); }) {
      static_assert(kFits<B>, NANOVLLM_HAS_NO("kAsynchronous"));
    } else if constexpr (!requires { static_cast<int>(B::kDefaultBatchedTokens); }) {
      static_assert(kFits<B>, NANOVLLM_HAS_NO("kDefaultBatchedTokens"));
    } else if constexpr (!requires(const B& b) { std::string(b.describe()); }) {
      static_assert(kFits<B>, NANOVLLM_HAS_NO("describe()"));
    } else if constexpr (!std::constructible_from<B, const BackendConfig&>) {
      static_assert(kFits<B>,
                    "nanovllm: the policy's Backend must have a constructor from 'BackendConfig'");
    } else if constexpr (!B::kAsynchronous) {
      static_assert(BackendLike<B, typename E::Weight, A, Kv>,
                    "nanovllm: the policy's Backend is no 'BackendLike'");
      return BackendLike<B, typename E::Weight, A, Kv>;
    } else if constexpr (!requires { typename B::template HostBuffer<float>; }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("HostBuffer<T>"));
    } else if constexpr (!requires { typename B::Event; }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("Event"));
    } else if constexpr (!requires { typename B::Graph; }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("Graph"));
    } else if constexpr (!requires(B & b, const float* from, float* to) {
                           b.download_later(from, to, std::size_t{});
                         }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("download_later(from, to, count)"));
    } else if constexpr (!requires(B & b, typename B::Event & event) { b.record(event); }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("record(event)"));
    } else if constexpr (!requires(B & b, void (*work)()) { b.capture(work); }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("capture(work)"));
    } else if constexpr (!requires(B & b, const typename B::Graph& graph) { b.replay(graph); }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("replay(graph)"));
    } else if constexpr (!requires(B & b) { b.synchronize(); }) {
      static_assert(kFits<B>, NANOVLLM_AHEAD_HAS_NO("synchronize()"));
    } else if constexpr (!BackendLike<B, typename E::Weight, A, Kv>) {
      static_assert(kFits<B>, "nanovllm: the policy's Backend is no 'BackendLike'");
    } else {
      return true;
    }
  }
  return false;
}

#undef NANOVLLM_HAS_NO
#undef NANOVLLM_AHEAD_HAS_NO
#undef NANOVLLM_RUNS_NO

}  // namespace nanovllm
