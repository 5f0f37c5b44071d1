#pragma once
/// Numbers that the sampler is run by, and the choices that follow from shapes alone. For the host;
/// nothing here needs CUDA.

#include <cstdint>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// A tile is what one warp reads with one 16-byte load per lane: 128 consecutive logits of a row.
inline constexpr int kLogitTile = 128;

/// The most log-probabilities a row can ask for.
inline constexpr std::int64_t kMaxLogprobs = 1024;

/// The largest vocabulary.
inline constexpr std::int64_t kMaxSampledVocab = std::int64_t{1} << 30;

// ---- The first kernel: a block for each slice of a row ----

inline constexpr int kSampleScanThreads = 256;

/// 16-byte loads of a thread: of a slice where few rows need many blocks, and else.
inline constexpr int kShortSliceGroups = 1, kLongSliceGroups = 8;

/// Logits of a slice whose threads make `groups` loads.
[[nodiscard]] constexpr int sample_slice(int groups) { return kSampleScanThreads * 4 * groups; }

/// How a row is cut.
struct SampleSlices {
  int groups;     ///< kShortSliceGroups or kLongSliceGroups
  int num_parts;  ///< slices of a row
};

/// Long slices, unless they leave SMs without a block.
[[nodiscard]] constexpr SampleSlices sample_slices(std::int64_t rows, std::int64_t vocab,
                                                   int num_sms) {
  const std::int64_t long_slices = ceil_div(vocab, sample_slice(kLongSliceGroups));
  if (rows * long_slices >= num_sms) return {kLongSliceGroups, static_cast<int>(long_slices)};
  return {kShortSliceGroups, static_cast<int>(ceil_div(vocab, sample_slice(kShortSliceGroups)))};
}

// ---- The second kernel: a block for each row, or a cluster of them ----

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kSelectBinBits = 11;
inline constexpr int kSelectBins = 1 << kSelectBinBits;
inline constexpr int kSelectCapacity = 1024;
inline constexpr int kSelectFew = 128;  ///< so few need no sorting
inline constexpr int kMaxSampleCluster = 8;
inline constexpr int kNucleusStride = 8;  ///< of its tiles are a sample of the row
inline constexpr int kNucleusBins = 2048;
inline constexpr int kNucleusCapacity = 8192;  ///< tokens that a block can list
static_assert(kSelectCapacity >= kMaxLogprobs);

/// Blocks an SM that its registers are limited for: as many registers as it wants, unless there are
/// more rows than SMs.
[[nodiscard]] constexpr int sample_finish_blocks_per_sm(std::int64_t rows, int num_sms) {
  return rows <= num_sms ? 1 : 2;
}

/// Blocks of a row, for rows with top_p alone; they leave no SM idle while there are few rows.
[[nodiscard]] constexpr int sample_finish_cluster(std::int64_t rows, int num_sms) {
  int size = kMaxSampleCluster;
  while (size > 1 && rows * size > num_sms) size /= 2;
  return size;
}

/// The mass of the largest logit in integer units: no sum over `vocab` logits reaches 2^63.
[[nodiscard]] constexpr double sample_mass_unit(std::int64_t vocab) {
  int vocab_bits = 0;
  while (std::int64_t{1} << vocab_bits < vocab) ++vocab_bits;
  return static_cast<double>(std::int64_t{1} << (62 - vocab_bits));
}

}  // namespace nanovllm::cuda
