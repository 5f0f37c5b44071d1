#pragma once
/// The hash that names a prefix of full blocks, as a policy.

#include <concepts>
#include <cstdint>
#include <span>

// Plain declarations, to be linked with libxxhash. Inlining (XXH_INLINE_ALL) would rename xxHash's
// types by macro for the rest of the user's file, and a function of theirs that takes such a type
// would no longer link.
#include <xxhash.h>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// A chained hash: `hash(parent, tokens)` names the prefix that ends with the block `tokens`, given
/// the hash of the prefix before that block (0 for none). Collisions cost time, never correctness:
/// a hit compares tokens.
template <class H>
concept PrefixHashLike = requires(std::uint64_t parent, std::span<const TokenId> tokens) {
  { H::hash(parent, tokens) } -> std::same_as<std::uint64_t>;
};

/// XXH64 of the block's tokens, seeded with the hash of the prefix before it.
struct XxPrefixHash {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t parent, std::span<const TokenId> tokens) {
    return XXH64(tokens.data(), tokens.size_bytes(), parent);
  }
};

}  // namespace nanovllm
