#pragma once
/// Who owns blocks of the pool besides the sequences that run.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

class Extras;

/// Owns sequences that are in no queue (`SequenceStatus::parked`) and keep their blocks, so that
/// others may continue them. A scheduler tells its owners what happens to those others, and asks
/// for blocks where it has none left.
class BlockOwner {
 public:
  BlockOwner() = default;
  BlockOwner(const BlockOwner&) = delete;
  BlockOwner& operator=(const BlockOwner&) = delete;
  virtual ~BlockOwner() = default;

  [[nodiscard]] virtual std::span<Sequence* const> sequences() const = 0;
  /// Different blocks that they have.
  [[nodiscard]] virtual std::int32_t num_blocks() const = 0;

  /// Sets its own statistics in those of the engine.
  virtual void add_statistics(Extras& /*to*/) const noexcept {}

  /// A new sequence continues `s`, which may be one of the owner's.
  virtual void touch(const Sequence* s) noexcept = 0;
  /// `s` has ended. It may leave its blocks to the one that it continues; what is still in its
  /// block table goes back to the pool.
  virtual void take_from(Sequence& s) noexcept = 0;

  /// Frees a block of the pool or more. Returns false, and changes nothing, if none could become
  /// free because others use all.
  virtual bool evict_one() noexcept = 0;
  /// The last resort: releases blocks even if others use them. Returns whether there were any.
  virtual bool give_up_any() noexcept = 0;
  /// What the pool holds is lost.
  virtual void give_up_all() noexcept = 0;
};

using BlockOwners = std::vector<std::unique_ptr<BlockOwner>>;

/// A block manager of whatever type, as owners see it. The members are those of BlockManager.
class BlockPool {
 public:
  virtual ~BlockPool() = default;

  [[nodiscard]] virtual std::int32_t block_size() const = 0;
  [[nodiscard]] virtual std::int32_t num_blocks() const = 0;
  [[nodiscard]] virtual std::int32_t ref_count(BlockId block) const = 0;
  [[nodiscard]] virtual std::optional<BlockId> allocate() noexcept = 0;
  virtual void share(const PrefixMatch& match) = 0;
  virtual void release(std::span<const BlockId> blocks) = 0;
  virtual void publish(std::span<const BlockId> table, std::span<const TokenId> tokens,
                       std::int32_t begin, std::int32_t end, const CacheSalt& salt) = 0;
  [[nodiscard]] virtual bool keeps_prefixes() const = 0;
  /// As of the function of this name.
  [[nodiscard]] virtual bool keeps_block_of(std::int32_t num_tokens) const = 0;
  /// What the prefix cache has; unset for one that cannot be listed.
  [[nodiscard]] virtual std::optional<std::vector<CachedBlock>> entries() const = 0;

  [[nodiscard]] std::int32_t blocks_for(std::int32_t num_tokens) const {
    return ceil_div(num_tokens, block_size());
  }
  void publish(const Sequence& s, std::int32_t begin, std::int32_t end) {
    publish(s.block_table, s.tokens, begin, end, s.salt);
  }
};

template <class Blocks>
class BlockPoolOf final : public BlockPool {
 public:
  /// `blocks` must outlive this.
  explicit BlockPoolOf(Blocks& blocks) : blocks_(blocks) {}

  [[nodiscard]] std::int32_t block_size() const override { return Blocks::block_size(); }
  [[nodiscard]] std::int32_t num_blocks() const override { return blocks_.num_blocks(); }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const override {
    return blocks_.ref_count(block);
  }
  [[nodiscard]] std::optional<BlockId> allocate() noexcept override { return blocks_.allocate(); }
  void share(const PrefixMatch& match) override { blocks_.share(match); }
  void release(std::span<const BlockId> blocks) override { blocks_.release(blocks); }
  using BlockPool::publish;
  void publish(std::span<const BlockId> table, std::span<const TokenId> tokens, std::int32_t begin,
               std::int32_t end, const CacheSalt& salt) override {
    blocks_.publish(table, tokens, begin, end, salt);
  }
  [[nodiscard]] bool keeps_prefixes() const override { return blocks_.keeps_prefixes(); }
  [[nodiscard]] bool keeps_block_of(std::int32_t num_tokens) const override {
    return nanovllm::keeps_block_of(blocks_, num_tokens);
  }
  [[nodiscard]] std::optional<std::vector<CachedBlock>> entries() const override {
    if constexpr (requires { blocks_.cache().entries(); }) return blocks_.cache().entries();
    return std::nullopt;
  }

 private:
  Blocks& blocks_;
};

}  // namespace nanovllm
