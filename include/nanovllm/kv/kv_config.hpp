#pragma once
/// How large the KV cache is: its compile-time settings, the run-time choice of its size, and the
/// arithmetic from one to the other.

#include <cstdint>
#include <string>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// The policy slot `kv`.
struct KvConfig {
  int block_size = 16;         ///< tokens a block, ≥ 1
  bool prefix_caching = true;  ///< share the blocks of equal prefixes
};

/// What one block of the pool is made of.
struct KvShape {
  std::int64_t num_layers = 0;
  std::int64_t num_kv_heads = 0;  ///< of this rank
  std::int64_t head_dim = 0;
  std::int64_t block_size = 0;
  std::int64_t element_bytes = 0;
  std::int64_t scale_bytes = 0;  ///< of a row's scale, see ScaledKvFormat

  /// Bytes of a row: the keys or the values of one head of one token.
  [[nodiscard]] constexpr std::int64_t row_bytes() const {
    return head_dim * element_bytes + scale_bytes;
  }
  /// Bytes of one block in one layer, K and V.
  [[nodiscard]] constexpr std::int64_t layer_bytes() const {
    return 2 * num_kv_heads * block_size * row_bytes();
  }
  /// Bytes of one block in all layers.
  [[nodiscard]] constexpr std::int64_t block_bytes() const { return num_layers * layer_bytes(); }
};

/// How much memory the KV pool takes: a number of blocks, of bytes, or a share of what is free.
class KvSize {
 public:
  enum class Kind : std::uint8_t { blocks, bytes, memory_share };

  /// Exactly `n` blocks.
  [[nodiscard]] static constexpr KvSize blocks(std::int64_t n) { return {Kind::blocks, n, 0.0}; }
  /// As many blocks as `n` bytes hold.
  [[nodiscard]] static constexpr KvSize bytes(std::int64_t n) { return {Kind::bytes, n, 0.0}; }
  /// As many blocks as fit in `share`, 0 < share ≤ 1, of the memory that is available when the pool
  /// is made: after the weights are loaded, and whatever other processes hold is not counted.
  [[nodiscard]] static constexpr KvSize memory_share(double share) {
    return {Kind::memory_share, 0, share};
  }

  [[nodiscard]] constexpr Kind kind() const { return kind_; }
  [[nodiscard]] constexpr std::int64_t count() const { return count_; }  ///< of blocks or bytes
  [[nodiscard]] constexpr double share() const { return share_; }

 private:
  constexpr KvSize(Kind kind, std::int64_t count, double share)
      : kind_(kind), count_(count), share_(share) {}

  Kind kind_;
  std::int64_t count_;
  double share_;
};

/// "8 blocks", "99 bytes", "a share of 0.5".
[[nodiscard]] std::string to_text(const KvSize& size);

/// Blocks in a pool of `size`. A pure function: `available_bytes` is what the device has free now,
/// and is read for `KvSize::memory_share` only.
///
/// @param min_tokens  the pool must hold this many tokens at once: 1, or the longest sequence that
///                    the engine promises to serve.
/// @param setting     is named in errors.
/// Throws ConfigError naming what was there and what was needed when the setting is out of range,
/// or when the pool would hold fewer than `min_tokens` tokens.
[[nodiscard]] std::int32_t num_kv_blocks(const KvSize& size, const KvShape& shape,
                                         std::int64_t available_bytes, std::int64_t min_tokens = 1,
                                         const char* setting = "kv_size");

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <limits>

#include "nanovllm/core/math.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::string to_text(const KvSize& size) {
  if (size.kind() == KvSize::Kind::memory_share) return concat("a share of ", size.share());
  return concat(size.count(), size.kind() == KvSize::Kind::bytes ? " bytes" : " blocks");
}

NANOVLLM_INLINE std::int32_t num_kv_blocks(const KvSize& size, const KvShape& shape,
                                           std::int64_t available_bytes, std::int64_t min_tokens,
                                           const char* setting) {
  check<ConfigError>(shape.block_bytes() > 0,
                     "KV shape: layers, kv heads, head dim, block size and element bytes must be "
                     ">= 1, got ",
                     shape.num_layers, ", ", shape.num_kv_heads, ", ", shape.head_dim, ", ",
                     shape.block_size, ", ", shape.element_bytes);
  const std::int64_t min_blocks = ceil_div(std::max<std::int64_t>(1, min_tokens), shape.block_size);
  std::int64_t blocks = 0;
  std::int64_t budget_bytes = 0;
  switch (size.kind()) {
    case KvSize::Kind::blocks:
      check<ConfigError>(size.count() >= min_blocks, "KV cache, ", setting, ": ", size.count(),
                         " blocks were asked for, but at least ", min_blocks, " of ",
                         shape.block_size, " tokens are needed");
      blocks = size.count();
      break;
    case KvSize::Kind::bytes: budget_bytes = size.count(); break;
    case KvSize::Kind::memory_share:
      check<ConfigError>(size.share() > 0.0 && size.share() <= 1.0, "KV cache, ", setting,
                         ": the memory share must be in (0, 1], got ", size.share());
      budget_bytes = static_cast<std::int64_t>(
          size.share() * static_cast<double>(std::max<std::int64_t>(0, available_bytes)));
      break;
  }
  if (size.kind() != KvSize::Kind::blocks) {
    const bool is_share = size.kind() == KvSize::Kind::memory_share;
    blocks = budget_bytes > 0 ? budget_bytes / shape.block_bytes() : 0;
    check<ConfigError>(
        blocks >= min_blocks, "KV cache, ", setting, ": ", budget_bytes, " bytes",
        is_share ? concat(" (a share of ", size.share(), " of the ", available_bytes, " available)")
                 : std::string(),
        " hold ", blocks, " blocks, but at least ", min_blocks, " of ", shape.block_size,
        " tokens are needed, ", min_blocks, " x ", shape.block_bytes(), " bytes");
  }
  // Token positions and block ids are 32-bit.
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / shape.block_size - 1;
  check<ConfigError>(size.kind() != KvSize::Kind::blocks || blocks <= most, "KV cache, ", setting,
                     ": ", blocks, " blocks were asked for, but at most ", most,
                     " can be addressed");
  return static_cast<std::int32_t>(std::min(blocks, most));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
