#pragma once
/// The copying half of `varlen_attention` on Hopper (varlen.cuh) where the cache has 8 bits an
/// element (`KvBytes`).
///
/// Four warps bring keys and values: two the upper and lower 64 rows of a tile of keys, two those
/// of a tile of values. A warp has its rows of the cache copied to a ring of its own in shared
/// memory, 16 at a time and 48 ahead, reads what its own lanes have copied, multiplies it by the
/// rows' scales, rounds it to T, and writes it to where the copy engine would have put it. The
/// rows of this step hold the same values (`qk_norm_rope_store`), so tiles of new keys alone come
/// from there by the copy engine. The first warp fetches the items as well.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/hopper/attention/varlen_copy.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/tile/kv_halves.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A warp that brings half the rows of each tile of keys or of values; that of the keys' first half
/// brings the queries, too.
template <class Traits, bool kValues>
class VarlenConverter {
  using T = typename Traits::Type;
  using Kv = typename Traits::Kv;
  using Staging = VarlenStaging<Traits>;
  using Unit = typename Staging::Unit;
  static constexpr int kUnits = Staging::kUnits, kUnitRows = Staging::kUnitRows;
  static constexpr int kHalfRows = Traits::kKeys / 2;
  static constexpr int kUnitsOfTile = kHalfRows / kUnitRows;
  static constexpr int kChunks = Traits::kHeadDim / 16;  ///< of 16 bytes of a row
  static constexpr int kRowsAtOnce = 32 / kChunks;
  static constexpr int kTurns = kUnitRows / kRowsAtOnce;
  static_assert(kUnits == kUnitsOfTile, "a unit's place in the ring is its place in the tile");

 public:
  __device__ __forceinline__ VarlenConverter(const VarlenHopperProblem<T>& problem,
                                             VarlenHopperShared<Traits>& shared, int half)
      : problem_(problem),
        shared_(shared),
        units_(shared.units[2 * kValues + half]),
        half_(half),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// Brings the items that another warp fetches.
  __device__ __forceinline__ void run() {
    for (RingPosition<1> position;; position.advance()) {
      const VarlenItem item = next_varlen_item(shared_, position);
      if (item.num_rows == 0) return;
      release_varlen_item(shared_);
      bring(item);
    }
  }

  /// Brings the item's tiles, the last first.
  __device__ __forceinline__ void bring(const VarlenItem& item) {
    const int last = (ceil_div(item.limit(), Traits::kKeys) - 1) * Traits::kKeys;
    const int kv_head = item.head / (problem_.heads / problem_.kv_heads);
    const int first_key_row = item.first_row - (item.first_limit - 1);
    int begin = last;
    for (; begin >= 0 && begin >= item.new_from; begin -= Traits::kKeys) {
      bring_new(kv_head, first_key_row + begin);
      if (begin == last) bring_queries(item);
    }
    if (begin < 0) return;
    source_ = {problem_.block_tables + item.sequence * problem_.table_stride,
               static_cast<const unsigned char*>(problem_.cache) +
                   (kv_head + (kValues ? problem_.kv_heads : 0)) * problem_.head_stride,
               begin, item.limit(), (begin / Traits::kKeys + 1) * kUnitsOfTile};
    pages_ = page_of(lane_);
    const bool has_queries = begin == last;
    for (int unit = 0; unit < kUnits - 1; ++unit) send(unit);
    for (int unit = 0; unit < source_.num_units; ++unit) {
      const int stage = ring_.stage;
      if (unit % kUnitsOfTile == 0) wait_for_stage();
      copy_async_wait<kUnits - 2>();
      __syncwarp();  // scales come from other lanes, and all have read the unit before this one
      send(unit + kUnits - 1);
      convert(unit % kUnits, kValues ? shared_.v[stage] : shared_.k[stage]);
      if (unit % kUnitsOfTile < kUnitsOfTile - 1) continue;
      async_proxy_fence_shared();
      __syncwarp();
      if (lane_ == 0) mbarrier_arrive(full());
      ring_.advance();
      if (has_queries && unit == kUnitsOfTile - 1) bring_queries(item);
    }
    copy_async_wait<0>();
    __syncwarp();
  }

 private:
  /// Where the rows of an item lie that are converted.
  struct Source {
    const BlockId* table;
    const unsigned char* head;  ///< the kv head's keys or values in block 0
    int begin;                  ///< of the last tile, whose units come first
    int limit;                  ///< keys below it exist
    int num_units;

    __device__ __forceinline__ int first_row(int unit, int half) const {
      return begin - unit / kUnitsOfTile * Traits::kKeys + half * kHalfRows +
             unit % kUnitsOfTile * kUnitRows;
    }
  };

  [[nodiscard]] __device__ __forceinline__ std::uint64_t& full() const {
    return kValues ? shared_.v_full[ring_.stage] : shared_.k_full[ring_.stage];
  }
  __device__ __forceinline__ void wait_for_stage() const {
    mbarrier_wait(kValues ? shared_.v_empty[ring_.stage] : shared_.k_empty[ring_.stage],
                  ring_.parity ^ 1);
  }

  __device__ __forceinline__ void bring_queries(const VarlenItem& item) {
    if (!kValues && half_ == 0) copy_varlen_queries(problem_, shared_, q_, item);
  }

  /// The tile whose first key is in row `row` of this step's keys: one warp has it copied, both say
  /// that they are done.
  __device__ __forceinline__ void bring_new(int kv_head, int row) {
    wait_for_stage();
    if (half_ == 0) {
      if (lane_ == 0) mbarrier_arrive_expect(full(), Traits::kTileBytes);
      __syncwarp();
      if (lane_ < Traits::kPanels) {
        unsigned char* const to = kValues ? shared_.v[ring_.stage] : shared_.k[ring_.stage];
        tma_load(to + lane_ * Traits::kPanelBytes, kValues ? problem_.new_v : problem_.new_k,
                 {kTmaColumns * lane_, kv_head, row}, full());
      }
    } else if (lane_ == 0) {
      mbarrier_arrive(full());
    }
    ring_.advance();
  }

  /// The block that a unit's rows are in; 0 where there are none.
  [[nodiscard]] __device__ __forceinline__ BlockId page_of(int unit) const {
    if (unit >= source_.num_units) return 0;
    const int row = source_.first_row(unit, half_);
    return row < source_.limit ? source_.table[row / problem_.block_size] : 0;
  }

  /// Starts copying a unit's rows and scales, zeros for those that do not exist. One group of
  /// copies, empty past the last unit. Page ids come 32 at a time, ahead of their use.
  __device__ __forceinline__ void send(int unit) {
    const BlockId page = __shfl_sync(0xffffffffu, pages_, unit % 32);
    if (unit % 32 == 31) pages_ = page_of(unit + 1 + lane_);
    if (unit < source_.num_units) {
      const int row = source_.first_row(unit, half_), slot = row % problem_.block_size;
      const unsigned char* const tile = source_.head + page * problem_.page_stride;
      Unit& to = units_[unit % kUnits];
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int r = i * kRowsAtOnce + lane_ / kChunks, column = lane_ % kChunks * 16;
        copy_async_16_or_zero(shared_address(&to.rows[r][column]),
                              tile + (slot + r) * Traits::kHeadDim + column,
                              row + r < source_.limit);
      }
      if (lane_ < kUnitRows / 4) {
        copy_async_16_or_zero(
            shared_address(&to.scales[4 * lane_]),
            tile + problem_.block_size * Traits::kHeadDim + (slot + 4 * lane_) * 4,
            row + 4 * lane_ < source_.limit);
      }
    }
    copy_async_commit();
  }

  /// Writes unit `unit` of the tile at `tile`, [panel][128 rows][64] with the 16-byte chunks of row
  /// r exchanged by XOR with r % 8.
  __device__ __forceinline__ void convert(int unit, unsigned char* tile) const {
    const Unit& from = units_[unit];
    const int chunk = lane_ % kChunks;
    // All loads ahead of the first store, after which they would wait.
    uint4 all[kTurns];
    float scales[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int r = i * kRowsAtOnce + lane_ / kChunks;
      all[i] = load_from_shared(shared_address(&from.rows[r][chunk * 16]));
      scales[i] = from.scales[r] * kHalfUnit<Kv>;
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = half_ * kHalfRows + unit * kUnitRows + i * kRowsAtOnce + lane_ / kChunks;
      const uint4& bytes = all[i];
      const float scale = scales[i];
      uint4 low, high;
      dequantise<Kv, T>(bytes.x, scale, low.x, low.y);
      dequantise<Kv, T>(bytes.y, scale, low.z, low.w);
      dequantise<Kv, T>(bytes.z, scale, high.x, high.y);
      dequantise<Kv, T>(bytes.w, scale, high.z, high.w);
      // Eight neighbouring lanes write 128 different bytes modulo 128: those of the second panel
      // begin with their second chunk.
      const bool is_second = chunk >= 4;
      unsigned char* const to = tile + chunk / 4 * Traits::kPanelBytes + row * kTmaColumns * 2;
      const auto write = [&](int at, const uint4& value) {
        *reinterpret_cast<uint4*>(to + ((2 * (chunk % 4) + at) ^ (row % 8)) * 16) = value;
      };
      write(is_second, is_second ? high : low);
      write(!is_second, is_second ? low : high);
    }
  }

  const VarlenHopperProblem<T>& problem_;
  VarlenHopperShared<Traits>& shared_;
  Unit* const units_;
  const int half_, lane_;
  Source source_{};
  BlockId pages_ = 0;  ///< lane i's is that of unit i, modulo 32
  RingPosition<1> q_;
  RingPosition<Traits::kStages> ring_;
};

/// What warp `warp` of the copying ones does.
template <class Traits>
__device__ __forceinline__ void convert_varlen_tiles(
    const VarlenHopperProblem<typename Traits::Type>& problem, VarlenHopperShared<Traits>& shared,
    int warp) {
  if (warp == 0) {
    VarlenConverter<Traits, false> keys(problem, shared, 0);
    fetch_varlen_items(problem, shared, [&](const VarlenItem& item) { keys.bring(item); });
  } else if (warp == 1) {
    VarlenConverter<Traits, false>(problem, shared, 1).run();
  } else {
    VarlenConverter<Traits, true>(problem, shared, warp - 2).run();
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
