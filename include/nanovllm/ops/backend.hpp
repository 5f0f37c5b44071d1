#pragma once
/// What a backend is: the place where memory lives and ops run.

#include <concepts>
#include <cstddef>
#include <string>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/gather_rows.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/qk_norm_rope_store.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/rope.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/ops/silu_mul.hpp"

namespace nanovllm {

/// Run-time settings of a backend.
struct BackendConfig {
  int num_threads = 0;  ///< CPU: threads of this rank, 0 for all of the machine's
};

/// A backend `B` that can run a model of element type `T`.
///
/// - `B::Buffer<U>`: owner of `size()` contiguous elements at `data()`, where ops can reach them.
/// - `B::Matrix<T>`: owner of a `[rows(), cols()]` weight in the layout its `linear` likes best;
///   `set_rows(first, rows)` fills it from row-major host memory.
/// - `upload(from, to, count)`: copies host memory into a buffer.
/// - one member function an op, with the contract of `ops/<op>.hpp`; ops run in the order of the
///   calls.
/// - `available_memory()`: bytes that the KV pool may count on now.
///
/// A backend object belongs to one rank and is used by one thread at a time.
template <class B, class T>
concept BackendLike = Element<T> && std::constructible_from<B, const BackendConfig&> &&
    requires(B& backend, const B& cbackend, typename B::template Matrix<T>& matrix,
             typename B::template Buffer<T>& buffer) {
  { buffer.data() } -> std::convertible_to<T*>;
  { matrix.rows() } -> std::convertible_to<std::int64_t>;
  { matrix.cols() } -> std::convertible_to<std::int64_t>;
  matrix.set_rows(std::int64_t{}, MatrixView<const T>{});
  backend.upload(static_cast<const T*>(nullptr), buffer.data(), std::size_t{});
  backend.embedding(EmbeddingArgs<T, typename B::template Matrix<T>>{});
  backend.linear(LinearArgs<T, typename B::template Matrix<T>>{});
  backend.linear(LinearArgs<T, typename B::template Matrix<T>, float>{});
  backend.rms_norm(RmsNormArgs<T>{});
  backend.add_rms_norm(AddRmsNormArgs<T>{});
  backend.qk_norm_rope_store(QkNormRopeStoreArgs<T>{});
  backend.varlen_attention(VarlenAttentionArgs<T>{});
  backend.decode_attention(DecodeAttentionArgs<T>{});
  backend.silu_mul(SiluMulArgs<T>{});
  backend.gather_rows(GatherRowsArgs<T>{});
  backend.sample(SampleArgs{});
  { cbackend.available_memory() } -> std::convertible_to<std::size_t>;
  { cbackend.describe() } -> std::convertible_to<std::string>;
};

}  // namespace nanovllm
