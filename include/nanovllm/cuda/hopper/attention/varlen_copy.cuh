#pragma once
/// The copying half of `varlen_attention` on Hopper (varlen.cuh): what a block keeps in
/// shared memory, the warp that fetches items of the schedule, and the two that have the
/// copy engine bring queries and keys, and values.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm::cuda {

template <MmaElement T, int kHeadDim_, VarlenSource kSource_, KvFormat KvValue = T>
struct VarlenHopperTraits {
  static_assert(kHeadDim_ == 64 || kHeadDim_ == 128);
  using Type = T;
  using Kv = KvValue;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kMixed = kSource_ == VarlenSource::mixed;
  /// Whether keys come from the cache in 8 bits: see varlen_convert.cuh.
  static constexpr bool kConverts = kMixed && ScaledKvFormat<Kv>;
  static constexpr bool kTakeTurns = true;
  static constexpr int kRows = VarlenItem::kRows;  ///< queries a tile
  static constexpr int kKeys = 128;                ///< keys a tile
  static constexpr int kStages = 2;
  static constexpr int kGroups = 2;  ///< warpgroups that compute, 64 rows each
  static constexpr int kConsumerWarps = 4 * kGroups;
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kProducerRegisters = kConverts ? 56 : 40;
  static constexpr int kConsumerRegisters = kConverts ? 224 : 232;
  static constexpr int kItemReaders = kConverts ? 3 : 2;  ///< warps that copy, and did not fetch it
  static constexpr int kCopiersOfTile = kConverts ? 2 : 1;
  static constexpr int kPanels = kHeadDim / kTmaColumns;  ///< a tile is [panel][128 rows][64]
  static constexpr int kPanelBytes = kKeys * kTmaColumns * 2;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static_assert(kRows == kKeys && kRows == 64 * kGroups);
  // A block gets 168 registers a thread; a request for more would never return.
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= 168 * (1 + kGroups));
};

/// Keys or values in 8 bits on their way to the warps that convert them; nothing where there are
/// none.
template <class Traits, bool kConverts = Traits::kConverts>
struct VarlenStaging {};
template <class Traits>
struct VarlenStaging<Traits, true> {
  static constexpr int kUnitRows = 16, kUnits = 4;
  struct alignas(16) Unit {
    unsigned char rows[kUnitRows][Traits::kHeadDim];
    float scales[kUnitRows];
  };
  Unit units[4][kUnits];  ///< of each warp
};

/// Shared memory of a block.
template <class Traits>
struct VarlenHopperShared : VarlenStaging<Traits> {
  alignas(1024) unsigned char q[Traits::kTileBytes];
  alignas(1024) unsigned char k[Traits::kStages][Traits::kTileBytes];
  alignas(1024) unsigned char v[Traits::kStages][Traits::kTileBytes];
  VarlenItem item;              ///< the next item
  BlockId first_blocks[2][32];  ///< where its last two tiles of keys are, a lane's box each
  std::uint64_t item_full, item_empty;
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[Traits::kStages], k_empty[Traits::kStages];
  std::uint64_t v_full[Traits::kStages], v_empty[Traits::kStages];
};

/// The parameter of the kernel.
template <class T>
struct VarlenHopperProblem {
  CUtensorMap q, k, v;  ///< q and new keys: (d, head, row); cache: (d, slot, K | V and head, block)
  CUtensorMap new_k, new_v;  ///< of VarlenSource::mixed
  const void* cache;         ///< as KvView, where it is converted
  std::int64_t page_stride;
  int head_stride;
  VarlenSchedule schedule;
  const BlockId* block_tables;
  std::int64_t table_stride;
  T* out;
  std::int64_t out_row_stride, out_head_stride;
  int heads, kv_heads, block_size, num_blocks, section_keys;
  float scale_log2;
};

namespace detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Which box of a tile of keys (or values) a lane copies: 64 columns of some neighbouring keys.
/// From the cache these are min(block_size, 128) keys; a tensor's rows come in one box.
template <class Traits>
struct VarlenKeyBox {
  int panel, first_key = 0, block_size = 1;
  int shift = -1;  ///< log2 of block_size, if that is a power of two: it saves divisions

  template <class T>
  __device__ __forceinline__ explicit VarlenKeyBox(const VarlenHopperProblem<T>& problem)
      : panel(static_cast<int>(threadIdx.x) % 32) {
    if constexpr (Traits::kMixed) {
      block_size = problem.block_size;
      const int keys = min(block_size, Traits::kKeys), boxes = Traits::kKeys / keys;
      first_key = panel % boxes * keys;
      panel /= boxes;
      if ((block_size & (block_size - 1)) == 0) shift = __ffs(block_size) - 1;
    }
  }

  /// Which of its sequence's blocks the box comes from, in the tile of keys from `begin` on.
  __device__ __forceinline__ int index(int begin) const {
    const int key = begin + first_key;
    return shift >= 0 ? key >> shift : key / block_size;
  }

  /// The box's first key in that block.
  __device__ __forceinline__ int slot(int begin) const {
    return begin + first_key - index(begin) * block_size;
  }

  /// The block of the cache that the box comes from. Boxes without visible keys (`limit` and above,
  /// or no tile at all: `begin` < 0) get one that does not exist, which is read as zeros; the block
  /// table is not looked at for them.
  __device__ __forceinline__ BlockId block(const BlockId* table, int begin, int limit,
                                           int num_blocks) const {
    if constexpr (!Traits::kMixed || Traits::kConverts) return 0;
    return begin >= 0 && begin + first_key < limit ? table[index(begin)] : num_blocks;
  }
};

/// The warp that fetches items. It calls `use(item)` for each when the others have it.
template <class Traits, class Use>
__device__ __forceinline__ void fetch_varlen_items(
    const VarlenHopperProblem<typename Traits::Type>& problem, VarlenHopperShared<Traits>& shared,
    Use use) {
  VarlenCounters& counters = *problem.schedule.counters;
  const VarlenKeyBox<Traits> box(problem);
  const int lane = static_cast<int>(threadIdx.x) % 32, count = counters.entries * problem.heads;
  int i = static_cast<int>(blockIdx.x);
  for (RingPosition<1> position;; position.advance()) {
    VarlenItem item{};
    BlockId blocks[2] = {};
    if (i < count) {
      item =
          varlen_item(problem.schedule, i, problem.heads, problem.kv_heads, problem.section_keys);
      const int limit = item.limit();
      const int last = (ceil_div(limit, Traits::kKeys) - 1) * Traits::kKeys;
      const BlockId* const table = problem.block_tables + item.sequence * problem.table_stride;
      blocks[0] = box.block(table, last, limit, problem.num_blocks);
      blocks[1] = box.block(table, last - Traits::kKeys, limit, problem.num_blocks);
    }
    shared.first_blocks[0][lane] = blocks[0];
    shared.first_blocks[1][lane] = blocks[1];
    if (lane == 0) shared.item = item;
    mbarrier_arrive(shared.item_full);
    if (item.num_rows == 0) break;
    use(item);
    // No earlier than this, lest one block take work while others are idle.
    mbarrier_wait(shared.item_empty, position.parity);
    if (lane == 0) i = static_cast<int>(gridDim.x) + atomicAdd(&counters.next, 1);
    i = __shfl_sync(0xffffffffu, i, 0);
  }
  // The last block to learn that there is no more leaves the counters as it found them.
  if (lane == 0 && atomicAdd(&counters.finished, 1) == static_cast<int>(gridDim.x) - 1) {
    counters.next = counters.finished = 0;
  }
}

/// Waits for the next item; all lanes of a warp, which then call `release_varlen_item`.
template <class Traits>
__device__ __forceinline__ VarlenItem next_varlen_item(VarlenHopperShared<Traits>& shared,
                                                       RingPosition<1> position) {
  mbarrier_wait(shared.item_full, position.parity);
  const VarlenItem item = shared.item;
  // Broadcasts, because the compiler keeps what it knows to be equal in a warp in uniform
  // registers, and with it loops and operands of products.
  const auto uniform = [](int x) { return __shfl_sync(0xffffffffu, x, 0); };
  return {uniform(item.sequence),    uniform(item.first_row), uniform(item.num_rows),
          uniform(item.first_limit), uniform(item.head),      uniform(item.new_from)};
}

template <class Traits>
__device__ __forceinline__ void release_varlen_item(VarlenHopperShared<Traits>& shared) {
  mbarrier_arrive(shared.item_empty);
}

/// Brings an item's queries, when those of the item before are no longer used. All lanes of a warp.
template <class Traits>
__device__ __forceinline__ void copy_varlen_queries(
    const VarlenHopperProblem<typename Traits::Type>& problem, VarlenHopperShared<Traits>& shared,
    RingPosition<1>& position, const VarlenItem& item) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  mbarrier_wait(shared.q_empty, position.parity ^ 1);
  if (lane == 0) mbarrier_arrive_expect(shared.q_full, Traits::kTileBytes);
  __syncwarp();
  if (lane < Traits::kPanels) {
    tma_load(shared.q + lane * Traits::kPanelBytes, problem.q,
             {kTmaColumns * lane, item.head, item.first_row}, shared.q_full);
  }
  position.advance();
}

/// A warp that copies: queries and keys, or values.
template <class Traits, bool kValues>
class VarlenCopier {
  using T = typename Traits::Type;

 public:
  __device__ __forceinline__ VarlenCopier(const VarlenHopperProblem<T>& problem,
                                          VarlenHopperShared<Traits>& shared)
      : problem_(problem),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        box_(problem) {}

  __device__ __forceinline__ void run() {
    for (RingPosition<1> position;; position.advance()) {
      const VarlenItem item = next_varlen_item(shared_, position);
      if (item.num_rows == 0) return;
      const BlockId block = shared_.first_blocks[0][lane_], next = shared_.first_blocks[1][lane_];
      release_varlen_item(shared_);
      copy(item, block, next);
    }
  }

 private:
  /// Brings the item's tiles, the last first; that one's boxes are in `block`, those of the tile
  /// before it in `next`.
  __device__ __forceinline__ void copy(const VarlenItem& item, BlockId block, BlockId next) {
    const BlockId* const table = problem_.block_tables + item.sequence * problem_.table_stride;
    const int limit = item.limit(), first_key_row = item.first_row - (item.first_limit - 1);
    const int kv_head = item.head / (problem_.heads / problem_.kv_heads);
    const int head = kv_head + (Traits::kMixed && kValues ? problem_.kv_heads : 0);
    const int last = (ceil_div(limit, Traits::kKeys) - 1) * Traits::kKeys;
    for (int begin = last; begin >= 0; begin -= Traits::kKeys) {
      const BlockId after_next =
          box_.block(table, begin - 2 * Traits::kKeys, limit, problem_.num_blocks);
      if (Traits::kMixed && begin >= item.new_from) {
        copy_new_tile(kv_head, first_key_row + begin);
      } else {
        copy_tile(head, begin, block, first_key_row);
      }
      if (!kValues && begin == last) copy_varlen_queries(problem_, shared_, q_, item);
      block = next;
      next = after_next;
    }
  }

  /// Waits for a stage and says that a tile comes. Returns the barrier and where the tile goes.
  struct Target {
    std::uint64_t& full;
    unsigned char* to;
  };
  __device__ __forceinline__ Target begin_tile() {
    const int stage = ring_.stage;
    std::uint64_t& full = kValues ? shared_.v_full[stage] : shared_.k_full[stage];
    mbarrier_wait(kValues ? shared_.v_empty[stage] : shared_.k_empty[stage], ring_.parity ^ 1);
    ring_.advance();
    if (lane_ == 0) mbarrier_arrive_expect(full, Traits::kTileBytes);
    __syncwarp();
    return {full, kValues ? shared_.v[stage] : shared_.k[stage]};
  }

  /// Starts copying the tile whose first key is in row `row` of this step's keys.
  __device__ __forceinline__ void copy_new_tile(int kv_head, int row) {
    const Target target = begin_tile();
    if (lane_ < Traits::kPanels) {
      tma_load(target.to + lane_ * Traits::kPanelBytes, kValues ? problem_.new_v : problem_.new_k,
               {kTmaColumns * lane_, kv_head, row}, target.full);
    }
  }

  /// Starts copying the tile from `begin` on, a box a lane.
  __device__ __forceinline__ void copy_tile(int head, int begin, BlockId block, int first_key_row) {
    const Target target = begin_tile();
    std::uint64_t& full = target.full;
    if (box_.panel >= Traits::kPanels) return;
    unsigned char* const to =
        target.to + box_.panel * Traits::kPanelBytes + box_.first_key * kTmaColumns * 2;
    const CUtensorMap& map = kValues ? problem_.v : problem_.k;
    const int column = kTmaColumns * box_.panel;
    if constexpr (Traits::kMixed) {
      tma_load(to, map, {column, box_.slot(begin), head, block}, full);
    } else {
      tma_load(to, map, {column, head, first_key_row + begin}, full);
    }
  }

  const VarlenHopperProblem<T>& problem_;
  VarlenHopperShared<Traits>& shared_;
  int lane_;
  VarlenKeyBox<Traits> box_;
  RingPosition<1> q_;
  RingPosition<Traits::kStages> ring_;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace detail

}  // namespace nanovllm::cuda
