#pragma once
/// How blocks of `linear_sample` are cut, and what they share: with each other, and their warps.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear_sample/race.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/ops/sampling_batch.hpp"

namespace nanovllm::cuda {

/// Device memory that blocks meet in. Between calls `counts` and `ticket` are 0 and `bounds` those
/// of no arrival.
struct LinearSampleScratch {
  std::uint32_t* bounds = nullptr;  ///< [rows], key of the earliest arrival left so far
  unsigned* counts = nullptr;       ///< [rows], entries left so far
  float4* entries = nullptr;        ///< [rows, blocks]: arrival, id, logit
  unsigned* ticket = nullptr;       ///< blocks that are done
};

/// Operands, by value.
struct LinearSampleParams {
  float* logits;  ///< [rows, stride], of the form that stores them
  std::int64_t logits_stride;
  const SamplingRow* settings;  ///< [rows]
  TokenId* tokens;              ///< [rows]
  LinearSampleScratch scratch;
  std::int32_t rows;
  std::int32_t vocab;
  std::int32_t panels;  ///< of 64 columns, in K
  std::int32_t tiles;   ///< of W
};

namespace detail {

/// Sizes that follow from how a block is cut, see `LinearSampleBlock`.
template <int kColumnsOfBlock, int kStagesOfBlock, bool kStoresLogits>
struct LinearSampleTraits {
  static constexpr int kColumns = kColumnsOfBlock;  ///< rows of x
  static constexpr int kStages = kStagesOfBlock;
  static constexpr bool kStores = kStoresLogits;
  static constexpr int kTokens = 2 * 64;  ///< 64 rows of W for each warpgroup
  static constexpr int kConsumers = 256, kThreads = 128 + kConsumers;
  static constexpr int kNoiseThreads = 96;
  static constexpr int kRowBytes = kTmaColumns * 2;
  static constexpr int kXBytes = kColumns * kRowBytes, kWeightBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kSums = kColumns / 2;             ///< of a thread
  static constexpr int kWords = ceil_div(kColumns, 16);  ///< of noise, of a thread
  static constexpr int kNoiseWords = kWords * kConsumers;
  static constexpr int kQueue = 64;  ///< entries of a warp's queue
  static constexpr int kQueueWords = kConsumers / 32 * kQueue * 3;
  static constexpr int kAlignment = 1024;

  static_assert(kColumns >= 16 && kColumns <= 64 && kStages >= 2);
  static_assert(kXBytes % kAlignment == 0);
};

/// What else than the ring is in shared memory.
template <class Traits>
struct LinearSampleShared {
  std::uint32_t noise[Traits::kNoiseWords];
  alignas(16) EntryTest tests[Traits::kColumns];
  BestEntry best[Traits::kColumns];
  float known[Traits::kColumns];       ///< when the best arrives of what other blocks have told
  ulonglong2 seeds[Traits::kColumns];  ///< seed and position
  std::uint32_t queue[Traits::kQueueWords];
  std::uint32_t draws[2];  ///< a bit for each row that is drawn
  unsigned is_last;

  /// Of a block's first tile, for each word of noise: a bit for each of its bytes that says that the
  /// second token has the smaller word. Where the queues are later, behind the rows' first bounds.
  __device__ std::uint8_t* seconds() {
    static_assert(Traits::kQueueWords * 4 >= Traits::kColumns * 4 + Traits::kNoiseWords);
    return reinterpret_cast<std::uint8_t*>(queue + Traits::kColumns);
  }
};

template <class Traits>
[[nodiscard]] constexpr std::size_t linear_sample_shared_bytes() {
  const std::size_t ring = static_cast<std::size_t>(Traits::kStages) * Traits::kStageBytes;
  return ring + Traits::kAlignment + (Traits::kStores ? 0 : sizeof(LinearSampleShared<Traits>));
}

/// The barriers of a block.
template <class Traits>
struct LinearSampleBarriers {
  std::uint64_t full[Traits::kStages], empty[Traits::kStages];
  std::uint64_t prepared;  ///< what the rows' draws are made of
  std::uint64_t noise_full, noise_empty;
};

}  // namespace detail
}  // namespace nanovllm::cuda
