#pragma once
/// Contracts of `varlen_attention` (prompt chunks) and `decode_attention` (one query a sequence).
/// Source: Dao, "FlashAttention-2", 2023; Kwon et al., "PagedAttention", 2023.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// Some decodes of a step whose block tables agree for the keys [begin, end), and before: those at
/// places [first, first + count) of an order in which all decodes stand (`PrefixMember`).
///
/// A level of a tree: `parent`, which comes before it in the list, has at least the same decodes,
/// and ends where this one begins; one without a parent begins at 0.
struct SharedPrefix {
  std::int32_t first = 0;
  std::int32_t count = 0;  ///< ≥ 2; 0: this and all that follow are padding
  std::int32_t begin = 0;  ///< a multiple of the block size
  std::int32_t end = 0;    ///< likewise, greater than `begin`, less than each member's keys
  std::int32_t parent = -1;
};

/// The order of the decodes, and its inverse, and where each of them belongs: row i says which
/// decode is at place i, and at what place decode i is.
struct PrefixMember {
  std::int32_t decode = 0;  ///< at place i
  std::int32_t place = 0;   ///< of decode i
  std::int32_t group = -1;  ///< of decode i: the `SharedPrefix` that ends last, -1 for none
};

/// A hint, not a duty: attention gives the same with and without it. Both views are empty where
/// nothing is shared; `groups` may have padding at its end.
struct SharedPrefixes {
  VectorView<const SharedPrefix> groups{};
  VectorView<const PrefixMember> members{};  ///< [num_decodes]
};

/// What the type of an attention call says about its heads; 0 leaves it to the operands. A backend
/// compiles only the kernels that these heads need. Operands that differ are a ShapeError.
template <int kHeadDimValue = 0, int kGroupValue = 0>
struct HeadShape {
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kGroup = kGroupValue;  ///< query heads a kv head
};

/// Causal grouped-query attention of packed query rows over paged K and V.
///
/// Sequence s owns query rows [query_starts[s], query_starts[s + 1]) and the keys at positions
/// [0, kv_lens[s]), found through its row of the block table. The mask is aligned to the bottom
/// right: with q_len queries, query j sees the keys at positions ≤ kv_lens[s] - q_len + j. Query
/// head h reads kv head h / (heads / kv_heads).
///   out = softmax(scale · q · Kᵀ) · V,   scores and softmax in float32, rounded once to T.
/// The keys and values of the new tokens must already be in the cache (`kv_store`); `k` and `v`
/// repeat those rows contiguously, so that a backend may read them from either place. Where the
/// cache's format, Kv, is not T, what counts is what the cache has kept of them; a backend that
/// reads `k` and `v` then has a `kv_store` that leaves the same there.
template <class T, class Kv = T, class Heads = HeadShape<>>
struct VarlenAttentionArgs {
  TensorView<const T, 3> q;  ///< [n, heads, head_dim]
  TensorView<const T, 3> k;  ///< [n, kv_heads, head_dim], this step's new keys
  TensorView<const T, 3> v;  ///< [n, kv_heads, head_dim], this step's new values
  KvView<Kv> kv;
  VectorView<const std::int32_t> query_starts;  ///< [num_seqs + 1], ascending from 0 to n
  VectorView<const std::int32_t> kv_lens;       ///< [num_seqs], each ≥ its q_len
  MatrixView<const BlockId>
      block_tables;        ///< [num_seqs, max blocks]; unused entries are never read
  bool has_prefix = true;  ///< false promises kv_len = q_len everywhere: `k` and `v` hold all keys
  float scale = 1.f;       ///< usually head_dim^-0.5
  TensorView<T, 3> out;    ///< [n, heads, head_dim]
};

/// The same for exactly one query a sequence: row s belongs to sequence s and sees all of its keys.
/// A row with kv_lens[s] = 0 is padding and yields zeros.
template <class T, class Kv = T, class Heads = HeadShape<>>
struct DecodeAttentionArgs {
  TensorView<const T, 3> q;  ///< [num_seqs, heads, head_dim]
  KvView<Kv> kv;
  VectorView<const std::int32_t> kv_lens;  ///< [num_seqs]
  MatrixView<const BlockId>
      block_tables;  ///< [num_seqs, max blocks]; unused entries are never read
  float scale = 1.f;
  TensorView<T, 3> out;  ///< [num_seqs, heads, head_dim]
};

/// What the attention calls of all layers of a step have in common. `plan_attention` gets it once,
/// ahead of the first layer, so that a backend may divide the work once and not in every layer. The
/// decodes are sequences [0, num_decodes), in rows of the same numbers.
struct PlanAttentionArgs {
  std::int64_t num_decodes = 0;
  std::int64_t num_tokens = 0;                  ///< rows of the step, decodes included
  VectorView<const std::int32_t> query_starts;  ///< [num_chunks + 1], rows after the decodes
  VectorView<const std::int32_t> kv_lens;       ///< [num_decodes + num_chunks]
  SharedPrefixes shared{};                      ///< what the decodes have in common
  bool has_chunk_rows = false;  ///< decodes may see keys of this step other than their own
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

namespace detail {

template <class Heads, class Args>
void validate_attention(const char* op, const Args& args, std::int64_t num_seqs) {
  check_shape(op, "q", args.q, {-1, -1, args.kv.head_dim});
  check_shape(op, "out", args.out, args.q.extents);
  check<ShapeError>(args.kv.num_kv_heads > 0 && args.q.extent(1) % args.kv.num_kv_heads == 0, op,
                    ": the number of query heads, ", args.q.extent(1),
                    ", must be a multiple of the number of kv heads, ", args.kv.num_kv_heads);
  check<ShapeError>(Heads::kHeadDim == 0 || args.kv.head_dim == Heads::kHeadDim, op,
                    ": compiled for head_dim ", Heads::kHeadDim, ", got ", args.kv.head_dim);
  check<ShapeError>(Heads::kGroup == 0 || args.q.extent(1) == args.kv.num_kv_heads * Heads::kGroup,
                    op, ": compiled for ", Heads::kGroup, " query heads a kv head, got ",
                    args.q.extent(1), " and ", args.kv.num_kv_heads);
  check_shape(op, "kv_lens", args.kv_lens, {num_seqs});
  check_shape(op, "block_tables", args.block_tables, {num_seqs, -1});
}

}  // namespace detail

/// Throws ShapeError when the operands do not fit together.
template <class T, class Kv, class Heads>
void validate(const VarlenAttentionArgs<T, Kv, Heads>& args) {
  constexpr auto kOp = "varlen_attention";
  check<ShapeError>(args.query_starts.extent(0) >= 1, kOp, ": 'query_starts' must not be empty");
  detail::validate_attention<Heads>(kOp, args, args.query_starts.extent(0) - 1);
  check_shape(kOp, "k", args.k, {args.q.extent(0), args.kv.num_kv_heads, args.kv.head_dim});
  check_shape(kOp, "v", args.v, args.k.extents);
}

/// Throws ShapeError when the operands do not fit together.
template <class T, class Kv, class Heads>
void validate(const DecodeAttentionArgs<T, Kv, Heads>& args) {
  detail::validate_attention<Heads>("decode_attention", args, args.q.extent(0));
}

}  // namespace nanovllm
