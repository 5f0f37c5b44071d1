#pragma once
/// The kernel of `int4_few_rows`: a dense layer of few rows of x by 4-bit integers on Hopper,
/// without rounding x to fewer bits than the result has.
///
///   y[m, n] = Σ_g s[n, g] · Σ_k∈g x[m, k] · q[n, k]  (+ Σ_g o[n, g] · Σ_k∈g x[m, k])  (+ y[m, n])
///
/// x [M ≤ 8, K] in bf16, 16-byte aligned rows, K a multiple of 8; q, s and o an Int4View [N, K]; g
/// are groups of 128 columns.
///
/// W is operand A of wgmma, 64 rows by 32 columns, from registers: three instructions make eight
/// int8 of 16 · q out of eight codes. A row of x becomes two planes of int8 (int4_planes.cuh), two
/// columns of operand B, which few rows leave empty. Sums of a group are exact integers, and become
/// float32 once, times s and the scale of the planes.
///
/// A cluster of four blocks takes a tile of 64 rows of W after the other, a quarter of K a block.
/// One warp of a block asks for units of W, as many as its ring holds, before the kernels ahead are
/// done; four multiply. The planes of its part of x a block makes itself for up to 4 rows; for more
/// a kernel ahead makes them once. Of the sums of a tile a block gets 16 rows from the others, and
/// adds them in the order of K.
///
/// The order of sums depends on W's extents alone: a row's result depends neither on M nor on the
/// other rows, bit for bit.
///
/// Bytes moved: W once, N · K / 2, its scales, N · K / 32, and offsets as many; x once a block.
/// Measured: int4_linear_bench, cuda_int4.json, a step of 8B at one row 2.90 ms by 8-bit floats to
/// 2.02, with eight 3.40 to 2.51.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_planes.cuh"

namespace nanovllm::cuda::detail {

inline constexpr int kInt4Cluster = 4;
inline constexpr int kInt4MostStages = 8;
inline constexpr int kInt4StageBytes = kInt4UnitBytes + 4 * kInt4UnitFloats;  ///< with offsets

struct Int4FewRowsProblem {
  Int4View weight;
  const bf16* x;      ///< where the blocks make the planes
  Int4Planes planes;  ///< else
  bf16* y;
  std::int64_t x_stride, y_stride;
  int num_tokens, num_stages;
  int most_groups;  ///< of a block
  bool accumulate;
};

/// `kColumnCount` columns of operand B: planes of half as many rows of x.
template <int kColumnCount>
struct Int4FewRowsBlock {
  static constexpr int kColumns = kColumnCount;
  static constexpr int kTokens = kColumns / 2;
  static constexpr int kThreads = 160;  ///< four warps that multiply, and one that copies
  static constexpr int kPlaneBytes = kColumns * kInt4Group;  ///< of a group
  static constexpr int kPartFloats = 16 * kTokens;           ///< sums that a block sends another
  static constexpr bool kMakesPlanes = kColumns == 8;
  static constexpr int kBlocksPerSm = 3;  ///< that registers have room for
  /// Of all but the ring.
  [[nodiscard]] static constexpr int shared_bytes(int groups) {
    return 1024 + groups * kPlaneBytes + 4 * 2 * groups * kTokens +
           4 * 2 * kInt4Cluster * kPartFloats + 8 * (2 * kInt4MostStages + 3);
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// d = a · b, or d += a · b where `adds`: int8, 64 × 32 by 32 × N, N = 2 · kSize; `a` in registers.
template <int kSize>
__device__ __forceinline__ void wgmma_int8(std::int32_t (&d)[kSize], const std::uint32_t (&a)[4],
                                           WgmmaOperand b, bool adds) {
  static_assert(kSize == 4 || kSize == 8 || kSize == 16 || kSize == 32);
  const int p = adds ? 1 : 0;
  if constexpr (kSize == 4) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %9, 0;"
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
        "p;}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(p));
  } else if constexpr (kSize == 8) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %13, 0;"
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, p;}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(p));
  } else if constexpr (kSize == 16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %21, 0;"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p;}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(p));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
        "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p;}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]),
          "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]),
          "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(p));
  }
}

/// The part of thread `thread` of a warpgroup in codes as operand A of kSteps steps of 32 columns,
/// int8 of 16 · q.
template <int kSteps>
__device__ __forceinline__ void load_int4_codes(const unsigned char* codes, int thread,
                                                std::uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps / 2; ++i) {
    const uint4 v = *reinterpret_cast<const uint4*>(codes + (i * 128 + thread) * 16);
    const std::uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        a[2 * i + j][2 * h] = w[2 * j + h] & 0xf0f0f0f0u;
        a[2 * i + j][2 * h + 1] = w[2 * j + h] << 4 & 0xf0f0f0f0u;
      }
    }
  }
}

/// A block's part in the products.
template <class Block>
class Int4FewRows {
  static constexpr int kTokens = Block::kTokens;

 public:
  __device__ Int4FewRows(const Int4FewRowsProblem& problem, unsigned char* memory)
      : p_(problem),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        num_units_(static_cast<int>(problem.weight.num_units())),
        num_tiles_(static_cast<int>(problem.weight.num_tiles())) {
    first_unit_ = num_units_ * cluster_.rank / kInt4Cluster;
    units_ = num_units_ * (cluster_.rank + 1) / kInt4Cluster - first_unit_;
    memory += (1024 - shared_address(memory) % 1024) % 1024;
    planes_ = memory;
    ring_ = planes_ + p_.most_groups * Block::kPlaneBytes;
    scales_ = reinterpret_cast<float*>(ring_ + p_.num_stages * kInt4StageBytes);
    sums_ = scales_ + p_.most_groups * kTokens;
    parts_ = sums_ + p_.most_groups * kTokens;
    full_ = reinterpret_cast<std::uint64_t*>(parts_ + 2 * kInt4Cluster * Block::kPartFloats);
    empty_ = full_ + kInt4MostStages;
    arrived_ = empty_ + kInt4MostStages;
    planes_there_ = arrived_ + 2;
  }

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < p_.num_stages; ++i) {
        mbarrier_init(full_[i], 1);
        mbarrier_init(empty_[i], 4);
      }
      mbarrier_init(arrived_[0], 1);
      mbarrier_init(arrived_[1], 1);
      mbarrier_init(*planes_there_, 1);
      mbarrier_init_fence();
    }
    __syncthreads();
    cluster_arrive();
    if (warp_ == 4) {
      if (lane_ == 0) copy_units();
      __syncwarp();
      cluster_wait();
      grid_dependency_wait();
    } else {
      grid_dependency_wait();
      grid_dependency_launch();
      if constexpr (Block::kMakesPlanes) {
        make_planes();
        async_proxy_fence_shared();
      }
      cluster_wait();  // the barriers of the other blocks are there
      if constexpr (!Block::kMakesPlanes) mbarrier_wait(*planes_there_, 0);
      named_barrier_sync<128>(1);
      multiply();
    }
    cluster_sync();  // no block ends while others send it sums
  }

 private:
  [[nodiscard]] static __device__ int stride() {
    return static_cast<int>(gridDim.x) / kInt4Cluster;
  }
  [[nodiscard]] static __device__ int first_tile() {
    return static_cast<int>(blockIdx.x) / kInt4Cluster;
  }
  __device__ __forceinline__ void advance() {
    if (++stage_ == p_.num_stages) stage_ = 0, parity_ ^= 1;
  }

  /// Brings the block's units of all its tiles, and the planes once the kernels ahead are done. By
  /// one thread.
  __device__ void copy_units() {
    const bool has_offsets = p_.weight.offsets != nullptr;
    int sent = 0;
    for (int tile = first_tile(); tile < num_tiles_; tile += stride()) {
      const std::int64_t first = std::int64_t{tile} * num_units_ + first_unit_;
      for (int u = 0; u < units_; ++u, ++sent) {
        if (sent == p_.num_stages) bring_planes();
        mbarrier_wait(empty_[stage_], parity_ ^ 1);
        mbarrier_arrive_expect(full_[stage_], has_offsets ? kInt4StageBytes : kInt4UnitBytes);
        unsigned char* const to = ring_ + stage_ * kInt4StageBytes;
        bulk_load(to, p_.weight.units + (first + u) * kInt4UnitBytes, kInt4UnitBytes,
                  full_[stage_]);
        if (has_offsets)
          bulk_load(to + kInt4UnitBytes, p_.weight.offsets + (first + u) * kInt4UnitFloats,
                    4 * kInt4UnitFloats, full_[stage_]);
        advance();
      }
    }
    if (sent <= p_.num_stages) bring_planes();
  }

  __device__ __forceinline__ void bring_planes() {
    if constexpr (!Block::kMakesPlanes) {
      grid_dependency_wait();
      async_proxy_fence_global();
      const int groups = 2 * units_, first = 2 * first_unit_;
      const int plane_bytes = groups * Block::kPlaneBytes, float_bytes = 4 * groups * kTokens;
      mbarrier_arrive_expect(*planes_there_,
                             static_cast<std::uint32_t>(plane_bytes + 2 * float_bytes));
      if (groups == 0) return;
      bulk_load(planes_, p_.planes.planes + std::int64_t{first} * Block::kPlaneBytes, plane_bytes,
                *planes_there_);
      bulk_load(scales_, p_.planes.scales + first * kTokens, float_bytes, *planes_there_);
      bulk_load(sums_, p_.planes.sums + first * kTokens, float_bytes, *planes_there_);
    }
  }

  /// Half a warp takes 128 columns of a row of x, eight a lane; loads of several overlap.
  __device__ void make_planes() {
    constexpr int kAhead = 4, kHalves = 8;
    const int half = static_cast<int>(threadIdx.x) / 16, l = static_cast<int>(threadIdx.x) % 16;
    const int groups = 2 * units_, items = groups * p_.num_tokens;
    for (int first = 0; first < items; first += kAhead * kHalves) {
      uint4 raw[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int item = first + i * kHalves + half;
        const int column = (2 * first_unit_ + item % groups) * kInt4Group + 8 * l;
        raw[i] = uint4{};
        if (item < items && column < p_.weight.cols)
          raw[i] = *reinterpret_cast<const uint4*>(p_.x + item / groups * p_.x_stride + column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int item = first + i * kHalves + half;
        const int group = item % groups, token = item / groups;
        make_int4_plane(raw[i], token, item < items, planes_ + group * Block::kPlaneBytes,
                        scales_[group * kTokens + token], sums_[group * kTokens + token]);
      }
    }
  }

  __device__ void multiply() {
    for (int tile = first_tile(), turn = 0; tile < num_tiles_; tile += stride(), ++turn) {
      float sum[Block::kColumns / 8][2] = {};
      for (int u = 0; u < units_; ++u) add_unit(u, sum);
      send(sum, turn % 2);
      if (threadIdx.x == 0)
        mbarrier_arrive_expect(arrived_[turn % 2], 4 * kInt4Cluster * Block::kPartFloats);
      mbarrier_wait_cluster(arrived_[turn % 2], static_cast<std::uint32_t>(turn / 2 % 2));
      store(tile, turn % 2);
      named_barrier_sync<128>(1);
    }
  }

  /// Adds a unit's products. A thread has rows g and g + 8 of its warp's 16, and of each eight
  /// columns of B the planes of one row of x.
  __device__ __forceinline__ void add_unit(int u, float (&sum)[Block::kColumns / 8][2]) {
    constexpr int kSize = Block::kColumns / 2;
    const int g = lane_ / 4, t = lane_ % 4;
    mbarrier_wait(full_[stage_], parity_);
    const unsigned char* const at = ring_ + stage_ * kInt4StageBytes;
    std::uint32_t a[8][4];
    load_int4_codes(at, static_cast<int>(threadIdx.x), a);
    float scale[2][2], offset[2][2] = {};
    const auto* const scales = reinterpret_cast<const float*>(at + kInt4CodeBytes);
    const bool has_offsets = p_.weight.offsets != nullptr;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int index = half * kInt4TileRows + 16 * warp_ + g + 8 * r;
        scale[half][r] = scales[index];
        if (has_offsets) offset[half][r] = scales[kInt4UnitFloats + index];
      }
    }
    std::int32_t d[2][kSize];
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const WgmmaOperand b = wgmma_operand(planes_ + (2 * u + half) * Block::kPlaneBytes, 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) wgmma_int8(d[half], a[4 * half + i], b.plus(32 * i), i > 0);
    }
    wgmma_commit();
    __syncwarp();  // all lanes have the codes
    if (lane_ == 0) mbarrier_arrive(empty_[stage_]);
    advance();
    wgmma_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (std::int32_t& x : d[half]) asm volatile("" : "+r"(x)::"memory");
      const int place = (2 * u + half) * kTokens + t;
#pragma unroll
      for (int j = 0; j < Block::kColumns / 8; ++j) {
        const float of_x = scales_[place + 4 * j];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float product = __fmaf_rn(static_cast<float>(d[half][4 * j + 2 * r + 1]), 1.f / 254,
                                          static_cast<float>(d[half][4 * j + 2 * r]));
          sum[j][r] = __fmaf_rn(product, scale[half][r] * of_x, sum[j][r]);
          if (has_offsets) sum[j][r] = __fmaf_rn(offset[half][r], sums_[place + 4 * j], sum[j][r]);
        }
      }
    }
  }

  /// Sends the sums of a warp's 16 rows to the block of that rank.
  __device__ __forceinline__ void send(const float (&sum)[Block::kColumns / 8][2], int turn) {
    const int g = lane_ / 4, t = lane_ % 4;
    const float* const mine = parts_ + (turn * kInt4Cluster + cluster_.rank) * Block::kPartFloats;
    const std::uint32_t barrier = cluster_address(shared_address(&arrived_[turn]), warp_);
#pragma unroll
    for (int j = 0; j < Block::kColumns / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const to = mine + (g + 8 * r) * kTokens + 4 * j + t;
        push_cluster(cluster_address(shared_address(to), warp_), sum[j][r], barrier);
      }
    }
  }

  /// Adds what came, and writes this block's 16 rows of the tile.
  __device__ __forceinline__ void store(int tile, int turn) {
    const float* const from = parts_ + turn * kInt4Cluster * Block::kPartFloats;
    for (int i = static_cast<int>(threadIdx.x); i < 16 * p_.num_tokens; i += 128) {
      const int token = i / 16, row = i % 16;
      const std::int64_t column = std::int64_t{tile} * kInt4TileRows + 16 * cluster_.rank + row;
      if (column >= p_.weight.rows) continue;
      float total = 0.f;
#pragma unroll
      for (int r = 0; r < kInt4Cluster; ++r)
        total += from[r * Block::kPartFloats + row * kTokens + token];
      bf16& y = p_.y[token * p_.y_stride + column];
      if (p_.accumulate) total += to_float(y);
      y = from_float<bf16>(total);
    }
  }

  const Int4FewRowsProblem& p_;
  const BlockCluster cluster_;
  int lane_, warp_, num_units_, num_tiles_;
  int first_unit_, units_;  ///< this block's, of each tile
  int stage_ = 0;
  std::uint32_t parity_ = 0;
  unsigned char *planes_, *ring_;
  float *scales_, *sums_;  ///< of the rows of x, [group][kTokens]
  float* parts_;           ///< [2][rank][16][kTokens]
  std::uint64_t *full_, *empty_, *arrived_, *planes_there_;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: clusters of four blocks, which share the tiles.
template <class Block>
__global__ void __launch_bounds__(Block::kThreads, Block::kBlocksPerSm)
    int4_few_rows_kernel(const __grid_constant__ Int4FewRowsProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char int4_few_rows_memory[];
  Int4FewRows<Block>(p, int4_few_rows_memory).run();
#endif
}

}  // namespace nanovllm::cuda::detail
