#pragma once
/// W in 8-bit floats for experts.cuh: two warpgroups turn them into the panels of bf16 that wgmma
/// multiplies, and copy x.
///
///   w[i, j] = bf16(float(e4m3[i, j]) · s), s the scale of row i and the 128 columns of j
///
/// The scale is split in two bf16, s = hi + lo, and w = fma(e, hi, bf16(e · lo)). So w has one
/// rounding, of a sum that is within 2^-15 of the product, relatively; where s is itself a bf16, as
/// in checkpoints whose scales are, w is what a checkpoint dequantised to bf16 has, bit for bit. A
/// NaN among the elements is read as 480, as everywhere in products of e4m3.
///
/// Two rings. Stages of bytes hold 128 columns of the block's rows of W and their scales: one
/// thread has the copy engine fill them, ahead of their conversion and of the next item. The ring
/// of experts.cuh holds panels of 64 columns of x and bf16: for each panel all 256 threads wait
/// until the stage is empty, start copying x, say that x of the panel before is there, wait for the
/// bytes (of every other panel), convert, and say that W is there. So a stage becomes full by two
/// arrivals of each of their warps, and a stage of bytes empty by one.
///
/// Why there is no deadlock. Before the producers fill a stage with panel i, they wait until the
/// consumers have left panel i - 3. The consumers leave it once they have begun panel i - 2, and
/// the producers have brought that whole before they wait. At the end of an item the producers
/// finish its last panel before they begin the next item.
///
/// Bytes moved in shared memory for a panel, besides those that wgmma reads: 16 KiB of x written,
/// 16 KiB of e4m3 written and read, 32 KiB of bf16 written. Neither the loads nor the stores of a
/// warp meet in a bank.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/hopper/block.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Starts the copies of bytes and scales, 128 columns after 128 columns of item after item. For one
/// thread.
template <class Block>
struct WideExpertsBytes {
  const CUtensorMap& map;
  const typename Block::Operands& p;
  std::byte* stages;
  std::uint64_t *full, *empty;
  int num_items;
  int index = static_cast<int>(blockIdx.x), group = 0;  ///< what comes next
  int expert = 0, first_column = 0;
  RingPosition<Block::kByteStages> at{};

  /// The next 128 columns, once their stage is empty; nothing after the last.
  __device__ __forceinline__ void load_next() {
    if (index >= num_items) return;
    if (group == 0) {
      const WideExpertsItem item = wide_experts_item<Block>(p, index);
      expert = item.tile.expert, first_column = item.first_column;
    }
    mbarrier_wait(empty[at.stage], at.parity ^ 1);
    std::byte* const to = stages + at.stage * Block::kByteStageBytes;
    std::uint64_t& barrier = full[at.stage];
    const int second_row = Block::second_row(p, first_column), column = group * kTmaRowBytes;
    const int first_scales = num_scales(first_column), second_scales = num_scales(second_row);
    mbarrier_arrive_expect(barrier, static_cast<std::uint32_t>(Block::kWeightBytes +
                                                               4 * (first_scales + second_scales)));
    tma_load(to, map, {column, first_column, expert}, barrier);
    tma_load(to + Block::kBoxBytes, map, {column, second_row, expert}, barrier);
    const float* const scales = p.scales + expert * p.expert_scales + group * p.scale_stride;
    std::byte* const to_scales = to + Block::kScalesAt;
    bulk_load(to_scales, scales + first_column, 4 * first_scales, barrier);
    if (second_scales > 0) {
      bulk_load(to_scales + 4 * Block::kBoxRows, scales + second_row, 4 * second_scales, barrier);
    }
    at.advance();
    if (++group * kTmaRowBytes < p.k) return;
    group = 0;
    index += static_cast<int>(gridDim.x);
  }

 private:
  /// Scales from a row on: of a box, or fewer where there are no more.
  [[nodiscard]] __device__ __forceinline__ int num_scales(int row) const {
    return max(min(Block::kBoxRows, static_cast<int>(p.scale_stride) - row), 0);
  }
};

/// Four elements times their scale, of which `hi` and `lo` are pairs.
[[nodiscard]] __device__ __forceinline__ uint2 scaled_bf16(std::uint32_t word, std::uint32_t hi,
                                                           std::uint32_t lo) {
  constexpr std::uint32_t kUnit = 0x7b807b80u;  // two of kE4m3Unit
  const auto scaled = [&](std::uint32_t small) {
    const std::uint32_t pair = multiply_pairs(small, kUnit);
    return multiply_add_pairs(pair, hi, multiply_pairs(pair, lo));
  };
  uint2 out;
  small_bf16_of(word, out.x, out.y);
  out.x = scaled(out.x), out.y = scaled(out.y);
  return out;
}

/// The producers: threads 0 to kProducers - 1.
template <class Block>
class WideExpertsConverter {
  static constexpr int kWarps = Block::kProducers / 32;
  static constexpr int kRowsAtOnce = 8 * kWarps;  ///< a warp converts 64 columns of 8 rows
  static constexpr int kTurns = Block::kRows / kRowsAtOnce;
  static constexpr int kAtOnce = 2;  ///< turns whose bytes a thread has in registers
  static_assert(Block::kStages >= 3, "consumers hold one stage while they wait for another");

 public:
  /// At a stage of the ring: each warp's x and its W.
  static constexpr int kArrivals = 2 * kWarps;

  /// Those of the stages of bytes, full and empty, by one thread.
  static __device__ __forceinline__ void init_barriers(std::uint64_t* barriers) {
    for (int i = 0; i < Block::kByteStages; ++i) {
      mbarrier_init(barriers[i], 1);
      mbarrier_init(barriers[Block::kByteStages + i], kWarps);
    }
  }

  __device__ __forceinline__ WideExpertsConverter(const CUtensorMap& map,
                                                  const typename Block::Operands& p,
                                                  std::byte* ring, std::uint64_t* full,
                                                  std::uint64_t* empty, std::uint64_t* of_bytes)
      : p_(p),
        ring_(shared_address(ring)),
        full_(full),
        empty_(empty),
        bytes_full_(of_bytes),
        bytes_empty_(of_bytes + Block::kByteStages),
        loader_{
            map, p, ring + Block::kBytesAt, bytes_full_, bytes_empty_, num_wide_experts_items(p)} {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < Block::kByteStages; ++i) loader_.load_next();
  }

  /// Brings all items of this block.
  __device__ __forceinline__ void run() {
    const auto blocks = static_cast<int>(gridDim.x);
    for (int i = static_cast<int>(blockIdx.x); i < loader_.num_items; i += blocks)
      bring(wide_experts_item<Block>(p_, i).tile);
  }

 private:
  __device__ __forceinline__ void bring(const ExpertTile& tile) {
    const WideExpertsRows<Block> rows(p_, tile, ring_);
    int before = 0;
    for (int i = 0; i * kTmaColumns < p_.k; ++i) {
      mbarrier_wait(empty_[at_.stage], at_.parity ^ 1);
      rows.copy(p_, i, at_.stage);
      if (i > 0) {
        copy_async_wait<1>();
        announce(before);
      }
      if (i % 2 == 0) mbarrier_wait(bytes_full_[bytes_.stage], bytes_.parity);
      convert(i % 2);
      announce(at_.stage);
      before = at_.stage;
      at_.advance();
      if (i % 2 == 0 && (i + 1) * kTmaColumns < p_.k) continue;
      if (threadIdx.x % 32 == 0) mbarrier_arrive(bytes_empty_[bytes_.stage]);
      bytes_.advance();
      if (threadIdx.x == 0) loader_.load_next();
    }
    copy_async_wait<0>();
    announce(before);
  }

  /// What the warp's threads have written to a stage is there, and what they have read is read.
  __device__ __forceinline__ void announce(int stage) {
    async_proxy_fence_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(full_[stage]);
  }

  /// The upper or lower 64 columns of a stage of bytes. A thread takes 16 of each of kTurns rows.
  /// Eight neighbouring lanes have two rows whose numbers differ in bits 0 and 2: by the swizzle
  /// they read eight different chunks modulo 128 bytes, and write eight.
  __device__ __forceinline__ void convert(int half) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int chunk = lane % 4, of_eight = lane / 8 * 2 ^ lane / 4 % 2 * 5;
    const int row = 8 * warp + of_eight;
    const auto offset = [&](int vector) {
      return static_cast<std::uint32_t>(row * kTmaRowBytes + ((vector ^ of_eight) << 4));
    };
    const std::uint32_t stage =
        ring_ + static_cast<std::uint32_t>(Block::kBytesAt + bytes_.stage * Block::kByteStageBytes);
    const std::uint32_t from = stage + offset(4 * half + chunk);
    const std::uint32_t scales = stage + static_cast<std::uint32_t>(Block::kScalesAt + 4 * row);
    const std::uint32_t panel =
        ring_ + static_cast<std::uint32_t>(at_.stage * Block::kStageBytes + Block::kXBytes);
    const std::uint32_t to = panel + offset(2 * chunk), to_next = panel + offset(2 * chunk + 1);
    constexpr auto kStep = static_cast<std::uint32_t>(kRowsAtOnce * kTmaRowBytes);
#pragma unroll
    for (std::uint32_t i = 0; i < kTurns; i += kAtOnce) {
      // All loads ahead of the first store, after which they would wait.
      uint4 words[kAtOnce];
      float scale[kAtOnce];
#pragma unroll
      for (std::uint32_t j = 0; j < kAtOnce; ++j) {
        words[j] = load_from_shared(from + (i + j) * kStep);
        scale[j] = load_float_from_shared(scales + (i + j) * kRowsAtOnce * 4);
      }
#pragma unroll
      for (std::uint32_t j = 0; j < kAtOnce; ++j) {
        const std::uint32_t hi = pack_pair<bf16>(scale[j], scale[j]);
        const float rest = scale[j] - unpack_pair<bf16>(hi).x;
        const std::uint32_t lo = pack_pair<bf16>(rest, rest);
        const uint2 a = scaled_bf16(words[j].x, hi, lo), b = scaled_bf16(words[j].y, hi, lo);
        store_to_shared(to + (i + j) * kStep, {a.x, a.y, b.x, b.y});
        const uint2 c = scaled_bf16(words[j].z, hi, lo), d = scaled_bf16(words[j].w, hi, lo);
        store_to_shared(to_next + (i + j) * kStep, {c.x, c.y, d.x, d.y});
      }
    }
  }

  const typename Block::Operands& p_;
  const std::uint32_t ring_;
  std::uint64_t *const full_, *const empty_, *const bytes_full_, *const bytes_empty_;
  WideExpertsBytes<Block> loader_;
  RingPosition<Block::kStages> at_;
  RingPosition<Block::kByteStages> bytes_;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
