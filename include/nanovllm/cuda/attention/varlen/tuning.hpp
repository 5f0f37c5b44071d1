#pragma once
/// Numbers that varlen attention is run by, and the choices that follow from shapes alone. For the
/// host; nothing here needs CUDA.

#include <cstdint>
#include <limits>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// Query rows of a tile.
inline constexpr int kVarlenRows = 128;

/// Largest head_dim that any of the kernels takes.
inline constexpr std::int64_t kVarlenMaxHeadDim = 256;

/// Most memory of K and V that a section's items share (or one kv head).
inline constexpr std::int64_t kVarlenSectionBytes = std::int64_t{16} << 20;

/// Keys of 16-bit elements, with their values, in one kv head that fill a section.
[[nodiscard]] constexpr int varlen_section_keys(std::int64_t head_dim) {
  return static_cast<int>(kVarlenSectionBytes / (4 * head_dim));
}

/// Most entries of a schedule: sequences never share tiles.
[[nodiscard]] constexpr std::int64_t varlen_max_entries(std::int64_t num_seqs,
                                                        std::int64_t num_tokens) {
  return num_tokens / kVarlenRows + num_seqs;
}

/// Whether the kernels can count the items of a step with 32 bits.
[[nodiscard]] constexpr bool can_count_varlen_items(std::int64_t num_seqs, std::int64_t num_tokens,
                                                    std::int64_t num_heads) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;  // and a grid more
  return num_heads == 0 || varlen_max_entries(num_seqs, num_tokens) <= kMost / num_heads;
}

/// The position from which a chunk of `q_len` rows after `prefix` keys has tiles of keys read from
/// this step's rows, tiles that begin earlier from the cache; kVarlenNoNewKeys: all of them from
/// the cache. Tiles of new keys come in one piece each, and need no block table.
inline constexpr int kVarlenNoNewKeys = std::numeric_limits<int>::max();
[[nodiscard]] NANOVLLM_HD constexpr int varlen_new_from(int prefix, int q_len) {
  const bool has_many = q_len >= 2 * kVarlenRows && prefix / 3 <= q_len;
  return prefix == 0 || has_many ? prefix : kVarlenNoNewKeys;
}

/// head_dim as the mma kernel has it compiled, rounded up.
[[nodiscard]] constexpr int varlen_mma_width(std::int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

}  // namespace nanovllm::cuda
