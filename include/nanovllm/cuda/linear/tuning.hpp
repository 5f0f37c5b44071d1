#pragma once
/// What the families of dense kernels have in common: buckets of rows, kinds of products and their
/// forms, limits. For the host; nothing here needs CUDA.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

namespace nanovllm::cuda {

enum class WeightRows : std::uint8_t {
  plain,
  gated,  ///< gates, then ups: a block has as many of both
  heads,  ///< of q, k and v: a block has as many of a head's first half as of its second
};

/// Numbers of rows of x that have a separate choice.
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
  gated,   ///< RMSNorm of x ahead, where a kernel has that choice, or none; SwiGLU after
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

/// Most rows of x for which start-up looks for one kernel that does what stands around a product,
/// and for one that does what follows q, k and v as well.
inline constexpr std::int64_t kMaxFusedRows = 256;
inline constexpr std::int64_t kMaxFusedHeadRows = 8;

/// Extents of W that the kernels here count with 32 bits, tiles beyond the end included.
inline constexpr std::int64_t kMaxLinearExtent = std::numeric_limits<std::int32_t>::max() - 65536;

/// Elements of W up to which weights count as small: a product of few rows by them takes as long as
/// kernels take to begin and end, by larger ones as long as memory takes.
inline constexpr std::int64_t kSmallWeights = std::int64_t{1} << 23;

}  // namespace nanovllm::cuda
