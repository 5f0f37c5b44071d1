#pragma once
/// Whether a policy's prefix cache is one.

#include "nanovllm/kv/prefix/prefix_cache.hpp"

namespace nanovllm {

/// True if `C` is a prefix cache; a compile error that says what one must have if not.
template <class C>
consteval bool check_prefix_cache() {
  static_assert(
      PrefixCacheLike<C>,
      "nanovllm: the policy's PrefixCache must be movable, made from a number of blocks, with "
      "block_size, match(tokens, salt), insert(block_table, tokens, begin, end, salt), contains, "
      "lock, unlock, evict, size, version and check_invariants as kv/prefix/prefix_cache.hpp "
      "states them, of which contains, lock, unlock and evict are noexcept; the salt is a "
      "CacheSalt, and blocks of two salts must never be shared");
  return true;
}

}  // namespace nanovllm
