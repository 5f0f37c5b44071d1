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
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/section_file.hpp"
#include "nanovllm/kv/tiers/disk_name.hpp"

namespace nanovllm {

/// The files of a DiskTier. Their sections are
///
///     the identity   of the model, the shape of a block and all else that K/V depend on: a text
///     the parent     the DiskName of the prefix before the block, 16 bytes
///     the tokens     of the block, i32
///     K/V            a section for each piece of the block, as it is in memory
inline constexpr SectionFormat kDiskBlockFormat{.magic = "nanovllm-kb\n", .version = 1};

/// State of a DiskTier, and counters since it was made.
struct DiskStats {
  std::int64_t num_blocks = 0;    ///< files that are known, including those of other models
  std::uint64_t num_bytes = 0;    ///< of them
  std::int64_t num_reads = 0;     ///< blocks that were read and valid
  std::int64_t num_writes = 0;    ///< files that were written
  std::int64_t num_failures = 0;  ///< files that could not be read or written, or were not
                                  ///< valid
};

/// Reads and writes files of blocks, and knows which blocks have one. A file is named by its
/// block's DiskName and written under a temporary name, then renamed. It is used if its checksums,
/// its identity, its parent and its tokens are the expected ones. A file that is damaged is
/// removed; an intact file of another model stays. After construction nothing here throws: a file
/// that cannot be read counts as missing, and one that cannot be written is not kept.
///
/// All files together have at most `max_bytes`: the least recently used are removed first. When the
/// directory is opened, the order is that of the times of modification, which are those of the last
/// use. Several processes may share a directory. Files that others write are known after the next
/// start, and files that they remove are misses; for the limit each process counts the files it
/// knows. Files of other names are not touched.
///
/// Thread-safe, except `enter`: one thread at a time calls it.
class DiskTier {
 public:
  /// Makes `directory` if needed, lists it, and removes files that crashed writers left more than
  /// an hour ago. Throws ConfigError naming it when it cannot be made, read or written.
  /// @param identity  must be equal for a file to be of use.
  DiskTier(std::filesystem::path directory, std::uint64_t max_bytes, std::string identity);

  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  /// The name of the empty prefix, from which the names of blocks are chained.
  [[nodiscard]] DiskName root() const { return DiskName::root(identity_); }

  /// Files that are known.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] bool contains(const DiskName& name) const;
  [[nodiscard]] DiskStats stats() const;

  /// Bytes of the file of a block of so many tokens, whose pieces have `num_bytes` together.
  [[nodiscard]] static constexpr std::uint64_t file_bytes(std::size_t identity_bytes,
                                                          std::size_t num_tokens,
                                                          std::size_t num_pieces,
                                                          std::uint64_t num_bytes) {
    constexpr std::uint64_t kHead = 16;  // of the file, and of each section
    return kHead * (4 + num_pieces) + identity_bytes + sizeof(DiskName) +
           num_tokens * sizeof(TokenId) + num_bytes;
  }
  /// The same of a block here.
  [[nodiscard]] std::uint64_t file_bytes(std::span<const TokenId> tokens,
                                         std::span<const std::span<std::byte>> pieces) const;

  /// The file is used: it goes later than all others.
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

  /// Removes the file, if there is one.
  void forget(const DiskName& name) noexcept;

 private:
  struct File {
    DiskName name;
    std::uint64_t num_bytes = 0;
  };
  using Files = std::list<File>;

  void open();
  void list_files();
  [[nodiscard]] std::filesystem::path path_of(const DiskName& name) const;
  /// Adds the file to the index as the most recently used.
  void index(const DiskName& name, std::uint64_t num_bytes);
  /// Removes the file from the index. Returns whether it was there. The mutex is held.
  bool unindex(const DiskName& name) noexcept;
  /// Removes files until `num_bytes` more are within the limit.
  void make_room(std::uint64_t num_bytes);
  void remove_file(const DiskName& name) noexcept;
  /// The whole file in `buffer`. Returns false if there is none. Throws LoadError.
  /// @param num_bytes  that it should have.
  bool load(const DiskName& name, std::uint64_t num_bytes, std::vector<std::byte>& buffer);
  void count_failure() noexcept;

  const std::filesystem::path directory_;
  const std::uint64_t max_bytes_;
  const std::string identity_;

  mutable std::mutex mutex_;  // guards everything below; never held while a file is read or written
  Files files_;               // the least recently used first
  std::unordered_map<DiskName, Files::iterator> by_name_;
  DiskStats stats_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/disk/disk_tier.inc"
#endif
