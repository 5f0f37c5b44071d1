#pragma once
/// The kernel of `int4_few_rows` for nine rows of x and more: dense layers by 4-bit integers on
/// Hopper. The formula and the bits are those of int4_few_rows_kernel.cuh, whose blocks keep the
/// planes of x in shared memory. For more rows there is no room; here they come through the ring.
///
/// A cluster of four blocks takes an item, two tiles of 64 rows of W, after the other: a quarter of
/// K a block, four warps for each tile, which share the planes. One more warp copies units of W and
/// the planes that belong to them, W as far as the ring goes before the kernels ahead are done. Of
/// the sums of an item a block gets 16 rows of each tile from the others, adds them in the order of
/// K, and writes y. In the gated form an item is a tile of gates and one of ups, and y their silu
/// and product, rounded as `silu_mul` has it.
///
/// Bytes moved: W once, N · K / 2, its scales, N · K / 32, and offsets as many; from L2 the planes,
/// 2 · M · K, once for each 128 rows of W.
/// Measured: int4_linear_bench, cuda_int4.json, a step of 8B with 16 sequences 3.57 to 3.02 ms, of
/// 32 5.99 to 4.58, of 64 11.15 to 8.05.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_few_rows_kernel.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_planes.cuh"

namespace nanovllm::cuda::detail {

struct Int4MidMProblem {
  Int4View weight;
  Int4Planes planes;
  bf16* y;
  std::int64_t y_stride;
  int num_tokens, num_items, num_stages;
  int pair_tiles;  ///< from an item's first tile to its second
  int item_tiles;  ///< from an item's first tile to the next one's
  bool accumulate;
};

/// Up to `kTokenCount` rows of x, 16 or 32.
template <int kTokenCount, bool kIsGated>
struct Int4MidMBlock {
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kColumns = 2 * kTokens;  ///< of operand B
  static constexpr int kTiles = 2;
  static constexpr int kMultiplyThreads = 128 * kTiles;
  static constexpr int kThreads = kMultiplyThreads + 32;     ///< and a warp that copies
  static constexpr int kPlaneBytes = kColumns * kInt4Group;  ///< of a group
  static constexpr int kUnitPlanes = 2 * kPlaneBytes;
  static constexpr int kTileBytes = 9216;
  static constexpr int kFactBytes = 4 * 2 * kTokens;  ///< scales of a unit, or sums
  static constexpr int kStageBytes = kUnitPlanes + kTiles * kTileBytes + 1024;
  static constexpr int kRankRows = kInt4TileRows / kInt4Cluster;  ///< of a tile, that one finishes
  static constexpr int kPartFloats = kTiles * kRankRows * kTokens;  ///< to another block
  static constexpr int kMostStages = 8;
  /// Of all but the ring.
  static constexpr int kFixedBytes =
      1024 + 4 * 2 * kInt4Cluster * kPartFloats + 8 * (2 * kMostStages + 2);
  static_assert(kInt4StageBytes <= kTileBytes && 2 * kFactBytes <= 1024);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A block's part in the products.
template <class Block>
class Int4MidM {
  static constexpr int kSets = Block::kColumns / 8;  ///< of eight columns of B, four rows of x

 public:
  __device__ Int4MidM(const Int4MidMProblem& problem, unsigned char* memory)
      : p_(problem),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        num_tiles_(static_cast<int>(problem.weight.num_tiles())) {
    const auto num_units = static_cast<int>(problem.weight.num_units());
    first_unit_ = num_units * cluster_.rank / kInt4Cluster;
    units_ = num_units * (cluster_.rank + 1) / kInt4Cluster - first_unit_;
    ring_ = memory + (1024 - shared_address(memory) % 1024) % 1024;
    parts_ = reinterpret_cast<float*>(ring_ + p_.num_stages * Block::kStageBytes);
    full_ = reinterpret_cast<std::uint64_t*>(parts_ + 2 * kInt4Cluster * Block::kPartFloats);
    empty_ = full_ + Block::kMostStages;
    arrived_ = empty_ + Block::kMostStages;
  }

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < p_.num_stages; ++i) {
        mbarrier_init(full_[i], 1);
        mbarrier_init(empty_[i], Block::kMultiplyThreads / 32);
      }
      mbarrier_init(arrived_[0], 1);
      mbarrier_init(arrived_[1], 1);
      mbarrier_init_fence();
    }
    __syncthreads();
    cluster_arrive();
    if (warp_ == Block::kMultiplyThreads / 32) {
      if (lane_ == 0) copy();
      __syncwarp();
      cluster_wait();
    } else {
      cluster_wait();  // the barriers of the other blocks are there
      multiply();
    }
    cluster_sync();  // no block ends while others send it sums
  }

 private:
  [[nodiscard]] static __device__ int stride() {
    return static_cast<int>(gridDim.x) / kInt4Cluster;
  }
  [[nodiscard]] static __device__ int first_item() {
    return static_cast<int>(blockIdx.x) / kInt4Cluster;
  }
  [[nodiscard]] __device__ int tile_of(int item, int which) const {
    return item * p_.item_tiles + which * p_.pair_tiles;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* planes_of(int stage) const {
    return ring_ + stage * Block::kStageBytes;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* tile_at(int stage, int which) const {
    return planes_of(stage) + Block::kUnitPlanes + which * Block::kTileBytes;
  }
  /// Scales of the planes of a unit, [2][kTokens], and the sums of x.
  [[nodiscard]] __device__ __forceinline__ float* facts_of(int stage) const {
    return reinterpret_cast<float*>(tile_at(stage, Block::kTiles));
  }
  __device__ __forceinline__ void advance() {
    if (++stage_ == p_.num_stages) stage_ = 0, parity_ ^= 1;
  }

  /// Brings the block's units of all its items, and their planes once the kernels ahead are done.
  /// By one thread.
  __device__ void copy() {
    const bool has_offsets = p_.weight.offsets != nullptr;
    const int tile_bytes = has_offsets ? kInt4StageBytes : kInt4UnitBytes;
    int sent = 0;
    for (int item = first_item(); item < p_.num_items; item += stride()) {
      const int count = tile_of(item, 1) < num_tiles_ ? 2 : 1;
      const int bytes =
          Block::kUnitPlanes + (has_offsets ? 2 : 1) * Block::kFactBytes + count * tile_bytes;
      for (int u = 0; u < units_; ++u, ++sent) {
        if (sent == p_.num_stages) copy_first_planes(sent);
        mbarrier_wait(empty_[stage_], parity_ ^ 1);
        mbarrier_arrive_expect(full_[stage_], static_cast<std::uint32_t>(bytes));
        for (int i = 0; i < count; ++i) {
          const std::int64_t index = tile_of(item, i) * p_.weight.num_units() + first_unit_ + u;
          bulk_load(tile_at(stage_, i), p_.weight.units + index * kInt4UnitBytes, kInt4UnitBytes,
                    full_[stage_]);
          if (has_offsets)
            bulk_load(tile_at(stage_, i) + kInt4UnitBytes,
                      p_.weight.offsets + index * kInt4UnitFloats, 4 * kInt4UnitFloats,
                      full_[stage_]);
        }
        if (sent >= p_.num_stages) copy_planes(u, stage_);
        advance();
      }
    }
    if (sent <= p_.num_stages) copy_first_planes(sent);
  }
  __device__ __forceinline__ void copy_first_planes(int count) {
    grid_dependency_wait();
    async_proxy_fence_global();
    for (int i = 0; i < count; ++i) copy_planes(i % units_, i);
  }
  __device__ __forceinline__ void copy_planes(int u, int stage) {
    const std::int64_t group = 2 * (first_unit_ + u);
    bulk_load(planes_of(stage), p_.planes.planes + group * Block::kPlaneBytes, Block::kUnitPlanes,
              full_[stage]);
    bulk_load(facts_of(stage), p_.planes.scales + group * Block::kTokens, Block::kFactBytes,
              full_[stage]);
    if (p_.weight.offsets != nullptr)
      bulk_load(facts_of(stage) + 2 * Block::kTokens, p_.planes.sums + group * Block::kTokens,
                Block::kFactBytes, full_[stage]);
  }

  /// An item's sums go out once the one before is finished, so that an exchange has the products of
  /// an item to hide under, and two buffers do.
  __device__ __forceinline__ void multiply() {
    grid_dependency_wait();
    grid_dependency_launch();
    int previous = -1, turn = 0;
#pragma unroll 1
    for (int item = first_item(); item < p_.num_items; item += stride(), ++turn) {
      float sum[kSets][2] = {};
#pragma unroll 1
      for (int u = 0; u < units_; ++u) {
        mbarrier_wait(full_[stage_], parity_);
        add_unit(sum);
        __syncwarp();  // all lanes have read
        if (lane_ == 0) mbarrier_arrive(empty_[stage_]);
        advance();
      }
      if (previous >= 0) finish(previous, turn - 1);
      send(sum, turn % 2);
      if (threadIdx.x == 0)
        mbarrier_arrive_expect(arrived_[turn % 2],
                               static_cast<std::uint32_t>(4 * kInt4Cluster * Block::kPartFloats));
      previous = item;
    }
    if (previous >= 0) finish(previous, turn - 1);
  }

  /// Adds a unit's products. A thread has rows g and g + 8 of its warp's 16, and of each eight
  /// columns of B the planes of one row of x.
  __device__ __forceinline__ void add_unit(float (&sum)[kSets][2]) {
    // Groups in flight, for which registers have room.
    constexpr int kAtOnce = Block::kTokens > 16 ? 1 : 2;
    const int thread = static_cast<int>(threadIdx.x) % 128, g = lane_ / 4, t = lane_ % 4;
    const unsigned char* const unit = tile_at(stage_, warp_ / 4);
    const bool has_offsets = p_.weight.offsets != nullptr;
#pragma unroll
    for (int first = 0; first < 2; first += kAtOnce) {
      std::uint32_t a[4 * kAtOnce][4];
      load_int4_codes(unit + first * (kInt4CodeBytes / 2), thread, a);
      std::int32_t d[kAtOnce][Block::kColumns / 2];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const WgmmaOperand b =
            wgmma_operand(planes_of(stage_) + (first + i) * Block::kPlaneBytes, 16);
#pragma unroll
        for (int step = 0; step < 4; ++step)
          wgmma_int8(d[i], a[4 * i + step], b.plus(32 * step), step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (std::int32_t& x : d[i]) asm volatile("" : "+r"(x)::"memory");
        const float* const scales = reinterpret_cast<const float*>(unit + kInt4CodeBytes) +
                                    (first + i) * kInt4TileRows + thread / 32 * 16 + g;
        const float scale[2] = {scales[0], scales[8]};
        const float* const of_x = facts_of(stage_) + (first + i) * Block::kTokens + t;
#pragma unroll
        for (int j = 0; j < kSets; ++j) {
          const float x_scale = of_x[4 * j];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float product = __fmaf_rn(static_cast<float>(d[i][4 * j + 2 * r + 1]), 1.f / 254,
                                            static_cast<float>(d[i][4 * j + 2 * r]));
            sum[j][r] = __fmaf_rn(product, scale[r] * x_scale, sum[j][r]);
            if (has_offsets)
              sum[j][r] = __fmaf_rn(scales[kInt4UnitFloats + 8 * r],
                                    of_x[2 * Block::kTokens + 4 * j], sum[j][r]);
          }
        }
      }
    }
  }

  /// Place of a sum in what a block sends another: [tile][row][token % 4][token / 4].
  static __device__ __forceinline__ int place(int tile, int row, int token) {
    return (tile * Block::kRankRows + row) * Block::kTokens + token % 4 * kSets + token / 4;
  }
  [[nodiscard]] __device__ __forceinline__ float* part_of(int buffer, int rank) const {
    return parts_ + (buffer * kInt4Cluster + rank) * Block::kPartFloats;
  }
  /// Sends the sums of a warp's 16 rows to the block of that rank.
  __device__ __forceinline__ void send(const float (&sum)[kSets][2], int buffer) {
    const int g = lane_ / 4, t = lane_ % 4, to = warp_ % 4;
    const std::uint32_t barrier = cluster_address(shared_address(&arrived_[buffer]), to);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t at = cluster_address(
          shared_address(part_of(buffer, cluster_.rank) + place(warp_ / 4, g + 8 * r, t)), to);
#pragma unroll
      for (int j = 0; j < kSets; j += 4)
        push_cluster_quad(at + 4 * j, {sum[j][r], sum[j + 1][r], sum[j + 2][r], sum[j + 3][r]},
                          barrier);
    }
  }

  __device__ __forceinline__ void finish(int item, int turn) {
    mbarrier_wait_cluster(arrived_[turn % 2], static_cast<std::uint32_t>(turn / 2 % 2));
    const float* const parts = part_of(turn % 2, 0);
    const auto total = [&](int at) {
      float out = 0.f;
#pragma unroll
      for (int r = 0; r < kInt4Cluster; ++r) out += parts[r * Block::kPartFloats + at];
      return out;
    };
    constexpr int kRows = (Block::kGated ? 1 : Block::kTiles) * Block::kRankRows;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * p_.num_tokens;
         i += Block::kMultiplyThreads) {
      const int token = i / kRows, tile = i % kRows / Block::kRankRows;
      const int row = i % Block::kRankRows;
      const std::int64_t column = std::int64_t{tile_of(item, tile)} * kInt4TileRows +
                                  Block::kRankRows * cluster_.rank + row;
      if (!Block::kGated && column >= p_.weight.rows) continue;
      float out = total(place(tile, row, token));
      bf16& y = p_.y[token * p_.y_stride + column];
      if constexpr (Block::kGated) {
        const auto rounded = [](float v) { return to_float(from_float<bf16>(v)); };
        out = rounded(silu<bf16>(rounded(out))) * rounded(total(place(1, row, token)));
      } else if (p_.accumulate) {
        out += to_float(y);
      }
      y = from_float<bf16>(out);
    }
  }

  const Int4MidMProblem& p_;
  const BlockCluster cluster_;
  int lane_, warp_, num_tiles_;
  int first_unit_, units_;  ///< this block's, of each tile
  int stage_ = 0;
  std::uint32_t parity_ = 0;
  unsigned char* ring_;  ///< [stage]: planes of a unit, a unit of each tile, facts of x
  float* parts_;         ///< [2][rank][kPartFloats]
  std::uint64_t *full_, *empty_, *arrived_;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: clusters of four blocks, which share the items.
template <class Block>
__global__ void __launch_bounds__(Block::kThreads, 2)
    int4_mid_m_kernel(const __grid_constant__ Int4MidMProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char int4_mid_m_memory[];
  Int4MidM<Block>(p, int4_mid_m_memory).run();
#endif
}

}  // namespace nanovllm::cuda::detail
