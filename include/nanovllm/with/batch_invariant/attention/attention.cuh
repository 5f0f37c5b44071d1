#pragma once
/// Attention in one order, for decodes and prompt chunks: what a token gets depends neither on the
/// op, the batch, the chunk, the block size nor the block ids.
///
/// 16-bit elements with head_dim 64 or 128 and up to 16 query heads a kv head run on the tensor
/// cores (decode.cuh, varlen.cuh); everything else, float32 above all, runs `simt_attention`, which
/// keeps its own order. Prefixes that sequences share are read by each.

#include <cstdint>
#include <optional>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/attention/simt_attention.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/with/batch_invariant/attention/decode.cuh"
#include "nanovllm/with/batch_invariant/attention/plan.cuh"
#include "nanovllm/with/batch_invariant/attention/tuning.hpp"
#include "nanovllm/with/batch_invariant/attention/varlen.cuh"

namespace nanovllm::cuda {

/// The scratch memory of both ops, and the plan of the step.
class BatchInvariantAttention {
 public:
  /// Room for the steps that `args` allow, on the context's device, which is current.
  BatchInvariantAttention(const ReserveArgs& args, const Context& context)
      : decode_(args.limits.max_num_seqs, args.limits.max_model_len, args.num_kv_heads,
                args.num_heads / args.num_kv_heads, args.head_dim),
        varlen_(args.limits.max_num_seqs, args.limits.max_num_batched_tokens, context) {}

  /// Lists the segments of the decodes and the tiles of the prompt chunks.
  void plan(const PlanAttentionArgs& args, const Context& context) {
    const std::int64_t num_decodes = args.num_decodes;
    if (num_decodes > 0) plan_segments(args.kv_lens.slice(0, num_decodes), decode_, context);
    if (args.num_tokens > num_decodes) {
      plan_varlen(args.query_starts, args.kv_lens.slice(num_decodes, args.kv_lens.extent(0)),
                  args.num_tokens - num_decodes, varlen_, context);
    }
  }

  /// See ops/attention.hpp; `early` as in batch_invariant/attention/decode.cuh. Throws ShapeError
  /// when operands do not fit together or not into the scratch memory, and for 16-bit rows that are
  /// not 16-byte aligned.
  template <Element T, class Heads>
  void run(const DecodeAttentionArgs<T, T, Heads>& args, const Context& context,
           bool early = false) {
    validate(args);
    if (args.q.empty()) return;
    if constexpr (takes_heads<T, Heads>()) {
      const std::int64_t head_dim = args.kv.head_dim, heads = args.kv.num_kv_heads;
      const std::int64_t group = args.q.extent(1) / heads;
      if (fits_batch_invariant_attention(head_dim, group)) {
        check_alignment("decode_attention", args);
        check<ShapeError>(
            args.q.extent(0) <= decode_.max_seqs() && heads <= decode_.num_kv_heads() &&
                segment_part_floats(group, head_dim) <= decode_.part_floats(),
            "decode_attention: the workspace has no room for ", args.q.extent(0),
            " sequences with ", heads, " kv heads in groups of ", group, " of head_dim ", head_dim);
        with_head_dim<Heads>(head_dim, [&]<int kHeadDim>() {
          batch_invariant_decode_attention<kHeadDim>(args, decode_, early, context);
        });
        return;
      }
    }
    simt_decode_attention(args, context);
  }
  template <Element T, class Heads>
  void run(const VarlenAttentionArgs<T, T, Heads>& args, const Context& context) {
    validate(args);
    if (args.q.empty()) return;
    if constexpr (takes_heads<T, Heads>()) {
      const std::int64_t head_dim = args.kv.head_dim;
      if (fits_batch_invariant_attention(head_dim, args.q.extent(1) / args.kv.num_kv_heads)) {
        check_alignment("varlen_attention", args);
        check<ShapeError>(
            can_count_varlen_items(args.kv_lens.extent(0), args.q.extent(0), args.q.extent(1)),
            "varlen_attention: ", args.q.extent(0), " rows in ", args.q.extent(1),
            " heads have 2^30 tiles of ", kVarlenRows, " rows or more");
        with_head_dim<Heads>(head_dim, [&]<int kHeadDim>() {
          batch_invariant_varlen_attention<kHeadDim>(args, varlen_.schedule(), context);
        });
        return;
      }
    }
    simt_varlen_attention(args, context);
  }

 private:
  template <class T, class Heads>
  [[nodiscard]] static constexpr bool takes_heads() {
    return MmaElement<T> &&
           (Heads::kHeadDim == 0 || Heads::kHeadDim == 64 || Heads::kHeadDim == 128);
  }

  template <class Args>
  static void check_alignment(const char* op, const Args& args) {
    check<ShapeError>(has_aligned_rows(args.q) && has_aligned_rows(args.out) &&
                          is_vector_aligned(args.kv.data) && args.scale > 0.f,
                      op,
                      ": in one order for any batch, rows of q and out and the cache "
                      "must be 16-byte aligned and the scale above 0");
  }

  template <class Heads, class Visit>
  static void with_head_dim(std::int64_t head_dim, const Visit& visit) {
    if constexpr (Heads::kHeadDim > 0) {
      visit.template operator()<Heads::kHeadDim>();
    } else if (head_dim == 64) {
      visit.template operator()<64>();
    } else {
      visit.template operator()<128>();
    }
  }

  SegmentDecodeWorkspace decode_;
  VarlenWorkspace varlen_;
};

}  // namespace nanovllm::cuda
