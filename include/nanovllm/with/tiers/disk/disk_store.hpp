#pragma once
/// The third tier of the prefix cache: a directory of files, each of which holds the keys and
/// values of a block of tokens.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/with/tiers/disk/block_files.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"

namespace nanovllm {

/// State of a DiskStore, and counters since it was made.
struct DiskStats {
  std::int64_t num_blocks = 0;    ///< files that are known, including those of other models
  std::uint64_t num_bytes = 0;    ///< of them
  std::int64_t num_reads = 0;     ///< blocks that were read and valid
  std::int64_t num_writes = 0;    ///< files that were written
  std::int64_t num_failures = 0;  ///< files that could not be read or written, or were not
                                  ///< valid
};

/// Which blocks of tokens have a file, how many bytes all files have, and which file is deleted
/// first. BlockFiles reads and writes them.
///
/// A file is used only if its checksums are right and its identity, its salt, its parent and its
/// tokens are the expected ones. Deletes this model's files that fail their checksum; an intact
/// file of another model or salt stays. After construction nothing throws: a file that cannot be
/// read is a miss, and a block that cannot be written is dropped.
///
/// All files together have at most a number of bytes. The least recently used are deleted first, in
/// the order of their times of modification when the directory is opened, which are those of their
/// last use. Several processes may share a directory. A process sees what the others have written
/// after its next start, and what they have deleted is a miss; each counts for the limit the files
/// that it knows.
///
/// Thread-safe, except `enter`: one thread at a time calls it.
class DiskStore {
 public:
  /// Makes `directory` if needed, lists it, and removes files that crashed writers left more than
  /// an hour ago. Throws ConfigError naming it when it cannot be made, read or written.
  /// @param identity  must be equal for a file to be of use.
  DiskStore(std::filesystem::path directory, std::uint64_t max_bytes, std::string identity);

  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// The name of the empty prefix without a salt, from which the names of blocks are chained.
  [[nodiscard]] DiskName root() const { return DiskName::root(files_.identity()); }

  /// Files that are known.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] bool contains(const DiskName& name) const;
  [[nodiscard]] DiskStats stats() const;

  /// Bytes of the file of a block.
  [[nodiscard]] std::uint64_t file_bytes(std::span<const TokenId> tokens,
                                         std::span<const std::span<std::byte>> pieces,
                                         const CacheSalt& salt = {}) const {
    return files_.file_bytes(tokens, pieces, salt);
  }

  /// The file is used: it is deleted later than all others.
  void touch(const DiskName& name) noexcept;

  /// Writes the file of a block. Returns whether it is there.
  bool enter(const DiskKey& key, std::span<const TokenId> tokens,
             std::span<const std::span<std::byte>> pieces) noexcept;

  /// Fills `pieces` with the contents of this block's file. Returns false if there is none, or it
  /// is not valid; the pieces are garbage then. Does not touch the file: after a chain is read, its
  /// first block should be touched last.
  /// @param buffer  for the file; pass the same one for several reads.
  [[nodiscard]] bool read(const DiskKey& key, std::span<const TokenId> tokens,
                          std::span<const std::span<std::byte>> pieces,
                          std::vector<std::byte>& buffer) noexcept;
  [[nodiscard]] bool read(const DiskKey& key, std::span<const TokenId> tokens,
                          std::span<const std::span<std::byte>> pieces) noexcept {
    std::vector<std::byte> buffer;
    return read(key, tokens, pieces, buffer);
  }

  /// Deletes the file, if there is one.
  void forget(const DiskName& name) noexcept;

 private:
  using File = BlockFiles::File;
  using Order = std::list<File>;

  /// Adds the file to the index as the most recently used.
  void index(const DiskName& name, std::uint64_t num_bytes);
  /// Removes the file from the index. Returns whether it was there. The mutex is held.
  bool unindex(const DiskName& name) noexcept;
  /// Deletes files until `num_bytes` more are within the limit.
  void make_room(std::uint64_t num_bytes);
  void count_failure() noexcept;

  const BlockFiles files_;
  const std::uint64_t max_bytes_;

  mutable std::mutex mutex_;  // guards everything below; never held while a file is read or written
  Order order_;               // the least recently used first
  std::unordered_map<DiskName, Order::iterator> by_name_;
  DiskStats stats_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE DiskStore::DiskStore(std::filesystem::path directory, std::uint64_t max_bytes,
                                     std::string identity)
    : files_(std::move(directory), std::move(identity)), max_bytes_(max_bytes) {
  try {
    for (const File& file : files_.list()) index(file.name, file.num_bytes);
    make_room(0);
  } catch (const std::filesystem::filesystem_error& error) {
    throw ConfigError(concat("DiskKv::path: cannot read '", files_.directory().string(),
                             "': ", error.code().message()));
  }
}

NANOVLLM_INLINE std::int64_t DiskStore::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(order_.size());
}

NANOVLLM_INLINE bool DiskStore::contains(const DiskName& name) const {
  const std::lock_guard lock(mutex_);
  return by_name_.contains(name);
}

NANOVLLM_INLINE DiskStats DiskStore::stats() const {
  const std::lock_guard lock(mutex_);
  DiskStats out = stats_;
  out.num_blocks = static_cast<std::int64_t>(order_.size());
  return out;
}

NANOVLLM_INLINE void DiskStore::touch(const DiskName& name) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return;
    order_.splice(order_.end(), order_, found->second);
  }
  files_.touch(name);
}

NANOVLLM_INLINE bool DiskStore::enter(const DiskKey& key, std::span<const TokenId> tokens,
                                      std::span<const std::span<std::byte>> pieces) noexcept {
  try {
    const std::uint64_t num_bytes = file_bytes(tokens, pieces, key.salt);
    check(num_bytes <= max_bytes_, "a block of ", num_bytes, " bytes is more than the limit");
    make_room(num_bytes);
    files_.write(key, tokens, pieces);
    index(key.name, num_bytes);
    const std::lock_guard lock(mutex_);
    ++stats_.num_writes;
    return true;
  } catch (...) {
    count_failure();
    return false;
  }
}

NANOVLLM_INLINE bool DiskStore::read(const DiskKey& key, std::span<const TokenId> tokens,
                                     std::span<const std::span<std::byte>> pieces,
                                     std::vector<std::byte>& buffer) noexcept {
  try {
    const bool is_there = files_.read(key, tokens, pieces, buffer);
    const std::lock_guard lock(mutex_);
    if (is_there) {
      ++stats_.num_reads;
    } else {
      unindex(key.name);  // another process has deleted it
    }
    return is_there;
  } catch (const OtherModelError&) {
    count_failure();
    const std::lock_guard lock(mutex_);
    unindex(key.name);
  } catch (const LoadError&) {
    count_failure();
    forget(key.name);
  } catch (...) {  // out of memory
    count_failure();
  }
  return false;
}

NANOVLLM_INLINE void DiskStore::forget(const DiskName& name) noexcept {
  {
    const std::lock_guard lock(mutex_);
    unindex(name);
  }
  files_.remove(name);
}

NANOVLLM_INLINE void DiskStore::index(const DiskName& name, std::uint64_t num_bytes) {
  Order file{{name, num_bytes}};
  const std::lock_guard lock(mutex_);
  unindex(name);  // it was written again
  by_name_.emplace(name, file.begin());
  order_.splice(order_.end(), file);
  stats_.num_bytes += num_bytes;
}

NANOVLLM_INLINE bool DiskStore::unindex(const DiskName& name) noexcept {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return false;
  stats_.num_bytes -= found->second->num_bytes;
  order_.erase(found->second);
  by_name_.erase(found);
  return true;
}

NANOVLLM_INLINE void DiskStore::make_room(std::uint64_t num_bytes) {
  for (;;) {
    DiskName oldest;
    {
      const std::lock_guard lock(mutex_);
      if (order_.empty() || stats_.num_bytes + num_bytes <= max_bytes_) return;
      oldest = order_.front().name;
      unindex(oldest);
    }
    files_.remove(oldest);
  }
}

NANOVLLM_INLINE void DiskStore::count_failure() noexcept {
  const std::lock_guard lock(mutex_);
  ++stats_.num_failures;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
