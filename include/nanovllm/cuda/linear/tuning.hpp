#pragma once
/// Numbers that the dense layers are run by, and the choices that follow from shapes alone. For the
/// host; nothing here needs CUDA.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

// ---- Buckets of rows ----

/// Numbers of rows of x that have a choice of their own.
inline constexpr std::int64_t kRowBuckets[] = {
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384};

/// The bucket that `rows` ≥ 1 falls into: the smallest that is not smaller, or the largest.
[[nodiscard]] constexpr std::int64_t row_bucket(std::int64_t rows) {
  const auto* found = std::lower_bound(std::begin(kRowBuckets), std::end(kRowBuckets), rows);
  return found == std::end(kRowBuckets) ? found[-1] : *found;
}

/// What stands around a product in the kernels that do it all at once.
enum class ProductKind : std::uint8_t {
  plain,
  normed,  ///< RMSNorm of x ahead
  gated,   ///< RMSNorm of x ahead, where a kernel has that choice, or none; SwiGLU behind
};

/// All forms of such a kernel, for each kind. A variant of a kind is an index into its own.
template <class Form>
struct ProductForms {
  std::span<const Form> plain, normed, gated;

  [[nodiscard]] constexpr int size(ProductKind kind) const {
    return static_cast<int>(of(kind).size());
  }
  [[nodiscard]] constexpr Form at(ProductKind kind, int variant) const {
    return of(kind)[static_cast<std::size_t>(variant)];
  }

 private:
  [[nodiscard]] constexpr std::span<const Form> of(ProductKind kind) const {
    switch (kind) {
      case ProductKind::plain: return plain;
      case ProductKind::normed: return normed;
      default: return gated;
    }
  }
};

/// What run.operator()<variant>() returns, for a variant below kCount; false for any other.
template <int kCount, class Run>
[[nodiscard]] bool with_variant(int variant, const Run& run) {
  bool done = false;
  [&]<int... kVariant>(std::integer_sequence<int, kVariant...>) {
    static_cast<void>(
        ((variant == kVariant && (done = run.template operator()<kVariant>(), true)) || ...));
  }
  (std::make_integer_sequence<int, kCount>{});
  return done;
}

/// Memory that cuBLASLt may use between the kernels of one product.
inline constexpr std::size_t kBlasWorkspaceBytes = std::size_t{32} << 20;

/// Extents of W that the kernels here count with 32 bits, tiles beyond the end included.
inline constexpr std::int64_t kMaxLinearExtent = std::numeric_limits<std::int32_t>::max() - 65536;

/// Elements of W up to which weights count as small: a product of few rows by them takes as long as
/// kernels take to begin and end, by larger ones as long as memory takes.
inline constexpr std::int64_t kSmallWeights = std::int64_t{1} << 23;

// ---- small_m_linear ----

/// Most rows of x that `small_m_linear` takes.
inline constexpr std::int64_t kMaxSmallMRows = 16;

/// Most rows of x for which it is chosen where nothing was timed.
inline constexpr std::int64_t kSmallMRowsByRule = 8;

/// Tiles of 8 rows of W a block of `small_m_linear` may own.
inline constexpr int kSmallMTiles[] = {1, 2, 4, 6};
/// The fewest with a norm ahead or SwiGLU behind.
inline constexpr int kMinSmallMFusedTiles = 4;

/// A good number of tiles for `n` rows of W: the largest that leaves a block for each SM.
[[nodiscard]] constexpr int default_small_m_tiles(std::int64_t n, int num_sms) {
  int tiles = 1;
  for (const int larger : kSmallMTiles) {
    if (ceil_div(n, 8 * larger) * 10 >= num_sms * 9) tiles = larger;
  }
  return tiles;
}

/// Whether `small_m_linear` does m rows of x by W [n, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_small_m_linear(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= kMaxSmallMRows && k % 8 == 0 && std::max(n, k) <= kMaxLinearExtent;
}

/// Whether start-up should try it. By large weights and more than one row, one op behind itself is
/// as fast as with cuBLASLt, but a step is not: 8 rows of Qwen3-8B take 5.5 ms by this kernel
/// and 4.8 without it (H200). Why is not known.
[[nodiscard]] constexpr bool suits_small_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m == 1 || n <= kSmallWeights / k;
}

/// Most rows of x that it takes with norm, rotation and store of q's, k's and v's heads behind it.
/// With 16, what its threads hold for the heads costs the products more than a kernel of the heads
/// takes.
inline constexpr std::int64_t kMaxSmallMHeadRows = 8;

/// Whether start-up should try that: by large weights it gains nothing.
[[nodiscard]] constexpr bool suits_small_m_heads(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= kMaxSmallMHeadRows && suits_small_m(m, n, k);
}

/// Rows up to which its blocks ask for all shared memory of their multiprocessors, so that theirs
/// and decode attention's begin beside each other: a layer of one row takes 1 to 2 us less up to
/// some 500 keys. With more rows what is fetched ahead gets in the way of the keys.
inline constexpr std::int64_t kSmallMSharedRows = 1;

/// `LaunchConfig::shared_percent` of its launches with m rows.
[[nodiscard]] constexpr int small_m_shared_percent(std::int64_t m) {
  return m <= kSmallMSharedRows ? 100 : -1;
}

// ---- ordered_linear ----

inline constexpr int kOrderedColumns = 64;      ///< of K in a panel
inline constexpr int kOrderedAlignment = 1024;  ///< of panels in shared memory, for the swizzle

/// Rows of W and of x that a block of `ordered_linear` owns.
struct OrderedBlock {
  int rows = 64;
  int tokens = 64;
  int panels = 1;  ///< of 64 columns in a stage: 1 or kOrderedPanels

  bool operator==(const OrderedBlock&) const = default;
};

inline constexpr int kOrderedPanels = 4;

/// All there are.
inline constexpr OrderedBlock kOrderedBlocks[] = {
    {32, 8, 1},  {64, 8, 1},  {32, 16, 1}, {64, 16, 1}, {32, 32, 1},  {64, 32, 1},
    {32, 64, 1}, {64, 64, 1}, {32, 8, 4},  {64, 8, 4},  {32, 16, 4},  {64, 16, 4},
    {32, 32, 4}, {64, 32, 4}, {32, 64, 4}, {64, 64, 4}, {64, 128, 1}, {128, 256, 1}};

/// What the others are held against, bit for bit.
inline constexpr OrderedBlock kOrderedReference{64, 64};

[[nodiscard]] constexpr bool has_ordered_block(OrderedBlock block) {
  return std::find(std::begin(kOrderedBlocks), std::end(kOrderedBlocks), block) !=
         std::end(kOrderedBlocks);
}

/// Most rows of a step whose products are added to the residual by their kernels. With 16 that
/// takes longer than `add_rms_norm` does.
inline constexpr std::int64_t kMaxOrderedSums = 8;

inline constexpr int kOrderedMaxStages = 32;  ///< of a block's ring
/// Stages under way behind the newest; more gain nothing, for products of a chain wait for each
/// other.
inline constexpr int kOrderedPending = 1;

/// Whether `ordered_linear` does m rows of x by W [n, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_ordered_linear(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kMaxGridY = 65535;
  return k % 8 == 0 && std::max(n, k) <= kMaxLinearExtent && m <= 64 * kMaxGridY;
}

/// Whether a block of this shape is worth trying on `m` rows of x. Blocks of 16 are the fastest for
/// what they do, so that several may beat one that has room for all rows.
[[nodiscard]] constexpr bool suits_ordered_rows(OrderedBlock block, std::int64_t m) {
  switch (block.tokens) {
    case 8: return m <= 8;
    case 16: return m <= 64;
    case 32: return m > 16 && m <= 32;
    case 64: return m > 16 && m <= 1024;
    default: return m > block.tokens / 4;
  }
}

/// A good shape for m rows of x by n rows of W where nothing was timed: room for the rows of x, and
/// as many rows of W as leave a block for four multiprocessors of ten.
[[nodiscard]] constexpr OrderedBlock default_ordered_block(std::int64_t m, std::int64_t n,
                                                           int num_sms) {
  if (m > 512) return {128, 256, 1};
  const int tokens = m <= 16 ? 16 : m <= 32 ? 32 : 64;
  const bool fills = ceil_div(n, 64) * ceil_div(m, tokens) * 10 >= num_sms * 4;
  return fills ? OrderedBlock{64, tokens, 1} : OrderedBlock{32, tokens, kOrderedPanels};
}

/// Stages of the rings of `blocks` blocks that pass through `all_stages` of them: blocks that run
/// on a multiprocessor at a time, four at the most, share its memory, fewer if they would have too
/// little.
[[nodiscard]] constexpr int ordered_stages(std::int64_t blocks, int all_stages, int stage_bytes,
                                           int other_bytes, int num_sms,
                                           std::int64_t max_shared_bytes) {
  constexpr std::int64_t kOfBlock = 2048;  // what the driver and the barriers take
  const std::int64_t enough = std::min<std::int64_t>(all_stages, kOrderedPending + 3);
  std::int64_t together = std::clamp<std::int64_t>(ceil_div(blocks, std::int64_t{num_sms}), 1, 4);
  const auto fitting = [&] {
    return (max_shared_bytes / together - kOfBlock - other_bytes) / stage_bytes;
  };
  while (together > 1 && fitting() < enough) --together;
  return static_cast<int>(
      std::min({fitting(), std::int64_t{all_stages}, std::int64_t{kOrderedMaxStages}}));
}

}  // namespace nanovllm::cuda
