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
  /// Of keys in the cache, of two tiles in turns; -1: none.
  std::int64_t offsets[2][Traits::kKeys];
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
    attend<false>([](int) {});
#pragma unroll
    for (int m = 0; m < Traits::kRowTiles; ++m)
      store(m, {softmax_[m].finish(0), softmax_[m].finish(1)});
  }

 protected:
  static constexpr int kWarpRows = 16 * Traits::kRowTiles;

  [[nodiscard]] __device__ __forceinline__ int last_tile() const {
    return ceil_div(item_.limit(), Traits::kKeys) - 1;
  }

  /// Takes all tiles in, from the last to the first, or `kAscending` from the first to the last.
  /// After each calls `after(tile)`.
  template <bool kAscending, class After>
  __device__ __forceinline__ void attend(const After& after) {
    constexpr int kStep = kAscending ? 1 : -1;
    int tile = kAscending ? 0 : last_tile();
    const int end = kAscending ? last_tile() + 1 : -1;
    find_keys(tile);
    __syncthreads();
    load_queries();
    load_keys(tile);
    for (; tile != end; tile += kStep) {
      const bool has_next = tile + kStep != end;
      copy_async_wait<0>();
      __syncthreads();  // keys are there, and the values before them are no longer used
      load_values(tile);
      if (has_next) find_keys(tile + kStep);
      const bool sees = tile * Traits::kKeys < item_.first_limit + warp_row_ + kWarpRows - 1;
      if (sees) compute_scores();
      copy_async_wait<0>();
      __syncthreads();  // values are there, and the keys are no longer used
      if (has_next) load_keys(tile + kStep);
      if (sees) {
        if ((tile + 1) * Traits::kKeys > item_.first_limit + warp_row_) {
          compute_weights<true>(tile);
        } else {
          compute_weights<false>(tile);
        }
        add_values();
      }
      after(tile);
    }
  }

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

  __device__ __forceinline__ void load_keys(int tile) { load(shared_.k, keys_, 0, tile); }
  __device__ __forceinline__ void load_values(int tile) { load(shared_.v, values_, 1, tile); }

  /// Starts copying a tile's keys (`which` = 0) or values (1). In a format with scales it loads
  /// them, and rounds what they are to T: what `qk_norm_rope_store` and `kv_store` have left of the
  /// new ones in the step's own rows.
  __device__ __forceinline__ void load(uint4 (&to)[Traits::kKeys][Traits::kVectors],
                                       const KvStored<Kv>* from, int which, int tile) {
#pragma unroll 4
    for (int i = 0; i < Traits::kKeys * Traits::kVectors / Traits::kThreads; ++i) {
      const int vector = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
      const int row = vector / Traits::kVectors, column = vector % Traits::kVectors;
      const std::int64_t offset = shared_.offsets[tile % 2][row];
      const bool valid = offset >= 0 && 8 * column < problem_.kv.head_dim;
      uint4& at = to[row][column ^ (row % 8)];
      const KvStored<Kv>* const source = from + (valid ? offset + 8 * column : 0);
      if constexpr (Traits::kHasScales) {
        uint4 out = {0, 0, 0, 0};
        if (valid) {
          const float scale = shared_.scales[tile % 2][which][row] * kHalfUnit<Kv>;
          const uint2 words = *reinterpret_cast<const uint2*>(source);
          dequantise<Kv, T>(words.x, scale, out.x, out.y);
          dequantise<Kv, T>(words.y, scale, out.z, out.w);
        }
        at = out;
      } else {
        copy_async_16_or_zero(shared_address(&at), source, valid);
      }
    }
    if constexpr (!Traits::kHasScales) copy_async_commit();
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
          mma_m16n8k16<T>(s_[m], 2 * n, q[m], k[0], k[1]);
          mma_m16n8k16<T>(s_[m], 2 * n + 1, q[m], k[2], k[3]);
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
          mma_m16n8k16<T>(o_[m], n, p[m][k], v[0], v[1]);
          mma_m16n8k16<T>(o_[m], n + 1, p[m][k], v[2], v[3]);
        }
      }
    }
  }

  struct RowFactors {
    float of[2];
  };
  /// Writes row tile m, multiplied by the factors of its two rows.
  __device__ __forceinline__ void store(int m, const RowFactors& factors) const {
    const int row = warp_row_ + 16 * m + lane_ / 4;
    store_rows(o_[m], factors.of, problem_.out.at(item_.first_row + row, item_.head),
               problem_.out.strides[0], item_.num_rows - row,
               static_cast<int>(problem_.kv.head_dim));
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

/// Has `Block` do this block's item, if there is one. `memory` is the kernel's shared memory,
/// `more` what `Block` wants besides.
template <class Block, class Traits, class Problem, class... More>
__device__ __forceinline__ void run_varlen_item(const Problem& problem, unsigned char* memory,
                                                More... more) {
  auto& shared = *reinterpret_cast<VarlenMmaShared<Traits>*>(
      (reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
  grid_dependency_wait();
  grid_dependency_launch();
  const auto heads = static_cast<int>(problem.q.extent(1));
  const auto i = static_cast<int>(blockIdx.x);
  if (i >= problem.schedule.counters->entries * heads) return;
  Block(problem, shared,
        varlen_item(problem.schedule, i, heads, static_cast<int>(problem.kv.num_kv_heads),
                    problem.section_keys),
        more...)
      .run();
}

}  // namespace detail

/// Grid: a block an item, or more.
template <class Traits>
__global__ void
__launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm) varlen_attention_mma_kernel(
    const __grid_constant__ VarlenMmaProblem<typename Traits::Type, typename Traits::Kv> problem) {
  extern __shared__ unsigned char varlen_mma_memory[];
  detail::run_varlen_item<detail::VarlenMmaBlock<Traits>, Traits>(problem, varlen_mma_memory);
}

/// Calls `visit` with the width that heads of `head_dim` take, a multiple of 8 up to 256;
/// `kHeadDim` is that where it is known, else 0.
template <int kHeadDim = 0, class Visit>
auto with_varlen_mma_width(std::int64_t head_dim, const Visit& visit) {
  if constexpr (kHeadDim > 0) {
    return visit.template operator()<varlen_mma_width(kHeadDim)>();
  } else {
    switch (varlen_mma_width(head_dim)) {
      case 64: return visit.template operator()<64>();
      case 128: return visit.template operator()<128>();
      default: return visit.template operator()<256>();
    }
  }
}

/// Shared memory that a block asks for with a cache of format `Kv`.
template <KvFormat Kv>
[[nodiscard]] std::size_t varlen_mma_shared_bytes(std::int64_t head_dim) {
  return with_varlen_mma_width(head_dim, [&]<int kWidth>() {
    return sizeof(VarlenMmaShared<VarlenMmaTraits<bf16, kWidth, Kv>>) + 1024;
  });
}

namespace detail {

/// Launches a kernel of this parameter, a block an item.
template <class Traits, class Kernel, class T, class Kv, class Heads>
void launch_varlen_mma(Kernel kernel, const VarlenAttentionArgs<T, Kv, Heads>& args,
                       VarlenSchedule schedule, const Context& context) {
  const VarlenMmaProblem<T, Kv> problem{args.q,
                                        args.kv,
                                        args.block_tables,
                                        args.out,
                                        schedule,
                                        varlen_section_keys(args.kv.head_dim),
                                        args.scale * static_cast<float>(kLog2E)};
  const std::int64_t items =
      varlen_max_entries(args.kv_lens.extent(0), args.q.extent(0)) * args.q.extent(1);
  launch(kernel,
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
  with_varlen_mma_width<Heads::kHeadDim>(args.kv.head_dim, [&]<int kWidth>() {
    using Traits = VarlenMmaTraits<T, kWidth, Kv>;
    detail::launch_varlen_mma<Traits>(varlen_attention_mma_kernel<Traits>, args, schedule, context);
  });
}

}  // namespace nanovllm::cuda
