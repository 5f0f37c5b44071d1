#pragma once
/// The threads that read and write the files of a DiskStore while steps are computed.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/with/tiers/disk/disk_store.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"

namespace nanovllm {

/// A block of the host's pool on its way from or to a file.
struct DiskBlock {
  DiskKey key{};
  std::vector<TokenId> tokens{};
  std::optional<BlockId> host{};               ///< unset if it has its own bytes
  std::vector<std::span<std::byte>> pieces{};  ///< where the block is; the thread's meanwhile
  std::vector<std::byte> bytes{};              ///< its own, perhaps
};

/// Consecutive blocks to be read for a request.
struct DiskLoad {
  std::vector<DiskName> before{};  ///< the prefixes before them, which are used, too
  std::vector<DiskBlock> blocks{};
  std::size_t num_loaded = 0;            ///< once it is done: the first ones, which are good
  std::atomic<bool> is_given_up{false};  ///< its request has ended: read no more

  // The queue's, guarded by its mutex.
  std::size_t num_begun = 0;  ///< blocks that a thread has taken, the first ones
  std::size_t num_open = 0;   ///< of them, those that are being read
  std::size_t end = std::numeric_limits<std::size_t>::max();  ///< the first that cannot be read
};

using DiskLoadList = std::list<std::shared_ptr<DiskLoad>>;
using DiskBlockList = std::list<DiskBlock>;

/// Threads that read and write blocks; loads go before saves. They read the blocks of a load in
/// parallel, because one thread is slower than most disks; one at a time writes. Finished work is
/// taken by polling: `take_done`, or `wait` before it. The number of waiting saves is bounded: a
/// disk that is slower than they come gets fewer.
///
/// Thread-safe. The blocks' memory must outlive the queue.
class DiskQueue {
 public:
  /// `disk` must outlive the queue. Throws ConfigError when there can be no thread.
  /// @param max_saves    most blocks that wait to be written.
  /// @param num_threads  0 for half of the machine's, at most 8.
  DiskQueue(DiskStore& disk, std::size_t max_saves, unsigned num_threads = 0);

  /// Writes what waits to be written, and drops what waits to be read.
  ~DiskQueue();

  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  /// Whether `save` would take another block.
  [[nodiscard]] bool has_room() const;

  /// Its blocks are read until one cannot be, or the load is given up.
  void load(std::shared_ptr<DiskLoad> load);

  /// The block is written, or touched where it has a file, if there is room to wait for that.
  /// Returns whether it will be.
  [[nodiscard]] bool save(DiskBlock block);

  /// Appends what has been done since the last call, written or not.
  void take_done(DiskLoadList& loads, DiskBlockList& saves) noexcept;

  /// Sleeps until a load is done, at most for `most`.
  void wait(std::chrono::milliseconds most);

  /// Drops all that waits, and waits for the blocks that are read or written at the moment. What
  /// was dropped is done, too: nothing saved, and loaded what was before.
  void drop() noexcept;

  /// Writes what waits to be written, drops what waits to be read, and ends the threads. Nothing
  /// may be queued after that.
  void finish() noexcept;

 private:
  void start(unsigned num_threads);
  void run();
  void write(const DiskBlock& block);
  void touch(const DiskLoad& load);
  // Under the mutex:
  /// A load with a block to be read. Those before it that have none are done, or leave the list.
  [[nodiscard]] std::shared_ptr<DiskLoad> next_load() noexcept;
  /// Reads its next block, without the mutex meanwhile; who ends a load puts it to what is done.
  void read_block(const std::shared_ptr<DiskLoad>& load, std::vector<std::byte>& buffer,
                  std::unique_lock<std::mutex>& lock);
  void cancel_loads() noexcept;

  DiskStore& disk_;
  const std::size_t max_saves_;

  mutable std::mutex mutex_;  // guards everything below; not held while a file is read or written
  std::condition_variable update_, done_;
  DiskLoadList loads_, done_loads_;
  DiskLoadList last_blocks_;  // loads of which all blocks are taken
  DiskBlockList saves_, done_saves_;
  int num_busy_ = 0;  // threads that read or write
  bool is_writing_ = false;
  bool is_ending_ = false;
  std::vector<std::jthread> threads_;  // last: they use the rest
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <system_error>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE DiskQueue::DiskQueue(DiskStore& disk, std::size_t max_saves, unsigned num_threads)
    : disk_(disk), max_saves_(max_saves) {
  constexpr unsigned kMost = 8;
  const unsigned half = std::max(1u, std::min(kMost, std::thread::hardware_concurrency() / 2));
  try {
    start(num_threads > 0 ? num_threads : half);
  } catch (const std::system_error& error) {
    finish();
    throw ConfigError(concat("DiskKv::path: no thread for reading and writing: ", error.what()));
  } catch (...) {
    finish();
    throw;
  }
}

NANOVLLM_INLINE void DiskQueue::start(unsigned num_threads) {
  threads_.reserve(num_threads);
  for (unsigned i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

NANOVLLM_INLINE DiskQueue::~DiskQueue() { finish(); }

NANOVLLM_INLINE bool DiskQueue::has_room() const {
  const std::lock_guard lock(mutex_);
  return saves_.size() < max_saves_;
}

NANOVLLM_INLINE void DiskQueue::load(std::shared_ptr<DiskLoad> load) {
  DiskLoadList entry{std::move(load)};
  const std::lock_guard lock(mutex_);
  loads_.splice(loads_.end(), entry);
  update_.notify_all();
}

NANOVLLM_INLINE bool DiskQueue::save(DiskBlock block) {
  DiskBlockList entry;
  entry.push_back(std::move(block));
  const std::lock_guard lock(mutex_);
  if (saves_.size() >= max_saves_) return false;
  saves_.splice(saves_.end(), entry);
  update_.notify_one();
  return true;
}

NANOVLLM_INLINE void DiskQueue::take_done(DiskLoadList& loads, DiskBlockList& saves) noexcept {
  const std::lock_guard lock(mutex_);
  loads.splice(loads.end(), done_loads_);
  saves.splice(saves.end(), done_saves_);
}

NANOVLLM_INLINE void DiskQueue::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, most, [this] { return !done_loads_.empty(); });
}

NANOVLLM_INLINE void DiskQueue::cancel_loads() noexcept {
  for (DiskLoadList* list : {&loads_, &last_blocks_}) {
    for (const auto& load : *list) load->is_given_up = true;
  }
  static_cast<void>(next_load());
}

NANOVLLM_INLINE void DiskQueue::drop() noexcept {
  std::unique_lock lock(mutex_);
  cancel_loads();
  done_saves_.splice(done_saves_.end(), saves_);
  done_.wait(lock, [this] { return num_busy_ == 0; });
}

NANOVLLM_INLINE void DiskQueue::finish() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    cancel_loads();
    update_.notify_all();
  }
  threads_.clear();
}

NANOVLLM_INLINE void DiskQueue::run() {
  std::vector<std::byte> buffer;  // of a file
  std::unique_lock lock(mutex_);
  for (;;) {
    update_.wait(lock, [this] {
      return is_ending_ || !loads_.empty() || (!saves_.empty() && !is_writing_);
    });
    if (const std::shared_ptr<DiskLoad> load = next_load()) {
      read_block(load, buffer, lock);
    } else if (!saves_.empty() && !is_writing_) {
      DiskBlockList save;
      save.splice(save.end(), saves_, saves_.begin());
      is_writing_ = true;
      ++num_busy_;
      lock.unlock();
      write(save.front());
      lock.lock();
      --num_busy_;
      is_writing_ = false;
      done_saves_.splice(done_saves_.end(), save);
      done_.notify_all();
    } else if (is_ending_) {
      return;
    }
  }
}

NANOVLLM_INLINE std::shared_ptr<DiskLoad> DiskQueue::next_load() noexcept {
  while (!loads_.empty()) {
    const std::shared_ptr<DiskLoad>& first = loads_.front();
    const bool goes_on = !first->is_given_up && first->num_begun < first->end;
    if (goes_on && first->num_begun < first->blocks.size()) return first;
    if (first->num_open > 0) {
      last_blocks_.splice(last_blocks_.end(), loads_, loads_.begin());
    } else {
      first->num_loaded = std::min(first->num_begun, first->end);
      done_loads_.splice(done_loads_.end(), loads_, loads_.begin());
      done_.notify_all();
    }
  }
  return nullptr;
}

NANOVLLM_INLINE void DiskQueue::read_block(const std::shared_ptr<DiskLoad>& load,
                                           std::vector<std::byte>& buffer,
                                           std::unique_lock<std::mutex>& lock) {
  const std::size_t i = load->num_begun++;
  ++load->num_open;
  ++num_busy_;
  lock.unlock();
  const DiskBlock& block = load->blocks[i];
  const bool is_good = disk_.read(block.key, block.tokens, block.pieces, buffer);
  lock.lock();
  if (!is_good) load->end = std::min(load->end, i);
  const bool goes_on =
      !load->is_given_up && load->num_begun < load->end && load->num_begun < load->blocks.size();
  if (load->num_open == 1 && !goes_on) {  // the last
    load->num_loaded = std::min(load->num_begun, load->end);
    lock.unlock();
    touch(*load);
    lock.lock();
    for (DiskLoadList* list : {&loads_, &last_blocks_}) {
      const auto at = std::find(list->begin(), list->end(), load);
      if (at != list->end()) done_loads_.splice(done_loads_.end(), *list, at);
    }
  }
  --load->num_open;
  --num_busy_;
  done_.notify_all();
}

NANOVLLM_INLINE void DiskQueue::write(const DiskBlock& block) {
  if (disk_.contains(block.key.name)) return disk_.touch(block.key.name);
  disk_.enter(block.key, block.tokens, block.pieces);
}

/// The first of a chain goes last: the others are worth nothing without it.
NANOVLLM_INLINE void DiskQueue::touch(const DiskLoad& load) {
  for (std::size_t i = load.num_loaded; i-- > 0;) disk_.touch(load.blocks[i].key.name);
  for (std::size_t i = load.before.size(); i-- > 0;) disk_.touch(load.before[i]);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
