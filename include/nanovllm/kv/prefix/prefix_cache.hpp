#pragma once
/// What the prefix cache of a policy must offer.

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"

namespace nanovllm {

/// A prefix cache knows which blocks hold which tokens. The block manager counts how many
/// sequences use a block, and knows which blocks hold nothing of use. A cache is made from the
/// number of blocks of the pool, and has
///
/// - `static block_size()`, tokens a block.
/// - `match(tokens, salt)`: the longest prefix that it has, of 0 to all of them, among the blocks
///   that were inserted with an equal `CacheSalt`. A pure function.
/// - `insert(block_table, tokens, begin, end, salt)`: keys and values of tokens [begin, end) of a
///   sequence with `block_table` are in the pool, as are those before them. The cache may enter
///   the table's blocks, which are in use; some may be entered already, by another sequence that
///   holds them. Called for one range after the other, for one that shares a sibling's blocks from
///   token 0; may throw, and what it has entered by then stays. A sequence has one salt.
/// - `contains(block)`: whether the block may be matched, whole or in part.
/// - `lock(block)`: an entered block that was free is used by a sequence again.
/// - `unlock(block)`: no sequence uses it any more. Returns a block that the cache drops in return,
///   this one or another that is free and entered, or nothing.
/// - `evict()`: drops the free block that is worth least and returns it; nothing only if all
///   entered blocks are in use.
/// - `size()`: blocks entered.
/// - `version()`: changes whenever `match` could give another answer.
/// - `check_invariants()`: throws Error naming the broken one.
///
/// A cache that never keeps anything has a static member `kKeepsNothing`, and one that enters only
/// full blocks has `kFullBlocksOnly`. A cache that can be saved to a file has `entries()`, see
/// kv/cached_block.hpp.
///
/// **Salts keep users apart.** A block that is matched with another salt than it was inserted with
/// shows one user what another has sent; nothing but the cache can see that. A cache that ignores
/// salts must not be given to users who rely on them.
///
/// A match with `copy_tail` makes the engine copy that block; others may be writing to the part of
/// it that was not matched. `lock`, `unlock`, `evict` and `contains` must not throw: they are
/// called where a step begins and ends, which must happen completely or not at all.
template <class C>
concept PrefixCacheLike = std::constructible_from<C, std::int32_t> && std::movable<C> &&
    requires(C& cache, const C& reader, BlockId block, std::span<const TokenId> tokens,
             std::span<const BlockId> block_table, std::int32_t position, const CacheSalt& salt) {
  { C::block_size() } -> std::same_as<std::int32_t>;
  { reader.match(tokens, salt) } -> std::same_as<PrefixMatch>;
  cache.insert(block_table, tokens, position, position, salt);
  { reader.contains(block) }
  noexcept->std::same_as<bool>;
  { cache.lock(block) }
  noexcept;
  { cache.unlock(block) }
  noexcept->std::same_as<std::optional<BlockId>>;
  { cache.evict() }
  noexcept->std::same_as<std::optional<BlockId>>;
  { reader.size() } -> std::same_as<std::int32_t>;
  { reader.version() } -> std::same_as<std::uint64_t>;
  reader.check_invariants();
};

/// A cache may offer `rate(block, priority)`: a sequence of this priority, lower being more urgent,
/// is about to release the entered block, which others may still use. It is a hint for `evict`,
/// comes before `unlock`, and only if the scheduling policy uses priorities. Must not throw.
template <class C>
concept RatesBlocks = requires(C& cache, BlockId block, std::int32_t priority) {
  { cache.rate(block, priority) }
  noexcept;
};

}  // namespace nanovllm
