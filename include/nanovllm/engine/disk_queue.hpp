#pragma once
/// The thread that reads and writes the files of a DiskTier while steps are computed.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  BlockId host = -1;  ///< none where it has bytes of its own
  std::vector<std::span<std::byte>> pieces{};  ///< where the block is; the thread's meanwhile
  std::vector<std::byte> bytes{};              ///< its own, perhaps
};

/// Blocks one behind the other, to be read for a request.
struct DiskLoad {
  std::vector<DiskName> before{};  ///< the prefixes before them, which are used, too
  std::vector<DiskBlock> blocks{};
  std::size_t num_loaded = 0;            ///< once it is done: the first ones, which are good
  std::atomic<bool> is_given_up{false};  ///< its request has ended: read no more
};

using DiskLoadList = std::list<std::shared_ptr<DiskLoad>>;
using DiskBlockList = std::list<DiskBlock>;

/// One thread, for which loads go before saves. What is done is taken by polling: `take_done`, or
/// `wait` before it. What waits to be saved is bounded: a disk that is slower than what comes gets
/// less of it.
///
/// Thread-safe. The blocks' memory must outlive the queue.
class DiskQueue {
 public:
  /// `disk` must outlive the queue. Throws ConfigError when there can be no thread.
  /// @param max_saves  blocks that wait to be written, at the most.
  DiskQueue(DiskTier& disk, std::size_t max_saves);

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

  /// Drops all that waits, and waits for the block that is read or written at the moment. What was
  /// dropped is done, too: nothing loaded, nothing saved.
  void drop() noexcept;

  /// Writes what waits to be written, drops what waits to be read, and ends the thread. Nothing may
  /// be handed over any more.
  void finish() noexcept;

 private:
  void run();
  void read(DiskLoad& load);
  void write(const DiskBlock& block);

  DiskTier& disk_;
  const std::size_t max_saves_;

  mutable std::mutex mutex_;  // guards everything below; not held while a file is read or written
  std::condition_variable news_, done_;
  DiskLoadList loads_, done_loads_;
  DiskBlockList saves_, done_saves_;
  bool is_busy_ = false;
  bool is_ending_ = false;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/disk_queue.inc"
#endif
