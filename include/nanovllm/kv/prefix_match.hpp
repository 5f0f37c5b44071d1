#pragma once
/// What a prefix cache has of a sequence.

#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// The cached prefix of a sequence. Its first tokens are in whole blocks, which the sequence
/// shares; more of them may be in the first part of a block that others fill differently, which the
/// sequence gets as a copy of its own.
struct PrefixMatch {
  std::int32_t num_tokens = 0;    ///< in `blocks` and `copy_tail` together
  std::vector<BlockId> blocks{};  ///< hold the first blocks.size() · B tokens
  /// Its first num_tokens - blocks.size() · B slots, 1 to B - 1, are wanted.
  std::optional<BlockId> copy_tail{};
};

}  // namespace nanovllm
