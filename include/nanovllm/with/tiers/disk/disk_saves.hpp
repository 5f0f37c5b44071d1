#pragma once
/// Passes blocks from host memory to the disk tier.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/with/tiers/disk/disk_queue.hpp"
#include "nanovllm/with/tiers/disk/disk_store.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"

namespace nanovllm {

/// A block that a step copies to the host's pool for the prefix cache is pinned there when the step
/// has begun, queued for writing once the step is committed, and unpinned when it is written, or at
/// once if the queue is full. A file is useless without those of the blocks before it, and the
/// blocks that most requests share stay in the device's pool. So if files continue such blocks,
/// these are written when the engine is idle, and at its end.
///
/// Two steps may be under way, and both may copy to the same block of the host's pool: the first
/// swaps a sequence out to it, the sequence ends, and the second saves a prefix there. So each
/// pinned block has the number of the step that pinned it, and only that step queues it.
///
/// @tparam Blocks  a TieredBlockManager, or a type with its members.
template <class Blocks>
class DiskSaves {
 public:
  /// All of these must outlive it; the queue's thread writes.
  DiskSaves(DiskStore& disk, DiskQueue& queue, StepRunner& runner, Blocks& blocks)
      : disk_(disk), queue_(queue), runner_(runner), blocks_(blocks) {
    pinned_by_.resize(static_cast<std::size_t>(blocks.host().num_blocks()), kNothing);
  }

  /// A step has begun: what it saves for the prefix cache is pinned until `save` or `cancel`.
  /// @param step  its number, from 1 on; no two steps have the same.
  void hold(std::span<const BlockCopy> copies_down, std::uint64_t step) noexcept {
    for (const BlockCopy& copy : copies_down) {
      if (!blocks_.tier().contains(copy.to)) continue;  // a sequence's own
      blocks_.tier().pin(copy.to);
      pinned_by(copy.to) = step;
    }
  }

  /// That step is committed: what it has saved is in the host's pool.
  void save(std::span<const BlockCopy> copies_down, std::uint64_t step) noexcept {
    for (const BlockCopy& copy : copies_down) {
      std::uint64_t& pinned = pinned_by(copy.to);
      if (pinned != step) continue;  // a sequence's own, or saved by the step after this one
      const bool is_queued = queue(copy.to);
      pinned = is_queued ? kQueue : kNothing;
      if (!is_queued) blocks_.tier().unpin(copy.to);
    }
  }

  /// That step is cancelled: the block manager forgets what it has saved (`forget_saved`).
  void cancel(std::span<const BlockCopy> copies_down, std::uint64_t step) noexcept {
    for (const BlockCopy& copy : copies_down) {
      if (pinned_by(copy.to) == step) pinned_by(copy.to) = kNothing;
    }
  }

  /// Whether `host` is pinned by a step, or until it is written.
  [[nodiscard]] bool is_pinned(BlockId host) const noexcept {
    return pinned_by_[static_cast<std::size_t>(host)] != kNothing;
  }

  /// The engine is idle: writes blocks that files continue. No step may be under way.
  void save_parents() noexcept {
    if (!queue_.has_room()) return;
    save_parents([this](DiskBlock block) { return queue_.save(std::move(block)); });
  }

  /// The queue is done with these.
  void end(const DiskBlockList& saves) noexcept {
    for (const DiskBlock& block : saves) {
      if (!block.host) continue;
      pinned_by(*block.host) = kNothing;
      blocks_.tier().unpin(*block.host);
    }
  }

  /// A file continues the block of this name, or will: the block should have a file too.
  void note_missing(const DiskName& name) {
    if (!disk_.contains(name)) missing_.insert(name);
  }

  /// The queue has ended: writes, on this thread, the blocks that files continue. Nothing is
  /// written after that.
  void finish() noexcept {
    if (is_healthy()) {  // else the device may not answer
      save_parents([this](const DiskBlock& block) {
        return disk_.enter(block.key, block.tokens, block.pieces);
      });
    }
    missing_.clear();
  }

 private:
  // Who has pinned a block, if not the step of that number.
  static constexpr std::uint64_t kNothing = 0;
  static constexpr std::uint64_t kQueue = ~std::uint64_t{0};  ///< until it is written

  [[nodiscard]] bool is_healthy() const noexcept {
    try {
      return runner_.health().state == Health::State::ok;
    } catch (...) {  // no memory for the reason, so there is one
      return false;
    }
  }

  [[nodiscard]] std::uint64_t& pinned_by(BlockId host) noexcept {
    return pinned_by_[static_cast<std::size_t>(host)];
  }

  /// The same for the block before this one, if there is one.
  void note_parent(const DiskKey& key) {
    if (key.parent != disk_.root().with(key.salt)) note_missing(key.parent);
  }

  bool queue(BlockId host) noexcept {
    try {
      if (!queue_.has_room()) return false;
      const DiskKey& key = blocks_.tier().key(host);
      const std::span<const TokenId> tokens = blocks_.tier().tokens(host);
      note_parent(key);
      return queue_.save({.key = key,
                          .tokens = {tokens.begin(), tokens.end()},
                          .host = host,
                          .pieces = runner_.pool().outside_block(host)});
    } catch (...) {  // out of memory
      return false;
    }
  }

  /// Calls `write(DiskBlock)` for the blocks that are missing and in memory, and for those before
  /// them, until it returns false.
  template <class Write>
  void save_parents(const Write& write) noexcept {
    if (missing_.empty()) return;
    using Named = typename std::remove_cvref_t<decltype(blocks_.tier())>::Named;
    try {
      std::unordered_map<DiskName, Named> there;
      blocks_.tier().for_each_named([&](const Named& named) {
        // A block that is pinned may have to be copied yet.
        if (named.is_host ? !blocks_.tier().is_pinned(named.block)
                          : blocks_.is_published(named.block))
          there.emplace(named.key.name, named);
      });
      while (!missing_.empty()) {
        const DiskName name = *missing_.begin();
        const auto found = there.find(name);
        if (found != there.end() && !disk_.contains(name)) {
          if (!write(copy_of(found->second))) return;
          note_parent(found->second.key);
        }
        missing_.erase(name);
      }
    } catch (...) {  // out of memory, or ranks that have failed
    }
  }

  template <class Named>
  DiskBlock copy_of(const Named& named) {
    DiskBlock out{.key = named.key, .tokens = {named.tokens.begin(), named.tokens.end()}};
    std::vector<std::span<std::byte>> pieces = runner_.pool().outside_block(0);  // their sizes
    std::size_t num_bytes = 0;
    for (const std::span<std::byte> piece : pieces) num_bytes += piece.size();
    out.bytes.resize(num_bytes);
    if (named.is_host) {
      pieces = runner_.pool().outside_block(named.block);
    } else {
      runner_.pool().read_blocks(std::span(&named.block, 1), out.bytes);
    }
    std::span<std::byte> rest(out.bytes);
    for (const std::span<std::byte> piece : pieces) {
      if (named.is_host) std::ranges::copy(piece, rest.begin());
      out.pieces.push_back(rest.first(piece.size()));
      rest = rest.subspan(piece.size());
    }
    return out;
  }

  DiskStore& disk_;
  DiskQueue& queue_;
  StepRunner& runner_;
  Blocks& blocks_;
  std::vector<std::uint64_t> pinned_by_;  ///< of each block of the host's pool
  std::unordered_set<DiskName> missing_;  ///< had no file when one after them was used
};

}  // namespace nanovllm
