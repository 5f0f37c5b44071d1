#pragma once
/// `varlen_attention` on Hopper (sm_90a): wgmma and TMA, warps specialised.
///
///   out = softmax(scale · q · Kᵀ) · V,  causal, aligned to the bottom right
///
/// Operands: q, k, v, out in bf16 or half, head_dim 64 or 128, strides multiples of 8 elements,
/// pointers 16-byte aligned. Keys come from this step's `k` and `v` (no prefix), or from the
/// paged cache: a tile of 128 keys is copied in boxes of min(block_size, 128) keys, so block_size
/// must be 8, 16, 32, 64 or a multiple of 128; or, each sequence's for themselves, from both: tiles
/// of new keys alone in one piece ('extend attention'), all there are where there is no prefix, and
/// those with keys of the prefix from the cache (`varlen_new_from`). A cache in 8 bits
/// (`KvBytes`) is converted on the way, in blocks of a multiple of 16 (varlen_convert.cuh). Scores,
/// weights' sums and outputs accumulate in float32; weights are rounded to T before they meet V.
///
/// A block of 384 threads: one warp fetches items of the schedule (plan.cuh) from a counter,
/// one ahead, and hands them to the others; one copies queries and keys, one values, into rings of
/// stages; two warpgroups of 64 query rows each compute. Blocks are persistent, one an SM, so that
/// copies for the next item run under the end of this one.
///
/// A warpgroup issues S = Q·Kᵀ of the next keys, then O += P·V of the last, and computes the
/// softmax of the former under the latter; the two warpgroups take turns at issuing, so that one's
/// softmax runs under the other's products too. Keys go from the last tile to the first: the tiles
/// that need a mask come first, and the loop over the rest has none.
///
/// FLOP: 4 · head_dim a visible (query, key) pair and head. Bytes: q and out once, K and V once a
/// tile of 128 queries and head, mostly from L2.
/// Source: Shah et al., "FlashAttention-3", 2024; Zheng et al., "SGLang", 2024; PTX ISA 9.0.
/// Measured: varlen_attention_bench, cuda_varlen_attention.json, 168 us for 16 x 1,024 keys in
/// blocks of 64 where varlen/mma.cuh takes 399, and 1,782 for 16,384 where that takes 3,874.

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/attention/varlen/softmax.cuh"
#include "nanovllm/cuda/attention/varlen/tuning.hpp"
#include "nanovllm/cuda/hopper/attention/varlen_convert.cuh"
#include "nanovllm/cuda/hopper/attention/varlen_copy.cuh"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

namespace detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A warpgroup that computes 64 rows of each tile.
template <class Traits>
class VarlenConsumer {
  using T = typename Traits::Type;

 public:
  __device__ __forceinline__ VarlenConsumer(const VarlenHopperProblem<T>& problem,
                                            VarlenHopperShared<Traits>& shared, int group)
      : problem_(problem),
        shared_(shared),
        group_(group),
        row_(64 * group + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
             static_cast<int>(threadIdx.x) % 32 / 4) {}

  __device__ __forceinline__ void run() {
    if (Traits::kTakeTurns && group_ == 1) named_barrier_arrive<kTurnThreads>(turn(0));
    for (RingPosition<1> position;; position.advance()) {
      const VarlenItem item = next_varlen_item(shared_, position);
      if (item.num_rows == 0) break;
      release_varlen_item(shared_);
      attend(item);
      const float factor[2] = {softmax_.finish(0), softmax_.finish(1)};
      store_rows(o_, factor,
                 problem_.out + (item.first_row + row_) * problem_.out_row_stride +
                     item.head * problem_.out_head_stride,
                 problem_.out_row_stride, item.num_rows - row_);
    }
    if (Traits::kTakeTurns && group_ == 0) named_barrier_sync<kTurnThreads>(turn(0));
  }

 private:
  static constexpr int kTurnThreads = 128 * Traits::kGroups;
  /// Named barriers: whose turn it is to issue products, and that values are cleared.
  static __device__ __forceinline__ int turn(int group) { return 1 + group; }
  static constexpr int kCleared = 3;

  /// Leaves the sums of the item's rows in `o_` and `softmax_`.
  __device__ __forceinline__ void attend(const VarlenItem& item) {
    softmax_ = RowSoftmax{};
#pragma unroll
    for (float& x : o_) x = 0.f;
    const int last = ceil_div(item.limit(), Traits::kKeys) - 1;
    // Row 0 of the group, the most restricted, sees every key of the tiles below this one.
    const int unmasked = (item.first_limit + 64 * group_) / Traits::kKeys;
    int limit = item.first_limit + row_ - last * Traits::kKeys;

    mbarrier_wait(shared_.q_full, q_.parity);
    mbarrier_wait(shared_.k_full[k_.stage], k_.parity);
    issue_scores();
    wgmma_wait<0>();
    wgmma_hold(s_);
    release_keys(last == 0);
    float shrink[2];
    softmax_.template update<true>(s_, limit, problem_.scale_log2, shrink);
    pack_weights<T>(s_, p_);
    clear_values(item.limit() - last * Traits::kKeys);
    if (last > 0) mbarrier_wait(shared_.k_full[k_.stage], k_.parity);

    int block = last - 1;
    for (; block >= unmasked; --block) step<true>(block, limit += Traits::kKeys);
    for (; block >= 0; --block) step<false>(block, 0);

    mbarrier_wait(shared_.v_full[v_.stage], v_.parity);
    issue_values();
    wgmma_wait<0>();
    wgmma_hold(o_);
    release_values();
    q_.advance();
  }

  /// Scores of tile `block` while the weights of the one after it meet their values.
  template <bool kMasked>
  __device__ __forceinline__ void step(int block, int limit) {
    if constexpr (Traits::kTakeTurns) named_barrier_sync<kTurnThreads>(turn(group_));
    wgmma_hold(s_);
    issue_scores();
    mbarrier_wait(shared_.v_full[v_.stage], v_.parity);
    issue_values();
    if constexpr (Traits::kTakeTurns) named_barrier_arrive<kTurnThreads>(turn(1 - group_));
    wgmma_wait<1>();
    wgmma_hold(s_);
    release_keys(block == 0);
    float shrink[2];
    softmax_.template update<kMasked>(s_, limit, problem_.scale_log2, shrink);
    wgmma_hold(s_);
    // This wait also keeps ptxas from moving the softmax after the next one.
    if (block > 0) mbarrier_wait(shared_.k_full[k_.stage], k_.parity);
    wgmma_wait<0>();
    wgmma_hold(o_);
    release_values();
    // Maxima seldom grow after the first tiles; a factor of 1 changes no bit.
    if (__any_sync(0xffffffffu, shrink[0] != 1.f || shrink[1] != 1.f)) scale_rows(o_, shrink);
    pack_weights<T>(s_, p_);
  }

  /// s = q · Kᵀ, 64 × 128.
  __device__ __forceinline__ void issue_scores() {
    wgmma_fence();
    const WgmmaOperand q = wgmma_operand(shared_.q + 64 * group_ * kTmaColumns * 2, 0);
    const WgmmaOperand k = wgmma_operand(shared_.k[k_.stage], 0);
#pragma unroll
    for (int i = 0; i < Traits::kHeadDim / 16; ++i) {
      const int offset = i / 4 * Traits::kPanelBytes + i % 4 * 32;
      if (i == 0) {
        wgmma<T, false>(s_, q.plus(offset), k.plus(offset));
      } else {
        wgmma<T, true>(s_, q.plus(offset), k.plus(offset));
      }
    }
    wgmma_commit();
  }

  /// o += p · V, 64 × head_dim.
  __device__ __forceinline__ void issue_values() {
    wgmma_fence();
    const WgmmaOperand v = wgmma_operand(shared_.v[v_.stage], Traits::kPanelBytes);
#pragma unroll
    for (int i = 0; i < Traits::kKeys / 16; ++i) {
      wgmma<T>(o_, p_[i], v.plus(i * 16 * kTmaColumns * 2));
    }
    wgmma_commit();
  }

  /// Zeroes the values from key `num_keys` of the tile on, which may be anything: their weights are
  /// 0, but 0 · NaN is not. The groups share the work and wait for each other.
  __device__ __forceinline__ void clear_values(int num_keys) {
    if (num_keys >= Traits::kKeys) return;
    mbarrier_wait(shared_.v_full[v_.stage], v_.parity);
    constexpr int kVectors = kTmaColumns * 2 / 16, kThreads = 128 * Traits::kGroups;
    const int vectors = (Traits::kKeys - num_keys) * kVectors;
#pragma unroll
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
      auto* const rows =
          reinterpret_cast<uint4*>(shared_.v[v_.stage] + panel * Traits::kPanelBytes) +
          num_keys * kVectors;
      for (int i = static_cast<int>(threadIdx.x) % 128 + 128 * group_; i < vectors; i += kThreads) {
        rows[i] = make_uint4(0, 0, 0, 0);
      }
    }
    async_proxy_fence_shared();
    named_barrier_sync<kThreads>(kCleared);
  }

  /// Lets the copiers refill the stage of keys, and the queries after the last product with them.
  __device__ __forceinline__ void release_keys(bool last) {
    if (threadIdx.x % 32 == 0) {
      mbarrier_arrive(shared_.k_empty[k_.stage]);
      if (last) mbarrier_arrive(shared_.q_empty);
    }
    k_.advance();
  }
  __device__ __forceinline__ void release_values() {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_.v_empty[v_.stage]);
    v_.advance();
  }

  const VarlenHopperProblem<T>& problem_;
  VarlenHopperShared<Traits>& shared_;
  int group_, row_;  ///< this thread's first row in the tile
  RingPosition<1> q_;
  RingPosition<Traits::kStages> k_, v_;
  RowSoftmax softmax_;
  float s_[Traits::kKeys / 2];
  float o_[Traits::kHeadDim / 2];
  std::uint32_t p_[Traits::kKeys / 16][4];
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace detail

/// Grid: at most one block an SM.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) varlen_attention_hopper_kernel(
    const __grid_constant__ VarlenHopperProblem<typename Traits::Type> problem) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char varlen_hopper_memory[];
  auto& shared = *reinterpret_cast<VarlenHopperShared<Traits>*>(
      (reinterpret_cast<std::uintptr_t>(varlen_hopper_memory) + 1023) / 1024 * 1024);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(problem.q);
    tma_prefetch_map(problem.k);
    tma_prefetch_map(problem.v);
    if constexpr (Traits::kMixed) {
      tma_prefetch_map(problem.new_k);
      tma_prefetch_map(problem.new_v);
    }
    // Every lane arrives for itself: for an item it costs little, and it is what racecheck follows.
    mbarrier_init(shared.item_full, 32);
    mbarrier_init(shared.item_empty, 32 * (Traits::kConsumerWarps + Traits::kItemReaders));
    mbarrier_init(shared.q_full, 1);
    mbarrier_init(shared.q_empty, Traits::kConsumerWarps);
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(shared.k_full[i], Traits::kCopiersOfTile);
      mbarrier_init(shared.v_full[i], Traits::kCopiersOfTile);
      mbarrier_init(shared.k_empty[i], Traits::kConsumerWarps);
      mbarrier_init(shared.v_empty[i], Traits::kConsumerWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  grid_dependency_wait();
  grid_dependency_launch();
  if (warp < 4) {
    release_registers<Traits::kProducerRegisters>();
    if constexpr (Traits::kConverts) {
      async_proxy_fence_global();
      detail::convert_varlen_tiles(problem, shared, warp);
    } else if (warp == 0) {
      async_proxy_fence_global();
      detail::VarlenCopier<Traits, false>(problem, shared).run();
    } else if (warp == 1) {
      async_proxy_fence_global();
      detail::VarlenCopier<Traits, true>(problem, shared).run();
    } else if (warp == 2) {
      detail::fetch_varlen_items(problem, shared, [](const VarlenItem&) {});
    }
  } else {
    take_registers<Traits::kConsumerRegisters>();
    detail::VarlenConsumer<Traits>(problem, shared, warp / 4 - 1).run();
  }
#endif
}

/// The conditions at the top hold, the operands are not empty. The workspace is planned.
template <int kHeadDim, VarlenSource kSource, MmaElement T, class Kv, class Heads>
void launch_varlen_hopper(const VarlenAttentionArgs<T, Kv, Heads>& args, VarlenWorkspace& workspace,
                          const Context& context) {
  using Traits = VarlenHopperTraits<T, kHeadDim, kSource, Kv>;
  TensorMaps& maps = workspace.tensor_maps();
  const auto rows_map = [&](const TensorView<const T, 3>& x) {
    return maps.get<T, 3>(x.data, {x.extent(2), x.extent(1), x.extent(0)},
                          {x.strides[1], x.strides[0]}, {kTmaColumns, 1, Traits::kRows});
  };
  VarlenHopperProblem<T> problem{};
  problem.q = rows_map(args.q);
  if constexpr (Traits::kConverts) {
    problem.cache = args.kv.data;
    problem.page_stride = args.kv.block_stride();
    problem.head_stride = static_cast<int>(args.kv.tile_size());
    problem.new_k = problem.k = rows_map(args.k);
    problem.new_v = problem.v = rows_map(args.v);
  } else if constexpr (Traits::kMixed) {
    const KvView<Kv>& kv = args.kv;
    const int box_keys = static_cast<int>(std::min<std::int64_t>(kv.block_size, Traits::kKeys));
    problem.k = problem.v = maps.get<T, 4>(
        kv.data, {kv.head_dim, kv.block_size, 2 * kv.num_kv_heads, kv.num_blocks},
        {kv.head_dim, kv.tile_size(), kv.block_stride()}, {kTmaColumns, box_keys, 1, 1});
    problem.new_k = rows_map(args.k);
    problem.new_v = rows_map(args.v);
  } else {
    problem.k = rows_map(args.k);
    problem.v = rows_map(args.v);
  }
  problem.schedule = workspace.schedule();
  problem.block_tables = args.block_tables.data;
  problem.table_stride = args.block_tables.strides[0];
  problem.out = args.out.data;
  problem.out_row_stride = args.out.strides[0];
  problem.out_head_stride = args.out.strides[1];
  problem.heads = static_cast<int>(args.q.extent(1));
  problem.kv_heads = static_cast<int>(args.kv.num_kv_heads);
  problem.block_size = static_cast<int>(args.kv.block_size);
  problem.num_blocks = static_cast<int>(args.kv.num_blocks);
  problem.section_keys = varlen_section_keys(kHeadDim);
  problem.scale_log2 = args.scale * static_cast<float>(kLog2E);
  const std::int64_t items =
      varlen_max_entries(args.kv_lens.extent(0), args.q.extent(0)) * args.q.extent(1);
  launch(varlen_attention_hopper_kernel<Traits>,
         {.grid = static_cast<unsigned>(std::min<std::int64_t>(items, context.num_sms)),
          .block = Traits::kThreads,
          .shared_bytes = sizeof(VarlenHopperShared<Traits>) + 1024},
         context, problem);
}

/// The launcher. False, with nothing enqueued, where it does not take the shapes. `Heads` leaves
/// head_dim open, or says 64 or 128; the other is not compiled then.
template <MmaElement T, class Kv, class Heads>
[[nodiscard]] bool varlen_attention_hopper(const VarlenAttentionArgs<T, Kv, Heads>& args,
                                           VarlenWorkspace& workspace, const Context& context) {
  if (!fits_varlen_hopper(args.kv.head_dim, args.kv.block_size, args.has_prefix,
                          ScaledKvFormat<Kv>))
    return false;
  const auto launch_width = [&]<int kHeadDim>() {
    if (!args.has_prefix) {
      launch_varlen_hopper<kHeadDim, VarlenSource::step>(args, workspace, context);
    } else {
      launch_varlen_hopper<kHeadDim, VarlenSource::mixed>(args, workspace, context);
    }
  };
  if constexpr (Heads::kHeadDim > 0) {
    launch_width.template operator()<Heads::kHeadDim>();
  } else if (args.kv.head_dim == 64) {
    launch_width.template operator()<64>();
  } else {
    launch_width.template operator()<128>();
  }
  return true;
}

}  // namespace nanovllm::cuda
