#pragma once
/// Blocks that are kept although no request is under way: those of conversations that will
/// continue.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/with/sessions/options.hpp"

namespace nanovllm {

/// Owns references to blocks, which nothing evicts while they are held. They belong to a parked
/// `Sequence`: its first `num_computed_tokens` tokens are in its block table; the last block
/// may be partly filled. Another sequence whose `Sequence::continues` points to it continues from
/// there: it shares the whole blocks of their common prefix, gets a copy of the block after them,
/// and leaves its own blocks here when it ends.
///
/// All held sequences together hold at most a budget of different blocks. If the budget or the pool
/// is too small, the one that was used longest ago loses all its blocks; its tokens may still be in
/// the prefix cache, and are computed again if not. Sequences whose blocks would not become free,
/// because others hold them too, are skipped.
class HeldSequences final : public BlockOwner {
 public:
  /// @param max_blocks  the budget, half of the pool unless set; 0 holds nothing.
  HeldSequences(std::unique_ptr<BlockPool> blocks, std::optional<std::int32_t> max_blocks)
      : blocks_(std::move(blocks)),
        num_holders_(static_cast<std::size_t>(blocks_->num_blocks()), 0),
        max_blocks_(max_blocks.value_or(blocks_->num_blocks() / 2)) {}

  /// Adds `s`, which is new and stays where it is until `remove`. It holds nothing yet.
  void add(Sequence& s) {
    check(s.status == SequenceStatus::waiting && s.arrival == 0 && s.block_table.empty(),
          "hold: a sequence that holds blocks must be fresh");
    by_use_.push_back(&s);
    s.status = SequenceStatus::parked;
  }

  /// Removes `s`, if it is here, and releases its blocks. Sequences that continue it run without.
  void remove(Sequence& s) noexcept {
    if (s.status != SequenceStatus::parked) return;
    evict(s);
    s.status = SequenceStatus::finished;
    std::erase(by_use_, &s);
  }

  /// `s`, if it is here, is to be continued: it is now the one that was used last.
  void touch(const Sequence* s) noexcept override {
    const auto place = std::find(by_use_.begin(), by_use_.end(), s);
    if (place != by_use_.end()) std::rotate(place, place + 1, by_use_.end());
  }

  /// `s`, which runs no more, leaves its blocks to the one that it continues, if it has come to its
  /// end and has not been aborted. What is not wanted stays in its block table.
  void take_from(Sequence& s) noexcept override {
    Sequence* const holder = s.continues;
    const bool is_whole =
        s.finish_reason == FinishReason::stop || s.finish_reason == FinishReason::length;
    if (holder == nullptr || holder->status != SequenceStatus::parked || !is_whole) return;
    evict(*holder);
    holder->tokens.swap(s.tokens);
    holder->block_table.swap(s.block_table);
    holder->salt = s.salt;
    // Of what it computed, what is certain: a step under way may write after that.
    hold(*holder, s.num_published_tokens);
  }

  /// `to` holds what `from` does, by the same blocks. Throws std::bad_alloc, having changed
  /// nothing.
  void copy(const Sequence& from, Sequence& to) {
    std::vector<TokenId> tokens = from.tokens;
    PrefixMatch shared{.num_tokens = from.num_computed_tokens, .blocks = from.block_table};
    evict(to);
    blocks_->share(shared);
    to.tokens = std::move(tokens);
    to.block_table = std::move(shared.blocks);
    to.salt = from.salt;
    hold(to, from.num_computed_tokens);
  }

  /// Gives `s` free blocks for the first `num_tokens` of `tokens`, or for as many of them as there
  /// is room for. Their keys and values are to be written by the caller, before anything else is
  /// done with `s`.
  void allocate(Sequence& s, std::vector<TokenId> tokens, std::int32_t num_tokens) {
    const std::int32_t wanted = std::min(blocks_->blocks_for(num_tokens), max_blocks_);
    std::vector<BlockId> table;
    table.reserve(static_cast<std::size_t>(wanted));
    evict(s);
    while (std::ssize(table) < wanted) {
      const std::optional<BlockId> block = blocks_->allocate();
      if (block) {
        table.push_back(*block);
      } else if (!evict_one()) {
        break;
      }
    }
    s.tokens = std::move(tokens);
    s.block_table = std::move(table);
    hold(s, num_tokens);
    touch(&s);
  }

  /// The keys and values of `s` are in the pool: the prefix cache may know. Throws what it throws.
  void publish(const Sequence& s) { blocks_->publish(s, 0, s.num_computed_tokens); }

  /// Gives back the blocks of `s`: it holds nothing for the moment.
  void evict(Sequence& s) noexcept {
    let_go_behind(s, 0);
    s.num_computed_tokens = 0;
  }

  /// Frees blocks of the pool: releases the blocks of the one that was used longest ago, among
  /// those by which a block becomes free; if there is none, among those that share blocks only with
  /// each other, so that the last one frees them. Returns false, and changes nothing, if no block
  /// could become free because others use all that are held.
  bool evict_one() noexcept override {
    return evict_oldest([&](BlockId b) { return blocks_->ref_count(b) == 1; }) ||
           evict_oldest([&](BlockId b) { return blocks_->ref_count(b) == count(b); });
  }

  /// The last resort: releases the blocks of the held sequence that was used longest ago, even
  /// those that running sequences share with it: they become free when these are preempted. Returns
  /// whether any were held.
  bool give_up_any() noexcept override {
    return evict_oldest([](BlockId) { return true; });
  }

  void give_up_all() noexcept override {
    for (Sequence* s : by_use_) evict(*s);
  }

  /// Different blocks that are held.
  [[nodiscard]] std::int32_t num_blocks() const override { return num_blocks_; }
  void add_statistics(Extras& to) const noexcept override {
    to.update(SessionStats{.num_blocks = num_blocks_});
  }
  [[nodiscard]] std::int32_t max_blocks() const { return max_blocks_; }
  /// In the order of their use, the latest last.
  [[nodiscard]] std::span<Sequence* const> sequences() const override { return by_use_; }

 private:
  /// `s` has got the blocks in its table, of which the first `num_tokens` tokens are wanted and as
  /// many as the budget has room for.
  void hold(Sequence& s, std::int32_t num_tokens) noexcept {
    for (const BlockId block : s.block_table) num_blocks_ += count(block)++ == 0 ? 1 : 0;
    let_go_behind(s, blocks_->blocks_for(num_tokens));
    while (num_blocks_ > max_blocks_ && make_room_beside(s)) {
    }
    if (num_blocks_ > max_blocks_) let_go_behind(s, max_blocks_);
    const std::int64_t held = std::int64_t{std::ssize(s.block_table)} * blocks_->block_size();
    s.num_computed_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(num_tokens, held));
  }

  /// As `evict_one`, for the budget: another held sequence than `s` gives up its blocks, one with
  /// a block that no other held sequence has, if there is one. Returns false where all blocks that
  /// are held are those of `s`.
  bool make_room_beside(const Sequence& s) noexcept {
    const auto is_of_s = [&](BlockId b) {
      return std::find(s.block_table.begin(), s.block_table.end(), b) != s.block_table.end();
    };
    return evict_oldest([&](BlockId b) { return count(b) == 1; }, &s) ||
           evict_oldest([&](BlockId b) { return !is_of_s(b); }, &s);
  }

  /// Gives back the blocks of the one that was used the longest ago of those, but for `kept`, of
  /// which `is_wanted` names a block. Returns whether there was one.
  template <class IsWanted>
  bool evict_oldest(const IsWanted& is_wanted, const Sequence* kept = nullptr) noexcept {
    const auto oldest = std::find_if(by_use_.begin(), by_use_.end(), [&](const Sequence* s) {
      return s != kept && std::any_of(s->block_table.begin(), s->block_table.end(), is_wanted);
    });
    if (oldest == by_use_.end()) return false;
    evict(**oldest);
    return true;
  }

  /// Gives back the blocks of `s` after the first `num_kept`.
  void let_go_behind(Sequence& s, std::int32_t num_kept) noexcept {
    const std::size_t first = std::min(static_cast<std::size_t>(num_kept), s.block_table.size());
    const std::span<const BlockId> table = std::span(s.block_table).subspan(first);
    for (const BlockId block : table) num_blocks_ -= --count(block) == 0 ? 1 : 0;
    blocks_->release(table);
    s.block_table.resize(first);
  }

  [[nodiscard]] std::int32_t& count(BlockId block) noexcept {
    return num_holders_[static_cast<std::size_t>(block)];
  }

  std::unique_ptr<BlockPool> blocks_;
  std::vector<std::int32_t> num_holders_;  ///< of each block, among the sequences here
  std::vector<Sequence*> by_use_;
  std::int32_t num_blocks_ = 0;
  std::int32_t max_blocks_;
};

/// The held sequences of `scheduler`, which gets them at the first call.
[[nodiscard]] inline HeldSequences& held_in(SchedulerInside& scheduler) {
  for (const auto& owner : scheduler.owners()) {
    if (auto* held = dynamic_cast<HeldSequences*>(owner.get())) return *held;
  }
  auto held = std::make_unique<HeldSequences>(scheduler.pool(),
                                              scheduler.extras().of<SessionOptions>().max_blocks);
  HeldSequences& out = *held;
  scheduler.owners().push_back(std::move(held));
  return out;
}

}  // namespace nanovllm
