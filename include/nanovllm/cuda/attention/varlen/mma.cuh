#pragma once
/// `varlen_attention` on the tensor cores of compute capability 8.0 and later: mma.sync m16n8k16,
/// cp.async.
///
///   out = softmax(scale · q · Kᵀ) · V,  causal, aligned to the bottom right
///
/// Operands: q and out in bf16 or half with strides that are multiples of 8 elements and 16-byte
/// aligned pointers; head_dim a multiple of 8 up to 256 (widths 64, 128 and 256 are compiled, what
/// is missing to one of them is zeros); keys and values from the paged cache, any block size, as
/// elements of T or in 8 bits with scales (`KvBytes`), which are rounded to T on their way to
/// shared memory. Scores, sums of weights and outputs accumulate in float32; weights are rounded to
/// T before they meet V.
///
/// A block computes one item of the schedule (plan.cuh): 128 query rows, which stay in
/// shared memory, against tiles of 64 keys, from the last to the first. A warp has 32 rows (16 at
/// width 256); scores and outputs stay in its registers, and the scores' fragments, rounded, are
/// operands of the product with V. There is one buffer for keys and one for values: the values of a
/// tile are on their way while its scores are computed, and the keys of the next while its values
/// are used. Rows of shared memory are cut into pieces of 16 bytes, permuted by XOR with the row's
/// number modulo 8, so that neither copies nor ldmatrix meet bank conflicts.
///
/// FLOP: 4 · head_dim a visible (query, key) pair and head. Bytes: q and out once, K and V once a
/// tile of 128 queries and head, mostly from L2.
/// Source: Dao, "FlashAttention-2", 2023.
/// Measured: varlen_attention_bench, cuda_varlen_attention.json, needed: 172 to 284 TFLOP/s,
/// prompts of 1,024 to 16,384; Hopper's kernel has 409 to 617.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/attention/varlen/softmax.cuh"
#include "nanovllm/cuda/attention/varlen/tuning.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/kv_halves.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

template <MmaElement T, int kWidth_, KvFormat KvValue = T>
struct VarlenMmaTraits {
  static_assert(kWidth_ == 64 || kWidth_ == 128 || kWidth_ == 256);
  using Type = T;
  using Kv = KvValue;
  static constexpr bool kHasScales = ScaledKvFormat<Kv>;
  static constexpr int kWidth = kWidth_;  ///< head_dim, rounded up
  static constexpr int kRows = VarlenItem::kRows;
  static constexpr int kKeys = 64;
  static constexpr int kRowTiles = kWidth == 256 ? 1 : 2;  ///< of 16 rows, a warp
  static constexpr int kWarps = kRows / (16 * kRowTiles);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = kWidth == 256 ? 1 : 2;
  static constexpr int kVectors = kWidth / 8;  ///< pieces of 16 bytes a row
  static constexpr int kRowBytes = 16 * kVectors;
};

/// Shared memory of a block. Aligned, so that moving along a row is an XOR of addresses.
template <class Traits>
struct alignas(1024) VarlenMmaShared {
  uint4 q[Traits::kRows][Traits::kVectors];
  uint4 k[Traits::kKeys][Traits::kVectors];
  uint4 v[Traits::kKeys][Traits::kVectors];
  std::int64_t offsets[2]
                      [Traits::kKeys];  ///< of keys in the cache, of two tiles in turns; -1: none
  /// Of the same keys and values; nothing where the format has none.
  float scales[2][Traits::kHasScales ? 2 : 1][Traits::kHasScales ? Traits::kKeys : 1];
};

/// The parameter of the kernel.
template <class T, class Kv = T>
struct VarlenMmaProblem {
  TensorView<const T, 3> q;
  KvView<Kv> kv;
  MatrixView<const BlockId> block_tables;
  TensorView<T, 3> out;
  VarlenSchedule schedule;
  int section_keys;
  float scale_log2;
};

namespace detail {

/// One block's work on one item.
template <class Traits>
class VarlenMmaBlock {
  using T = typename Traits::Type;
  using Kv = typename Traits::Kv;
  using Problem = VarlenMmaProblem<T, Kv>;

 public:
  __device__ __forceinline__ VarlenMmaBlock(const Problem& problem, VarlenMmaShared<Traits>& shared,
                                            const VarlenItem& item)
      : problem_(problem),
        shared_(shared),
        item_(item),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_row_(static_cast<int>(threadIdx.x) / 32 * 16 * Traits::kRowTiles) {
    const auto group = static_cast<int>(problem.q.extent(1) / problem.kv.num_kv_heads);
    keys_ = problem.kv.data + item.head / group * problem.kv.tile_size();
    values_ = keys_ + problem.kv.num_kv_heads * problem.kv.tile_size();
    table_ = problem.block_tables.at(item.sequence);
    const int l = lane_ % 8;  // the row modulo 8, for each of the three
    q_at_ = shared_address(&shared.q[warp_row_ + lane_ % 16][(lane_ / 16) ^ l]);
    k_at_ = shared_address(&shared.k[l + lane_ / 16 * 8][(lane_ / 8 % 2) ^ l]);
    v_at_ = shared_address(&shared.v[lane_ % 16][(lane_ / 16) ^ l]);
  }

  __device__ __forceinline__ void run() {
    const int last = ceil_div(item_.limit(), Traits::kKeys) - 1;
    find_keys(last);
    __syncthreads();
    load_queries();
    load_keys(last);
    for (int block = last; block >= 0; --block) {
      copy_async_wait<0>();
      __syncthreads();  // keys are there, and the values before them are no longer used
      load_values(block);
      if (block > 0) find_keys(block - 1);
      const bool sees = block * Traits::kKeys < item_.first_limit + warp_row_ + kWarpRows - 1;
      if (sees) compute_scores();
      copy_async_wait<0>();
      __syncthreads();  // values are there, and the keys are no longer used
      if (block > 0) load_keys(block - 1);
      if (!sees) continue;
      if ((block + 1) * Traits::kKeys > item_.first_limit + warp_row_) {
        compute_weights<true>(block);
      } else {
        compute_weights<false>(block);
      }
      add_values();
    }
    store();
  }

 protected:
  static constexpr int kWarpRows = 16 * Traits::kRowTiles;

  /// Notes where the keys of tile `block` are. Those that no row sees are nowhere: their rows
  /// become zeros, and neither the cache nor the block table is read for them.
  __device__ __forceinline__ void find_keys(int block) {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= Traits::kKeys) return;
    const int key = block * Traits::kKeys + i;
    const auto block_size = static_cast<int>(problem_.kv.block_size);
    std::int64_t offset = -1;
    if (key < item_.limit()) {
      const std::int64_t page = table_[key / block_size] * problem_.kv.block_stride();
      const int row = key % block_size;
      offset = page + row * problem_.kv.head_dim;
      if constexpr (Traits::kHasScales) {
        shared_.scales[block % 2][0][i] = problem_.kv.scales(keys_ + page)[row];
        shared_.scales[block % 2][1][i] = problem_.kv.scales(values_ + page)[row];
      }
    }
    shared_.offsets[block % 2][i] = offset;
  }

  __device__ __forceinline__ void load_keys(int block) {
    if constexpr (Traits::kHasScales) {
      load_bytes(shared_.k, keys_, shared_.scales[block % 2][0], block);
    } else {
      load_rows(shared_.k, keys_, block);
    }
  }
  __device__ __forceinline__ void load_values(int block) {
    if constexpr (Traits::kHasScales) {
      load_bytes(shared_.v, values_, shared_.scales[block % 2][1], block);
    } else {
      load_rows(shared_.v, values_, block);
    }
  }

  /// Loads the rows of tile `block`, and rounds what they are to T: what `qk_norm_rope_store` and
  /// `kv_store` have left of the new ones in the step's own rows.
  __device__ __forceinline__ void load_bytes(uint4 (&to)[Traits::kKeys][Traits::kVectors],
                                             const KvStored<Kv>* from, const float* scales,
                                             int block) {
#pragma unroll 4
    for (int i = 0; i < Traits::kKeys * Traits::kVectors / Traits::kThreads; ++i) {
      const int vector = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
      const int row = vector / Traits::kVectors, column = vector % Traits::kVectors;
      const std::int64_t offset = shared_.offsets[block % 2][row];
      uint4 out = {0, 0, 0, 0};
      if (offset >= 0 && 8 * column < problem_.kv.head_dim) {
        const float scale = scales[row] * kHalfUnit<Kv>;
        const uint2 words = *reinterpret_cast<const uint2*>(from + offset + 8 * column);
        dequantise<Kv, T>(words.x, scale, out.x, out.y);
        dequantise<Kv, T>(words.y, scale, out.z, out.w);
      }
      to[row][column ^ (row % 8)] = out;
    }
  }
  /// Starts copying the rows of tile `block`.
  __device__ __forceinline__ void load_rows(uint4 (&to)[Traits::kKeys][Traits::kVectors],
                                            const T* from, int block) {
#pragma unroll 4
    for (int i = 0; i < Traits::kKeys * Traits::kVectors / Traits::kThreads; ++i) {
      const int vector = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
      const int row = vector / Traits::kVectors, column = vector % Traits::kVectors;
      const std::int64_t offset = shared_.offsets[block % 2][row];
      const bool valid = offset >= 0 && 8 * column < problem_.kv.head_dim;
      copy_async_16_or_zero(shared_address(&to[row][column ^ (row % 8)]),
                            from + (valid ? offset + 8 * column : 0), valid);
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void load_queries() {
#pragma unroll 4
    for (int i = 0; i < Traits::kRows * Traits::kVectors / Traits::kThreads; ++i) {
      const int vector = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
      const int row = vector / Traits::kVectors, column = vector % Traits::kVectors;
      const bool valid = row < item_.num_rows && 8 * column < problem_.kv.head_dim;
      const T* const from =
          valid ? problem_.q.at(item_.first_row + row, item_.head) + 8 * column : problem_.q.data;
      copy_async_16_or_zero(shared_address(&shared_.q[row][column ^ (row % 8)]), from, valid);
    }
  }

  /// s = q · Kᵀ, the warp's rows × 64 keys.
  __device__ __forceinline__ void compute_scores() {
#pragma unroll
    for (auto& tile : s_) {
#pragma unroll
      for (float& x : tile) x = 0.f;
    }
#pragma unroll 2                                     // more would cost registers that there are not
    for (int d = 0; d < Traits::kVectors; d += 2) {  // 16 of head_dim
      std::uint32_t q[Traits::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < Traits::kRowTiles; ++m) {
        ldmatrix_x4(q[m], (q_at_ ^ (16 * d)) + 16 * m * Traits::kRowBytes);
      }
#pragma unroll
      for (int n = 0; n < Traits::kKeys / 16; ++n) {
        std::uint32_t k[4];
        ldmatrix_x4(k, (k_at_ ^ (16 * d)) + 16 * n * Traits::kRowBytes);
#pragma unroll
        for (int m = 0; m < Traits::kRowTiles; ++m) {
          mma(s_[m], 2 * n, q[m], k[0], k[1]);
          mma(s_[m], 2 * n + 1, q[m], k[2], k[3]);
        }
      }
    }
  }

  /// Turns the scores of tile `block` into weights, and shrinks what was summed before.
  template <bool kMasked>
  __device__ __forceinline__ void compute_weights(int block) {
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m) {
      const int row = warp_row_ + 16 * m + lane_ / 4;
      float shrink[2];
      softmax_[m].template update<kMasked>(s_[m], item_.first_limit + row - block * Traits::kKeys,
                                           problem_.scale_log2, shrink);
      scale_rows(o_[m], shrink);
    }
  }

  /// o += p · V.
  __device__ __forceinline__ void add_values() {
    std::uint32_t p[Traits::kRowTiles][Traits::kKeys / 16][4];
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m) pack_weights<T>(s_[m], p[m]);
#pragma unroll
    for (int k = 0; k < Traits::kKeys / 16; ++k) {
#pragma unroll
      for (int n = 0; n < Traits::kVectors; n += 2) {
        std::uint32_t v[4];
        ldmatrix_x4_trans(v, (v_at_ ^ (16 * n)) + 16 * k * Traits::kRowBytes);
#pragma unroll
        for (int m = 0; m < Traits::kRowTiles; ++m) {
          mma(o_[m], n, p[m][k], v[0], v[1]);
          mma(o_[m], n + 1, p[m][k], v[2], v[3]);
        }
      }
    }
  }

  /// Adds to columns 8n … 8n + 7 of an accumulator of 16 rows.
  template <int kSize>
  static __device__ __forceinline__ void mma(float (&d)[kSize], int n, const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
    float part[4] = {d[4 * n], d[4 * n + 1], d[4 * n + 2], d[4 * n + 3]};
    mma_m16n8k16<T>(part, a, b0, b1);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[4 * n + i] = part[i];
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m) {
      const int row = warp_row_ + 16 * m + lane_ / 4;
      const float factor[2] = {softmax_[m].finish(0), softmax_[m].finish(1)};
      store_rows(o_[m], factor, problem_.out.at(item_.first_row + row, item_.head),
                 problem_.out.strides[0], item_.num_rows - row,
                 static_cast<int>(problem_.kv.head_dim));
    }
  }

  const Problem& problem_;
  VarlenMmaShared<Traits>& shared_;
  const VarlenItem item_;
  int lane_, warp_row_;
  KvStored<Kv>*keys_, *values_;
  const BlockId* table_;
  std::uint32_t q_at_, k_at_, v_at_;  ///< what this lane gives to ldmatrix, first 16 columns
  RowSoftmax softmax_[Traits::kRowTiles];
  float s_[Traits::kRowTiles][Traits::kKeys / 2];
  float o_[Traits::kRowTiles][Traits::kWidth / 2] = {};
};

}  // namespace detail

/// Grid: a block an item, or more.
template <class Traits>
__global__ void
__launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm) varlen_attention_mma_kernel(
    const __grid_constant__ VarlenMmaProblem<typename Traits::Type, typename Traits::Kv> problem) {
  extern __shared__ unsigned char varlen_mma_memory[];
  auto& shared = *reinterpret_cast<VarlenMmaShared<Traits>*>(
      (reinterpret_cast<std::uintptr_t>(varlen_mma_memory) + 1023) / 1024 * 1024);
  grid_dependency_wait();
  grid_dependency_launch();
  const auto heads = static_cast<int>(problem.q.extent(1));
  const auto i = static_cast<int>(blockIdx.x);
  if (i >= problem.schedule.counters->entries * heads) return;
  detail::VarlenMmaBlock<Traits>(
      problem, shared,
      varlen_item(problem.schedule, i, heads, static_cast<int>(problem.kv.num_kv_heads),
                  problem.section_keys))
      .run();
}

/// Shared memory that a block asks for with a cache of format `Kv` and `head_dim`, a multiple of 8
/// up to 256.
template <KvFormat Kv>
[[nodiscard]] std::size_t varlen_mma_shared_bytes(std::int64_t head_dim) {
  const auto bytes_of = [&]<int kWidth>() {
    return sizeof(VarlenMmaShared<VarlenMmaTraits<bf16, kWidth, Kv>>) + 1024;
  };
  switch (varlen_mma_width(head_dim)) {
    case 64: return bytes_of.template operator()<64>();
    case 128: return bytes_of.template operator()<128>();
    default: return bytes_of.template operator()<256>();
  }
}

namespace detail {

template <class Traits, class T, class Kv, class Heads>
void launch_varlen_mma(const VarlenAttentionArgs<T, Kv, Heads>& args, VarlenSchedule schedule,
                       const Context& context) {
  const VarlenMmaProblem<T, Kv> problem{args.q,
                                        args.kv,
                                        args.block_tables,
                                        args.out,
                                        schedule,
                                        varlen_section_keys(args.kv.head_dim),
                                        args.scale * static_cast<float>(kLog2E)};
  const std::int64_t items =
      varlen_max_entries(args.kv_lens.extent(0), args.q.extent(0)) * args.q.extent(1);
  launch(varlen_attention_mma_kernel<Traits>,
         {.grid = static_cast<unsigned>(items),
          .block = Traits::kThreads,
          .shared_bytes = sizeof(VarlenMmaShared<Traits>) + 1024},
         context, problem);
}

}  // namespace detail

/// The launcher; the conditions at the top hold, the operands are not empty.
template <MmaElement T, KvFormat Kv, class Heads>
void varlen_attention_mma(const VarlenAttentionArgs<T, Kv, Heads>& args, VarlenSchedule schedule,
                          const Context& context) {
  const auto launch_width = [&]<int kWidth>() {
    detail::launch_varlen_mma<VarlenMmaTraits<T, kWidth, Kv>>(args, schedule, context);
  };
  if constexpr (Heads::kHeadDim > 0) {
    launch_width.template operator()<varlen_mma_width(Heads::kHeadDim)>();
  } else {
    switch (varlen_mma_width(args.kv.head_dim)) {
      case 64: return launch_width.template operator()<64>();
      case 128: return launch_width.template operator()<128>();
      default: return launch_width.template operator()<256>();
    }
  }
}

}  // namespace nanovllm::cuda
