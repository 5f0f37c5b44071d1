#pragma once
/// Attention in one order, for decodes and prompt chunks: what a token gets depends neither on the
/// op, the batch, the chunk, the block size nor the block ids.
///
/// 16-bit elements with head_dim 64 or 128 and up to 16 query heads a kv head run on the tensor
/// cores, decodes by decode.cuh; everything else, float32 above all, runs `simt_attention`, which
/// keeps its own order. Prefixes that sequences share are read by each.
///
/// Prompt chunks take the kernel of varlen/mma.cuh, with tiles of 64 keys from the first to the
/// last and segments merged as in segments.cuh. A row's bits depend on its query, and on the keys
/// and values that it sees, and on nothing else: tiles and segments begin at absolute positions;
/// within a tile a row of a tensor-core product gets what it would get alone; and tiles that a row
/// sees nothing of leave what it has as it is. `batch_invariant_decode_attention` does the same
/// arithmetic with the heads of a group as rows.
///
/// What earlier segments have left waits in the thread's local memory: it is read and written once
/// in 256 keys, and registers are full.
/// Measured: batch_invariant_bench, cuda_batch_invariant_attention.json, needed by the mode: 477 us
/// for 16 x 1,024 keys; varlen/mma.cuh takes 329, Hopper's kernel 143.

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/simt_attention.cuh"
#include "nanovllm/cuda/attention/varlen/mma.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/with/batch_invariant/attention/decode.cuh"
#include "nanovllm/with/batch_invariant/attention/segments.cuh"

namespace nanovllm::cuda {

namespace detail {

/// One block's work on one item of prompt chunks.
template <class Traits>
class SegmentVarlenBlock : VarlenMmaBlock<Traits> {
  using Base = VarlenMmaBlock<Traits>;
  static_assert(Traits::kKeys == kSegmentTileKeys);
  static constexpr int kSums = Traits::kWidth / 2;  ///< of a thread, in 16 rows

 public:
  /// `totals` is memory of this thread.
  __device__ __forceinline__ SegmentVarlenBlock(
      const VarlenMmaProblem<typename Traits::Type>& problem, VarlenMmaShared<Traits>& shared,
      const VarlenItem& item, volatile float* totals)
      : Base(problem, shared, item), totals_(totals) {}

  __device__ __forceinline__ void run() {
    const int last = this->last_tile();
    this->template attend<true>([&](int tile) {
      if ((tile + 1) % kSegmentTiles == 0 && tile < last) end_segment(tile + 1 == kSegmentTiles);
    });
    if (last >= kSegmentTiles) return store_totals();
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m)
      this->store(m, {this->softmax_[m].finish(0), this->softmax_[m].finish(1)});
  }

 private:
  /// Takes this segment in, and begins the next with nothing.
  __device__ __forceinline__ void end_segment(bool is_first) {
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m) {
      const SegmentSum::Factors factors[2] = {take(m, 0, is_first).factors,
                                              take(m, 1, is_first).factors};
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        volatile float& total = totals_[m * kSums + i];
        total = SegmentSum::add(is_first ? 0.f : total, this->o_[m][i], factors[i / 2 % 2]);
        this->o_[m][i] = 0.f;
      }
      this->softmax_[m] = RowSoftmax{};
    }
  }

  /// Takes the last segment in, and writes all.
  __device__ __forceinline__ void store_totals() {
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m) {
      const Taken taken[2] = {take(m, 0, false), take(m, 1, false)};
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        this->o_[m][i] =
            SegmentSum::add(totals_[m * kSums + i], this->o_[m][i], taken[i / 2 % 2].factors);
      }
      this->store(m, {taken[0].sum.finish(), taken[1].sum.finish()});
    }
  }

  struct Taken {
    SegmentSum sum;
    SegmentSum::Factors factors;
  };

  /// Takes in row r of row tile m, without its values.
  __device__ __forceinline__ Taken take(int m, int r, bool is_first) {
    volatile float* const at = totals_ + Traits::kRowTiles * kSums + 4 * m + 2 * r;
    SegmentSum sum;
    if (!is_first) sum = {at[0], at[1]};
    const SegmentSum::Factors factors =
        sum.take(this->softmax_[m].max[r], this->softmax_[m].total(r), this->problem_.scale_log2);
    at[0] = sum.max;
    at[1] = sum.sum;
    return {sum, factors};
  }

  volatile float* totals_;  ///< [row tile][kSums], then [row tile][2][maximum, sum]
};

}  // namespace detail

/// Grid: a block an item, or more.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm)
    batch_invariant_varlen_attention_kernel(
        const __grid_constant__ VarlenMmaProblem<typename Traits::Type> problem) {
  extern __shared__ unsigned char segment_varlen_memory[];
  volatile float totals[Traits::kRowTiles * (Traits::kWidth / 2 + 4)];  // not in registers
  detail::run_varlen_item<detail::SegmentVarlenBlock<Traits>, Traits>(
      problem, segment_varlen_memory, static_cast<volatile float*>(totals));
}

/// The launcher, for heads of width 64 or 128; operands are not empty.
template <int kWidth, MmaElement T, class Heads>
void batch_invariant_varlen_attention(const VarlenAttentionArgs<T, T, Heads>& args,
                                      VarlenSchedule schedule, const Context& context) {
  using Traits = VarlenMmaTraits<T, kWidth>;
  detail::launch_varlen_mma<Traits>(batch_invariant_varlen_attention_kernel<Traits>, args, schedule,
                                    context);
}

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
