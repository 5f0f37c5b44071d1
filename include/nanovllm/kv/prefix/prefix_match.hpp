#pragma once
/// What the pools have of a sequence before a step computes it.

#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// The beginning of a sequence whose keys and values are already computed. Its first tokens are in
/// whole blocks, which the sequence shares. One of two things may follow:
/// - the first part of a block that others fill differently; the sequence gets a copy of it;
/// - blocks outside of the pool that steps compute in, which are copied into new ones of it.
struct PrefixMatch {
  std::int32_t num_tokens = 0;    ///< in `blocks`, and `copy_tail` or `outside`, together
  std::vector<BlockId> blocks{};  ///< hold the first blocks.size() · B tokens
  /// Its first num_tokens - blocks.size() · B slots, 1 to B - 1, are copied.
  std::optional<BlockId> copy_tail{};
  /// Of another pool, with the tokens after those of `blocks`. The last one may be filled in part,
  /// if it is the sequence's own. A prefix cache leaves this to the block manager.
  std::vector<BlockId> outside{};

  /// Tokens in `blocks`. @param block_size  tokens a block.
  [[nodiscard]] std::int32_t num_shared_tokens(std::int32_t block_size) const {
    return static_cast<std::int32_t>(blocks.size()) * block_size;
  }
};

/// What the prefix cache had of a waiting sequence when it was asked last.
struct PrefixMemo {
  std::optional<std::int32_t> num_tokens{};  ///< of the sequence then; none before the first time
  std::uint64_t cache_version = 0;           ///< of the cache then
  PrefixMatch match{};
};

}  // namespace nanovllm
