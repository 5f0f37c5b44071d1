#pragma once
/// The projection to q, k and v of up to 8 rows in one kernel with what comes before attention:
/// products of few rows with a norm ahead, and after them RMSNorm and RoPE of q's and k's heads,
/// and k and v to the tokens' slots of the cache. Contract: ops/project_qkv.hpp. The products are
/// those of `small_m/kernel.cuh`, or others that are told to `project_heads`.
///
/// x [m ≤ 8, k], W and the norm of x as there, bf16; head_dim 64 or 128; y, the cache and the norms
/// of the heads of any alignment. Compute capability 9.0.
///
/// A block has the same rows of both halves of a head, so that the pairs (j, j + head_dim / 2) of
/// RoPE meet in a warp; 2 to 8 blocks, a cluster, have a head. An output is rounded, as y is by the
/// product alone. All that a block must know of the others are their sums of squares: one for each
/// token and 8 elements of both halves, which is what a lane of `HeadRow` sums up, and they are
/// added up as `HeadRow::normalise` does. The bits are those of the product and
/// `qk_norm_rope_store` in sequence. Blocks of v's heads know nothing of each other, unless the
/// cache's format computes scales: then those of a head of k or v exchange their largest elements.
///
/// Bytes moved: W once; x once for each block (from L2); q once, k and v twice.
/// Measured: fp8_linear_bench, cuda_fp8_h200.json, 8-bit qkv of 8B with its heads 14.2 to 13.1 us
/// (1 row); in 16 bits, without a JSON, a layer of 0.6B 16.2 to 15.0 us (docs/lab/decode_step.md).

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/small_m/kernel.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/kv_slots.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/ops/kv_view.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {
namespace detail {

/// What is done to the heads, by value.
template <KvFormat Kv>
struct HeadOperands {
  QkNormRope<bf16> of;
  KvView<Kv> kv;
  std::int32_t num_heads;  ///< of q
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// The largest |x| of each token in all blocks of a cluster.
template <int kTokens>
struct LargestOfCluster {
  float of_rank[kTokens][8];
  std::uint64_t complete;  ///< all are here

  /// Of token `token`, of which this one of `kLanes` lanes in block `rank` has `x`; NaN if one of
  /// them is. Lanes of a token that does not `exist` get what has no meaning.
  template <int kLanes>
  __device__ __forceinline__ float of(int token, bool exists, float x, int rank, int num_ranks) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const float mine = __uint_as_float(warp_max<kLanes>(__float_as_uint(x) & 0x7fffffffu));
    if (exists && lane < num_ranks) {
      push_cluster(cluster_address(shared_address(&of_rank[token][rank]), lane), mine,
                   cluster_address(shared_address(&complete), lane));
    }
    mbarrier_wait_cluster(complete, 0);
    std::uint32_t most = 0;
    for (int i = 0; i < num_ranks; ++i) most = max(most, __float_as_uint(of_rank[token][i]));
    return __uint_as_float(most);
  }
};
#endif

/// One element of a norm's weights, ahead of the wait: see `load_16_or_zero`.
__device__ __forceinline__ bf16 load_head_weight(const bf16* p) {
  std::uint16_t bits;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(bits) : "l"(__cvta_generic_to_global(p)));
  return __builtin_bit_cast(bf16, bits);
}

/// Grid: clusters of head_dim / kColumns blocks, one for each head of q, k and v. Dynamic shared
/// memory: what the products want. In the end a token has kColumns lanes, each with one of the
/// block's rows of W.
template <class Products, class Kv>
__global__ void __launch_bounds__(Products::kThreads, Products::kBlocksPerSm)
    project_heads_kernel(const __grid_constant__ typename Products::Operands p,
                         const __grid_constant__ HeadOperands<Kv> heads) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kColumns = Products::kColumns, kHalf = kColumns / 2, kTokens = 8;
  constexpr int kSums = kHalf / 8;  // of squares, of a token in this block
  constexpr bool kFindsScale = ScaledKvFormat<Kv> && !FixedScaleKvFormat<Kv>;
  static_assert((kColumns == 32 || kColumns == 16) && kTokens * kColumns <= Products::kThreads);
  extern __shared__ uint4 project_heads_shared[];
  __shared__ float squares[kTokens][128 / 16];   // of each token, from the whole cluster
  __shared__ std::uint64_t complete;             // they are here
  __shared__ LargestOfCluster<kTokens> largest;  // not used unless kFindsScale
  const int head_dim = static_cast<int>(heads.kv.head_dim), num_ranks = head_dim / kColumns;
  const int head = static_cast<int>(blockIdx.x) / num_ranks;
  const int rank = static_cast<int>(blockIdx.x) % num_ranks;
  const int kv_head = head - heads.num_heads;  // of k, then v; of q below 0
  const bool is_v = kv_head >= static_cast<int>(heads.kv.num_kv_heads);
  const bool exchanges = !is_v || kFindsScale;
  if (exchanges) {
    if (threadIdx.x == 0) {
      mbarrier_init(complete, 1);
      if constexpr (kFindsScale) mbarrier_init(largest.complete, 1);
      mbarrier_init_fence();
      mbarrier_arrive_expect(complete,
                             static_cast<std::uint32_t>(p.num_tokens * head_dim / 16 * 4));
      if constexpr (kFindsScale) {
        mbarrier_arrive_expect(largest.complete,
                               static_cast<std::uint32_t>(p.num_tokens * num_ranks * 4));
      }
    }
    cluster_arrive();
  }

  const int thread = static_cast<int>(threadIdx.x);
  const int token = thread / kColumns, lane = thread % kColumns;
  const bool is_low = lane < kHalf, exists = token < p.num_tokens;
  const int pair = rank * kHalf + lane % kHalf;  // of the head
  const int element = is_low ? pair : head_dim / 2 + pair;
  bf16 weight{};
  if (!is_v)
    weight = load_head_weight((kv_head < 0 ? heads.of.q_norm : heads.of.k_norm).data + element);

  Slot slot = kNoSlot;
  float cosine = 0.f, sine = 0.f;
  const auto load_ahead = [&] {
    if (!exists) return;
    if (kv_head >= 0) slot = heads.of.slots.data[token];
    if (is_v) return;
    const float* const angles = heads.of.cos_sin.at(heads.of.positions.data[token]);
    cosine = angles[pair];
    sine = angles[head_dim / 2 + pair];
  };
  const auto sums =
      Products::run(p, head * head_dim + rank * kHalf, project_heads_shared, load_ahead);

  if (exchanges) cluster_wait();  // no block writes to another one before that has begun
  if (thread / 32 * 32 / kColumns >= p.num_tokens) return;  // a warp without tokens
  bf16 out = from_float<bf16>(sums.of(token, lane) * sums.scale(token, p.k, p.eps) + 0.f);
  if (!is_v) {
    const float y = to_float(out);
    float run[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) run[j] = __shfl_sync(0xffffffffu, y, thread % 32 / 8 * 8 + j);
    float sum = sum_of_squares(run);
    sum += __shfl_xor_sync(0xffffffffu, sum, kHalf);
    if (const int to = lane % 8; exists && is_low && to < num_ranks) {
      const std::uint32_t at = shared_address(&squares[token][rank * kSums + lane / 8]);
      push_cluster(cluster_address(at, to), sum, cluster_address(shared_address(&complete), to));
    }
    mbarrier_wait_cluster(complete, 0);  // nor ends before all have written to it
    const bool is_wide = head_dim == 128;
    sum = is_wide ? warp_sum<8>(squares[token][lane % 8]) : warp_sum<4>(squares[token][lane % 4]);
    const float inverse = inverse_rms(sum, is_wide ? 1.f / 128 : 1.f / 64, heads.of.eps);
    const float unit = to_float(from_float<bf16>(__fmul_rn(y, inverse)));
    const float x = to_float(from_float<bf16>(__fmul_rn(unit, to_float(weight))));
    const float other = __fmul_rn(__shfl_xor_sync(0xffffffffu, x, kHalf), sine);
    out = from_float<bf16>(__fmaf_rn(x, cosine, is_low ? -other : other));
  }
  const auto stored_head = static_cast<std::uint32_t>(kv_head);
  if constexpr (ScaledKvFormat<Kv>) {
    if (kv_head >= 0) {
      float scale;
      if constexpr (kFindsScale) {
        scale = Kv::scale_of(
            largest.template of<kColumns>(token, exists, to_float(out), rank, num_ranks));
      } else {
        scale = heads.kv.fixed_scale(kv_head);
      }
      if (slot != kNoSlot) {
        const auto stored = Kv::quantised(scale > 0.f ? __fdiv_rn(to_float(out), scale) : 0.f);
        heads.kv.data[slot_offset(heads.kv, slot, stored_head) + element] = stored;
        if (rank == 0 && lane == 0) *slot_scale(heads.kv, slot, stored_head) = scale;
        out = from_float<bf16>(__fmul_rn(static_cast<float>(stored), scale));
      }
    }
    if (exists) p.y[token * p.y_stride + head * head_dim + element] = out;
  } else {
    if (exists) p.y[token * p.y_stride + head * head_dim + element] = out;
    if (slot == kNoSlot) return;  // of q, or a padded row
    heads.kv.data[slot_offset(heads.kv, slot, stored_head) + element] = out;
  }
#endif
}

}  // namespace detail

/// All of `project_qkv` in one kernel, whose products are those of `Products`:
///
///   Operands        with y, y_stride, num_tokens, n, k and eps, and a norm of x
///   kThreads, kBlocksPerSm, kColumns  of a block: kColumns rows of W, 16 or 32, the first half of
///                   them of a head's first half
///   run(operands, first, shared, load_ahead)  as `small_m_products`
///   shared_bytes(operands), shared_percent(operands)  of a launch
///
/// False, with nothing enqueued, where the operands are not what the kernel takes. No operand is
/// empty, and all fit together. Allocates nothing and does not synchronise. Throws ShapeError for a
/// cache of more slots than 31 bits count.
template <class Products, class Matrix, KvFormat Kv>
[[nodiscard]] bool project_heads(const typename Products::Operands& p,
                                 const ProjectQkvArgs<bf16, Matrix, Kv, bf16>& args,
                                 const Context& context) {
  const std::int64_t head_dim = args.kv.head_dim;
  if (p.num_tokens > kMaxSmallMHeadRows || (head_dim != 64 && head_dim != 128)) return false;
  check_num_slots("project_qkv", args.kv);
  launch(
      detail::project_heads_kernel<Products, Kv>,
      {.grid = dim3(static_cast<unsigned>(p.n / Products::kColumns)),
       .block = dim3(Products::kThreads),
       .shared_bytes = Products::shared_bytes(p),
       .cluster = static_cast<int>(head_dim) / Products::kColumns,
       .packs_clusters = true,
       .shared_percent = Products::shared_percent(p)},
      context, p,
      detail::HeadOperands<Kv>{args.heads, args.kv, static_cast<std::int32_t>(args.num_heads())});
  return true;
}

/// The products of `small_m/kernel.cuh` for `project_heads`.
struct SmallMHeadProducts {
  using Block = detail::SmallMBlock<4, 1, true, WeightRows::heads>;
  using Operands = detail::SmallMOperands<bf16, bf16>;
  static constexpr int kThreads = Block::kThreads, kColumns = Block::kColumns, kBlocksPerSm = 2;

  template <class LoadAhead>
  static __device__ __forceinline__ detail::SmallMSums<Block> run(const Operands& p, int first,
                                                                  uint4* shared,
                                                                  const LoadAhead& load_ahead) {
    return detail::small_m_products<Block>(p, first, shared, load_ahead);
  }
  [[nodiscard]] static std::size_t shared_bytes(const Operands& p) {
    const int steps = static_cast<int>(ceil_div(p.k, Block::kSpan));
    return static_cast<std::size_t>(Block::shared_bytes(steps, p.num_tokens));
  }
  [[nodiscard]] static int shared_percent(const Operands& p) {
    return small_m_shared_percent(p.num_tokens);
  }
};

/// `project_qkv` by weights of bf16; the next kernel starts when the one ahead has ended. See
/// `project_heads`.
template <KvFormat Kv>
[[nodiscard]] bool small_m_project_qkv(
    const ProjectQkvArgs<bf16, DeviceMatrix<bf16>, Kv, bf16>& args, const Context& context) {
  const DenseLayer<bf16> layer = layer_of(args);
  if (!args.norm || args.x.extent(0) > kMaxSmallMHeadRows ||
      !small_m_takes(layer, SmallMHeadProducts::Block::kTiles))
    return false;
  check_input_norm("project_qkv", args.norm, args.weight->cols());
  auto p = detail::small_m_operands(layer, NextStart::after_wait);
  p.pair_rows = static_cast<std::int32_t>(args.kv.head_dim / 2);
  return project_heads<SmallMHeadProducts>(p, args, context);
}

}  // namespace nanovllm::cuda
