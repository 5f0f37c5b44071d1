#pragma once
/// The threads that read and write the files of a DiskTier while steps are computed.

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
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/disk_tier.hpp"
#include "nanovllm/kv/disk_name.hpp"

namespace nanovllm {

/// A block of the host's pool on its way from or to a file.
struct DiskBlock {
  DiskKey key{};
  std::vector<TokenId> tokens{};
  BlockId host = -1;                           ///< none where it has bytes of its own
  std::vector<std::span<std::byte>> pieces{};  ///< where the block is; the thread's meanwhile
  std::vector<std::byte> bytes{};              ///< its own, perhaps
};

/// Blocks one behind the other, to be read for a request.
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

/// Some threads, for which loads go before saves. They read the blocks of a load side by side, for
/// one alone is slower than most disks, and one at a time writes. What is done is taken by polling:
/// `take_done`, or `wait` before it. What waits to be saved is bounded: a disk that is slower than
/// what comes gets less of it.
///
/// Thread-safe. The blocks' memory must outlive the queue.
class DiskQueue {
 public:
  /// `disk` must outlive the queue. Throws ConfigError when there can be no thread.
  /// @param max_saves    blocks that wait to be written, at the most.
  /// @param num_threads  0 for half of the machine's, 8 at the most.
  DiskQueue(DiskTier& disk, std::size_t max_saves, unsigned num_threads = 0);

  /// Writes what waits to be written, and drops what waits to be read.
  ~DiskQueue();

  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  /// Whether `save` would take another block.
  [[nodiscard]] bool has_room() const;

  /// Its blocks are read until one cannot be, or it is given up.
  void load(std::shared_ptr<DiskLoad> load);

  /// The block is written, or touched where it has a file, if there is room to wait for that.
  /// Returns whether it will be.
  [[nodiscard]] bool save(DiskBlock block);

  /// Appends what has been done since the last call, written or not.
  void take_done(DiskLoadList& loads, DiskBlockList& saves) noexcept;

  /// Sleeps until a load is done, for `most` at the most.
  void wait(std::chrono::milliseconds most);

  /// Drops all that waits, and waits for the blocks that are read or written at the moment. What
  /// was dropped is done, too: nothing saved, and loaded what was before.
  void drop() noexcept;

  /// Writes what waits to be written, drops what waits to be read, and ends the threads. Nothing
  /// may be handed over any more.
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
  void give_up_loads() noexcept;

  DiskTier& disk_;
  const std::size_t max_saves_;

  mutable std::mutex mutex_;  // guards everything below; not held while a file is read or written
  std::condition_variable news_, done_;
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
#include "nanovllm/engine/disk_queue.inc"
#endif
