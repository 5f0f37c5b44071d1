#pragma once
/// No prefix cache: every sequence computes all its tokens.

#include <cstdint>
#include <optional>
#include <span>

#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"

namespace nanovllm {

/// Has nothing and takes nothing.
template <int kBlockSize>
class NoPrefixCache {
 public:
  /// Nothing is worth waiting for.
  static constexpr bool kKeepsNothing = true;

  explicit NoPrefixCache(std::int32_t /*num_blocks*/) {}

  [[nodiscard]] static constexpr std::int32_t block_size() { return kBlockSize; }
  [[nodiscard]] static PrefixMatch match(std::span<const TokenId>, const CacheSalt& = {}) {
    return {};
  }
  static void insert(std::span<const BlockId>, std::span<const TokenId>, std::int32_t, std::int32_t,
                     const CacheSalt& = {}) {}
  [[nodiscard]] static bool contains(BlockId) noexcept { return false; }
  static void lock(BlockId) noexcept {}
  [[nodiscard]] static std::optional<BlockId> unlock(BlockId block) noexcept { return block; }
  [[nodiscard]] static std::optional<BlockId> evict() noexcept { return std::nullopt; }
  [[nodiscard]] static std::int32_t size() { return 0; }
  [[nodiscard]] static std::uint64_t version() { return 0; }
  static void check_invariants() {}
};

static_assert(PrefixCacheLike<NoPrefixCache<16>>);

}  // namespace nanovllm
