#pragma once
/// What the engine's steps have to do with the disk tier: requests wait for what is read for them.
/// Longer than 400 lines: plan, entry and undoing of a load all change one list.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/request.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/with/tiers/disk/disk_queue.hpp"
#include "nanovllm/with/tiers/disk/disk_saves.hpp"
#include "nanovllm/with/tiers/disk/disk_store.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"
#include "nanovllm/with/tiers/options.hpp"

namespace nanovllm {

/// Brings blocks from a DiskStore to the prefix cache's tiers in memory. The engine's thread calls
/// it, and never waits for a file. DiskSaves is the other direction.
///
/// A request for which files have at least `min_tokens` tokens more than the tiers in memory does
/// not go to the scheduler yet. Blocks of the host's pool are taken and filled, then entered into
/// the host tier, where the scheduler's look-up finds them; they are pinned until the request is
/// admitted. A request whose files another load is reading waits for that load. All loads together
/// take at most half of the host's pool: if there is no room, tokens are computed.
///
/// A block that was taken may still be read by the step under way, for a sequence that had it
/// before: a load begins when the steps that were under way when it was planned have ended.
///
/// @tparam Blocks  a TieredBlockManager, or a type with its members.
template <class Blocks>
class DiskLoads {
 public:
  /// `runner` and `blocks`, which have a pool in host memory and are unused, must outlive it.
  /// Throws ConfigError when there can be no thread.
  /// @param min_tokens  fewer tokens are computed, not read.
  DiskLoads(std::unique_ptr<DiskStore> disk, StepRunner& runner, Blocks& blocks, int min_tokens)
      : disk_(std::move(disk)),
        runner_(runner),
        blocks_(blocks),
        min_tokens_(min_tokens),
        max_taken_(std::max(1, blocks.host().num_blocks() / 2)),
        queue_(*disk_, static_cast<std::size_t>(max_taken_)),
        saves_(*disk_, queue_, runner, blocks) {
    blocks_.tier().name_on_disk(disk_->root());
  }

  // ---- Up ----

  /// Whether `request`, which is in no queue, waits here from now on: `poll` hands it out.
  /// @param newest_step  the number of the newest step under way, 0 for none. Numbers ascend.
  [[nodiscard]] bool begin(Request& request, std::uint64_t newest_step) noexcept {
    try {
      std::list<Waiting> entry(1);
      if (!plan(entry.front(), request, newest_step)) return false;
      waiting_.splice(waiting_.end(), entry);
    } catch (...) {  // out of memory
      return false;
    }
    if (newest_step == 0) hand_over(waiting_.back());
    return true;
  }

  /// Takes what the disk has done, and calls `add(Request&)` for each request that need not wait
  /// any longer.
  /// @param oldest_step  the number of the oldest step under way, 0 for none.
  /// @param newest_step  and of the newest.
  template <class Add>
  void poll(std::uint64_t oldest_step, std::uint64_t newest_step, const Add& add) {
    DiskLoadList loads;
    take_done(loads);
    std::list<Waiting> ready;
    for (auto w = waiting_.begin(); w != waiting_.end();) {
      const auto here = w++;
      if (here->load == nullptr || !contains(loads, *here->load)) continue;
      enter(*here);
      ready.splice(ready.end(), waiting_, here);
    }
    std::erase_if(given_up_, [&](Waiting& w) {
      if (!contains(loads, *w.load)) return false;
      give_back(w);
      return true;
    });
    if (!loads.empty() || std::exchange(must_plan_, false)) plan_again(newest_step, ready);
    for (Waiting& w : waiting_) {
      if (oldest_step == 0 || oldest_step > w.newest_step) hand_over(w);
    }
    release_admitted();
    for (const Waiting& w : ready) add(*w.request);
  }

  /// Blocks that were read for requests that are admitted by now may be evicted.
  void release_admitted() noexcept {
    std::erase_if(admissions_, [this](const Admission& a) {
      const auto is_waiting = [](const auto& s) { return s->status == SequenceStatus::waiting; };
      if (std::ranges::all_of(a.request->sequences(), is_waiting)) return false;
      unpin(a);
      return true;
    });
  }

  /// `request` has ended.
  void forget(const Request& request) noexcept {
    std::erase_if(admissions_, [&](const Admission& a) {
      if (a.request != &request) return false;
      unpin(a);
      return true;
    });
    const auto w = std::ranges::find(waiting_, &request, &Waiting::request);
    if (w == waiting_.end()) return;
    must_plan_ = true;  // others may have waited for its load
    if (w->is_handed_over) {
      w->load->is_given_up = true;
      given_up_.splice(given_up_.end(), waiting_, w);
    } else {
      give_back(*w);
      waiting_.erase(w);
    }
  }

  /// Whether requests wait here.
  [[nodiscard]] bool is_loading() const { return !waiting_.empty(); }
  /// Sequences of them.
  [[nodiscard]] std::int64_t num_waiting() const {
    std::int64_t count = 0;
    for (const Waiting& w : waiting_) count += std::ssize(w.request->sequences());
    return count;
  }
  /// Sleeps until a load is done, or for so long that others can be heard.
  void wait() { queue_.wait(std::chrono::milliseconds(2)); }

  // ---- Down ----

  /// See DiskSaves.
  void hold(std::span<const BlockCopy> copies_down, std::uint64_t step) noexcept {
    saves_.hold(copies_down, step);
  }
  void save(std::span<const BlockCopy> copies_down, std::uint64_t step) noexcept {
    if (undone_step_ < step) undone_step_.reset();  // also where there is none
    saves_.save(copies_down, step);
  }
  void save_parents() noexcept { saves_.save_parents(); }

  /// A step was undone. Its copies to the host's pool may still be made, up to the end of a step
  /// that begins later: until one is committed no block is taken for what is read.
  void cancel(std::span<const BlockCopy> copies_down, std::uint64_t step) noexcept {
    undone_step_ = std::max(undone_step_.value_or(0), step);
    saves_.cancel(copies_down, step);
  }

  // ---- The end ----

  /// What is read or to be written is dropped. Calls `add(Request&)` for the requests that waited.
  template <class Add>
  void reset(const Add& add) {
    std::list<Waiting> waited;
    waited.splice(waited.end(), waiting_);
    for (Waiting& w : waited) {
      if (w.load) w.load->is_given_up = true;
    }
    queue_.drop();
    DiskLoadList ignored;
    take_done(ignored);
    for (Waiting& w : waited) give_back(w);
    for (Waiting& w : given_up_) give_back(w);
    given_up_.clear();
    for (const Admission& a : admissions_) unpin(a);
    admissions_.clear();
    for (const Waiting& w : waited) add(*w.request);
  }

  /// Waits for all that is to be written. All requests have ended; nothing is read or written any
  /// more.
  void finish() noexcept {
    queue_.finish();
    DiskLoadList ignored;
    take_done(ignored);
    for (Waiting& w : given_up_) give_back(w);
    given_up_.clear();
    saves_.finish();
  }

  void fill(EngineStats& stats) const {
    const DiskStats disk = disk_->stats();
    stats.extras.update(DiskKvStats{.num_hit_tokens = blocks_.tier_stats().num_disk_hit_tokens,
                                    .num_blocks = disk.num_blocks,
                                    .num_writes = disk.num_writes,
                                    .num_failures = disk.num_failures});
  }

  /// Throws Error naming the broken invariant.
  void check_invariants() const {
    std::int64_t num_loading = 0;
    std::vector<int> num_pins(static_cast<std::size_t>(blocks_.host().num_blocks()));
    for (const auto* list : {&waiting_, &given_up_}) {
      for (const Waiting& w : *list) num_loading += std::ssize(w.hosts);
    }
    check(num_loading == blocks_.tier().num_loading(), "disk loads: ", num_loading,
          " blocks are taken, but the host tier has ", blocks_.tier().num_loading());
    for (const Admission& a : admissions_) {
      for (const BlockId host : a.hosts) ++num_pins[static_cast<std::size_t>(host)];
    }
    for (BlockId host = 0; host < blocks_.host().num_blocks(); ++host) {
      const int count = num_pins[static_cast<std::size_t>(host)] + (saves_.is_pinned(host) ? 1 : 0);
      check(count == (blocks_.tier().is_pinned(host) ? 1 : 0), "disk loads: ", count,
            " requests, steps and writes need block ", host, " of the host to be pinned");
    }
    check(num_taken() <= max_taken_, "disk loads: ", num_taken(), " blocks are taken, at most ",
          max_taken_, " may be");
  }

 private:
  /// A request whose blocks are read; without a load, one that waits for those of another.
  struct Waiting {
    Request* request = nullptr;
    std::shared_ptr<DiskLoad> load{};
    std::vector<BlockId> hosts{};   ///< that are taken, one for each block of the load
    std::int32_t first = 0;         ///< the first block's place in the prompt
    std::uint64_t newest_step = 0;  ///< under way when it was planned
    bool is_handed_over = false;
  };
  /// A request that is in the scheduler's queue, and what was read for it.
  struct Admission {
    Request* request = nullptr;
    std::vector<BlockId> hosts{};
  };

  static bool contains(const DiskLoadList& loads, const DiskLoad& load) {
    return std::ranges::any_of(loads, [&](const auto& other) { return other.get() == &load; });
  }

  /// Finds out what `w`, which is empty, is to wait for on behalf of `request`. Returns false, and
  /// has taken nothing, if that is nothing; the same when it throws std::bad_alloc.
  bool plan(Waiting& w, Request& request, std::uint64_t newest_step) {
    w.request = &request;
    w.newest_step = newest_step;
    const Sequence& s = *request.sequences().front();
    const bool is_held = s.continues != nullptr && s.continues->num_computed_tokens > 0;
    const bool computes_all = s.scores.count > 0;
    if (is_held || computes_all || undone_step_ || disk_->size() == 0) return false;
    const PrefixMatch match = blocks_.match(s.tokens, s.salt);
    const std::span<const TokenId> tokens(s.tokens);
    const auto num_there = match.blocks.size() + match.outside.size();
    const auto num_whole = (tokens.size() - 1) / kBlockSize;
    auto load = std::make_shared<DiskLoad>();
    DiskName parent = disk_->root().with(s.salt);
    for (std::size_t i = 0; i < num_whole; ++i) {
      const std::span<const TokenId> block = tokens.subspan(i * kBlockSize, kBlockSize);
      const DiskName name = parent.next(block);
      if (i < num_there) {
        load->before.push_back(name);
      } else {
        if (i == num_there && is_read_at(i, name, s.salt)) return true;
        if (!disk_->contains(name)) break;
        load->blocks.push_back(
            {.key = {name, parent, s.salt}, .tokens = {block.begin(), block.end()}});
      }
      parent = name;
    }
    const auto is_worth_it = [&] {
      const auto end = static_cast<std::int64_t>(num_there + load->blocks.size()) *
                       static_cast<std::int64_t>(kBlockSize);
      return !load->blocks.empty() && end - match.num_tokens >= min_tokens_;
    };
    limit(*load, max_taken_ - num_taken());
    if (!is_worth_it()) return false;
    for (const DiskName& name : load->before) saves_.note_missing(name);
    w.hosts = blocks_.begin_loads(match, static_cast<std::int32_t>(load->blocks.size()));
    limit(*load, std::ssize(w.hosts));
    w.first = static_cast<std::int32_t>(num_there);
    w.load = std::move(load);
    try {
      for (std::size_t i = 0; i < w.hosts.size(); ++i) {
        w.load->blocks[i].host = w.hosts[i];
        w.load->blocks[i].pieces = runner_.pool().outside_block(w.hosts[i]);
      }
    } catch (...) {
      give_back(w);
      throw;
    }
    load = w.load;
    if (is_worth_it()) return true;
    give_back(w);
    return false;
  }

  static void limit(DiskLoad& load, std::int64_t num_blocks) {
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(0, num_blocks));
    if (load.blocks.size() > most) load.blocks.resize(most);
  }

  /// Whether block `place` of a prompt, of this name and salt, is read for another request.
  bool is_read_at(std::size_t place, const DiskName& name, const CacheSalt& salt) const {
    return std::ranges::any_of(waiting_, [&](const Waiting& w) {
      const std::size_t i = place - static_cast<std::size_t>(w.first);  // wraps around before it
      if (!w.load || i >= w.load->blocks.size()) return false;
      const DiskKey& key = w.load->blocks[i].key;
      return key.name == name && key.salt == salt;
    });
  }

  /// Requests that waited for the loads of others look again; those that need not wait are moved to
  /// `ready`.
  void plan_again(std::uint64_t newest_step, std::list<Waiting>& ready) noexcept {
    for (auto w = waiting_.begin(); w != waiting_.end();) {
      const auto here = w++;
      if (here->load != nullptr) continue;
      bool waits = false;
      try {
        waits = plan(*here, *here->request, newest_step);
      } catch (...) {  // out of memory
      }
      if (!waits) ready.splice(ready.end(), waiting_, here);
    }
  }

  void hand_over(Waiting& w) noexcept {
    if (w.load == nullptr || w.is_handed_over) return;
    try {
      queue_.load(w.load);
      w.is_handed_over = true;
    } catch (...) {  // out of memory: once more at the next step
    }
  }

  /// What was read for `w` is entered in the host tier.
  void enter(Waiting& w) noexcept {
    std::vector<BlockId> hosts = std::exchange(w.hosts, {});
    const std::span<const BlockId> all(hosts);
    std::size_t num_open = hosts.size();  // whose load has not ended
    try {
      std::list<Admission> entry(1);
      std::vector<DiskKey> keys;
      for (const DiskBlock& block : w.load->blocks) keys.push_back(block.key);
      const std::size_t num_loaded = w.load->num_loaded;
      give_back(all.subspan(num_loaded));
      num_open = 0;  // if `end_loads` throws, it has given them back
      const Sequence& s = *w.request->sequences().front();
      entry.front() = {w.request,
                       blocks_.end_loads(s.tokens, w.first, all.first(num_loaded),
                                         std::span<const DiskKey>(keys).first(num_loaded), s.salt)};
      admissions_.splice(admissions_.end(), entry);
    } catch (...) {  // out of memory
      give_back(all.first(num_open));
    }
  }

  /// Blocks of which nothing will come.
  void give_back(Waiting& w) noexcept {
    give_back(w.hosts);
    w.hosts.clear();
    w.load.reset();
  }
  void give_back(std::span<const BlockId> hosts) noexcept {
    for (const BlockId host : hosts) blocks_.tier().end_load(host);
    blocks_.release_host(hosts);
  }

  /// The last block goes first: it is worth nothing without those before it.
  void unpin(const Admission& a) noexcept {
    for (std::size_t i = a.hosts.size(); i-- > 0;) blocks_.tier().unpin(a.hosts[i]);
  }

  void take_done(DiskLoadList& loads) noexcept {
    DiskBlockList saves;
    queue_.take_done(loads, saves);
    saves_.end(saves);
  }

  /// Blocks that loads have taken, and those that wait for an admission.
  std::int64_t num_taken() const {
    std::int64_t count = blocks_.tier().num_loading();
    for (const Admission& a : admissions_) count += std::ssize(a.hosts);
    return count;
  }

  static constexpr auto kBlockSize = static_cast<std::size_t>(Blocks::block_size());

  const std::unique_ptr<DiskStore> disk_;
  StepRunner& runner_;
  Blocks& blocks_;
  const int min_tokens_;
  const std::int32_t max_taken_;
  std::list<Waiting> waiting_;
  std::list<Waiting> given_up_;  ///< their requests have ended, their loads have not
  std::list<Admission> admissions_;
  bool must_plan_ = false;
  std::optional<std::uint64_t> undone_step_;  ///< the newest whose copies may not have ended
  DiskQueue queue_;
  DiskSaves<Blocks> saves_;
};

}  // namespace nanovllm
