#pragma once
/// Numbers that the sampler is run by, and the choices that follow from shapes alone. For the host;
/// nothing here needs CUDA.

#include <cstdint>
#include <limits>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// A tile is what one warp reads with one 16-byte load per lane: 128 consecutive logits of a row.
inline constexpr int kLogitTile = 128;

/// The most log-probabilities a row can ask for.
inline constexpr std::int64_t kMaxTopTokens = 1024;

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

// ---- Plain rows: a kernel with a block for each part of a row ----

/// Threads of a block, blocks of an SM and 16-byte loads of a thread that are under way.
inline constexpr int kPlainThreads = 512, kPlainBlocksPerSm = 2, kPlainAhead = 3;

/// The same where parts are short, one load a thread.
inline constexpr int kShortPlainThreads = 256, kShortPlainBlocksPerSm = 3;

/// Up to so many rows have short parts. A drawn row of 151,936 logits takes 4.3 us by them on an
/// H200 and 5.4 else, two take 4.4 and 5.9, three 6.3 and 6.1.
inline constexpr std::int64_t kShortPlainRows = 2;

/// Logits that a block reads at a time; parts are multiples of it.
[[nodiscard]] constexpr int plain_unit(int threads) { return 4 * threads; }

/// How a row without filters is divided.
struct PlainParts {
  bool is_short;
  int num_parts;
};

/// Such that the blocks come in few waves that are nearly full: to begin and end takes a block as
/// long as reading six units.
[[nodiscard]] constexpr PlainParts plain_parts(std::int64_t rows, std::int64_t vocab, int num_sms) {
  if (rows <= kShortPlainRows) {
    return {true, static_cast<int>(ceil_div(vocab, std::int64_t{plain_unit(kShortPlainThreads)}))};
  }
  constexpr std::int64_t kBeginAndEnd = 6, kMostWaves = 3;
  const std::int64_t units = ceil_div(vocab, std::int64_t{plain_unit(kPlainThreads)});
  const std::int64_t at_a_time = std::int64_t{num_sms} * kPlainBlocksPerSm;
  PlainParts best{false, 1};
  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t parts = 1; parts <= units; ++parts) {
    const std::int64_t waves = ceil_div(rows * parts, at_a_time);
    if (parts > 1 && waves > kMostWaves) break;
    const std::int64_t cost = waves * (ceil_div(units, parts) + kBeginAndEnd);
    if (cost < best_cost) best.num_parts = static_cast<int>(parts), best_cost = cost;
  }
  return best;
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
static_assert(kSelectCapacity >= kMaxTopTokens);

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
