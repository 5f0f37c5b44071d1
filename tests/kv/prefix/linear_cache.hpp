#pragma once
/// A prefix cache as a user might write it: every token counts, not only whole blocks, and it is
/// searched from one end to the other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"

namespace test {

/// Remembers of every block all tokens from the sequence's first to the last that is in the block,
/// and their salt.
template <int kBlockSize>
class LinearCache {
 public:
  using TokenId = nanovllm::TokenId;
  using BlockId = nanovllm::BlockId;

  explicit LinearCache(std::int32_t /*num_blocks*/) {}

  static constexpr std::int32_t block_size() { return kBlockSize; }

  nanovllm::PrefixMatch match(std::span<const TokenId> tokens,
                              const nanovllm::CacheSalt& salt = {}) const {
    nanovllm::PrefixMatch match;
    for (std::size_t end = kBlockSize; end <= tokens.size(); end += kBlockSize) {
      const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) {
        return e.second.salt == salt && std::ranges::equal(e.second.prefix, tokens.first(end));
      });
      if (found == entries_.end()) break;
      match.blocks.push_back(found->first);
    }
    const std::size_t begin = match.blocks.size() * kBlockSize;
    std::size_t best = begin;
    for (const auto& [block, entry] : entries_) {
      if (entry.salt != salt || entry.prefix.size() > begin + kBlockSize) continue;
      const auto common = static_cast<std::size_t>(std::ranges::mismatch(entry.prefix, tokens).in1 -
                                                   entry.prefix.begin());
      if (common <= best) continue;
      best = common;
      match.copy_tail = block;
    }
    match.num_tokens = static_cast<std::int32_t>(best);
    return match;
  }

  void insert(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
              std::int32_t begin, std::int32_t end, const nanovllm::CacheSalt& salt = {}) {
    for (std::int32_t i = begin / kBlockSize; i * kBlockSize < end; ++i) {
      const std::int32_t last = std::min(end, (i + 1) * kBlockSize);
      Entry& entry = entries_[block_table[static_cast<std::size_t>(i)]];
      entry.prefix.assign(tokens.begin(), tokens.begin() + last);
      entry.is_locked = true;
      entry.salt = salt;
    }
    ++version_;
  }

  bool contains(BlockId block) const noexcept { return entries_.contains(block); }
  void lock(BlockId block) noexcept { entries_.find(block)->second.is_locked = true; }
  std::optional<BlockId> unlock(BlockId block) noexcept {
    Entry& entry = entries_.find(block)->second;
    entry.is_locked = false;
    entry.unlocked_at = ++clock_;
    return std::nullopt;
  }
  std::optional<BlockId> evict() noexcept {
    auto oldest = entries_.end();
    for (auto e = entries_.begin(); e != entries_.end(); ++e) {
      if (e->second.is_locked) continue;
      if (oldest == entries_.end() || e->second.unlocked_at < oldest->second.unlocked_at)
        oldest = e;
    }
    if (oldest == entries_.end()) return std::nullopt;
    const BlockId block = oldest->first;
    entries_.erase(oldest);
    ++version_;
    return block;
  }

  std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }
  std::uint64_t version() const { return version_; }
  void check_invariants() const {
    for (const auto& [block, entry] : entries_)
      nanovllm::check(!entry.prefix.empty(), "linear cache: block ", block, " holds nothing");
  }

 private:
  struct Entry {
    std::vector<TokenId> prefix;
    bool is_locked = true;
    std::uint64_t unlocked_at = 0;
    nanovllm::CacheSalt salt{};
  };

  std::map<BlockId, Entry> entries_;
  std::uint64_t clock_ = 0;
  std::uint64_t version_ = 0;
};

static_assert(nanovllm::PrefixCacheLike<LinearCache<4>>);

}  // namespace test
