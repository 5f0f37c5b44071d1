#pragma once
/// A block of `mid_m_linear.cuh`: how it is cut, what lies in its shared memory, and what a launch
/// tells it.

#include <algorithm>
#include <cstdint>

#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

/// Scales of operands of type T, and what the kernel does with them. A header of T specialises this
/// where it has some; a launch passes an object by value.
template <class T>
struct MidMScales {
  static constexpr bool kAreThere = false;
};

/// Shapes of a block: `kTileRows` rows of W, one of `kClusterSize` shares of K, `kStagePanels`
/// panels a stage.
template <class T, int kTileRows, int kClusterSize, int kStagePanels, bool kHasNorm, bool kIsGated>
struct MidMBlock {
  static constexpr int kRows = kTileRows;
  static constexpr int kSplit = kClusterSize;
  static constexpr int kPanels = kStagePanels;
  static constexpr bool kNorm = kHasNorm;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = 64;
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  /// Sets of 8 columns that a block finishes, and sums that it gets for them from each other one:
  /// a quad for each of these in each thread.
  static constexpr int kOwned = kColumns / 8 / kSplit;
  static constexpr int kPushed = kGated ? 2 * kOwned : kOwned;
  static_assert(kOwned * kSplit * 8 == kColumns);

  static constexpr int kGroup = 128;  ///< threads of a warpgroup
  static constexpr int kWeightWarp = 4, kXWarp = 5, kNormWarp = 6;
  static constexpr int kThreads = kGroup + 64 + (kNorm ? kGroup : 0);
  static constexpr int kRowBytes = kTmaRowBytes;
  static constexpr int kPanelColumns = kRowBytes / static_cast<int>(sizeof(T));  ///< of K
  static constexpr int kPanelBytes = kRows * kRowBytes;                          ///< of W
  static constexpr int kWeightBytes = kPanels * kPanelBytes;                     ///< of a stage
  /// Stages of W under way at a time while the ring is filled: more only delay x.
  static constexpr int kUnderWay = std::max(2, 32 * 1024 / kWeightBytes);

  static constexpr int kReceivedBytes = (kSplit - 1) * kPushed * kGroup * 16;
  static constexpr int kSquaresBytes = kNorm ? kSplit * kTokens * 4 : 0;
  static constexpr int kAlignment = 1024;
  /// Of a stage, those of x and then those of W.
  static constexpr int kScaleBytes = MidMScales<T>::kAreThere ? kPanels * (kTokens + kRows) * 4 : 0;

  /// Bytes of x's panel: whole sets of 8 rows, as the swizzle has them.
  static constexpr int x_panel_bytes(int num_tokens) {
    return (num_tokens + 7) / 8 * 8 * kRowBytes;
  }
  static constexpr int x_bytes(int num_tokens) { return kPanels * x_panel_bytes(num_tokens); }

  /// Bytes beside `stages` stages of the rings, for `panels` panels of K. Products read 64 rows of
  /// x, also where a panel has fewer: what lies after it only reaches rows of y that there are
  /// not.
  static constexpr int other_bytes(int panels, int num_tokens, int stages) {
    const int behind = kReceivedBytes + kSquaresBytes + (kNorm ? panels * kRowBytes : 0);
    const int read = kTokens * kRowBytes - x_panel_bytes(num_tokens);
    return stages * kScaleBytes + std::max(behind, read) + (4 * stages + 1) * 8 + kAlignment;
  }
  static constexpr int shared_bytes(int panels, int num_tokens, int stages) {
    return stages * (kWeightBytes + x_bytes(num_tokens)) + other_bytes(panels, num_tokens, stages);
  }
};

/// What a launch passes by value in addition to the tensor maps.
template <class T, class Out>
struct MidMOperands {
  const T* norm;  ///< null without one
  Out* y;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;  ///< columns of y
  std::int32_t k;
  std::int32_t panels;  ///< of a block, whole stages
  std::int32_t stages;  ///< of the rings
  float eps;
  bool accumulate;
  bool y_pairs;     ///< y's pairs of columns are aligned as such
  NextStart start;  ///< of the next kernel
  MidMScales<T> scales{};
};

}  // namespace nanovllm::cuda::detail
