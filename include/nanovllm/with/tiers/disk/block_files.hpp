#pragma once
/// Files that hold the keys and values of a block of tokens each, in one directory.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/with/sessions/section_file.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"

namespace nanovllm {

/// The sections of a file of BlockFiles are
///
///     the identity   of the model, the shape of a block and all else that K/V depend on: a text;
///                    of a block with a salt also the salt
///     the parent     the DiskName of the prefix before the block, 16 bytes
///     the tokens     of the block, i32
///     K/V            a section for each piece of the block, as it is in memory
inline constexpr SectionFormat kDiskBlockFormat{.magic = "nanovllm-kb\n", .version = 1};

/// Thrown for a file that is intact, but of another model or salt.
struct OtherModelError : LoadError {
  using LoadError::LoadError;
};

/// The files of one directory and one model. A file is named by its block's DiskName and is written
/// under a temporary name and renamed. Files of other names are not touched.
///
/// Thread-safe, for it has no state; but one thread at a time may write.
class BlockFiles {
 public:
  /// Makes `directory` where it is missing. Throws ConfigError naming it when it cannot be made or
  /// written to.
  /// @param identity  a file with another identity is not read.
  BlockFiles(std::filesystem::path directory, std::string identity);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const std::string& identity() const { return identity_; }

  struct File {
    DiskName name;
    std::uint64_t num_bytes = 0;
  };
  /// The files that are there, in the order of their times of modification, those of other models
  /// included. Deletes unfinished files that are older than an hour: their writers have crashed.
  /// Throws std::filesystem::filesystem_error.
  [[nodiscard]] std::vector<File> list() const;

  /// Bytes of the file of a block of so many tokens, whose pieces have `num_bytes` together.
  [[nodiscard]] static constexpr std::uint64_t file_bytes(std::size_t identity_bytes,
                                                          std::size_t num_tokens,
                                                          std::size_t num_pieces,
                                                          std::uint64_t num_bytes) {
    constexpr std::uint64_t kHead = 16;  // of the file, and of each section
    return kHead * (4 + num_pieces) + identity_bytes + sizeof(DiskName) +
           num_tokens * sizeof(TokenId) + num_bytes;
  }
  /// The same of a block here, with this salt.
  [[nodiscard]] std::uint64_t file_bytes(std::span<const TokenId> tokens,
                                         std::span<const std::span<std::byte>> pieces,
                                         const CacheSalt& salt = {}) const;

  /// Writes the file of a block. Throws Error when it cannot.
  void write(const DiskKey& key, std::span<const TokenId> tokens,
             std::span<const std::span<std::byte>> pieces) const;

  /// Fills `pieces` with what the file of this block holds. Returns false where there is no file.
  /// Throws OtherModelError for a file of another model or salt, and LoadError for one that
  /// cannot be read, whose checksum is wrong, or which is of other tokens; the pieces are garbage
  /// then.
  /// @param buffer  for the file; pass the same one for several reads.
  [[nodiscard]] bool read(const DiskKey& key, std::span<const TokenId> tokens,
                          std::span<const std::span<std::byte>> pieces,
                          std::vector<std::byte>& buffer) const;

  /// Sets the file's time of modification to now, if there is a file.
  void touch(const DiskName& name) const noexcept;

  /// Deletes the file, if there is one.
  void remove(const DiskName& name) const noexcept;

 private:
  [[nodiscard]] std::filesystem::path path_of(const DiskName& name) const;
  /// Of a file of a block with this salt.
  [[nodiscard]] std::string identity_with(const CacheSalt& salt) const;
  /// Reads the whole file to `buffer`. Returns false if there is none. Throws LoadError.
  /// @param num_bytes  that it should have.
  bool load(const std::filesystem::path& path, std::uint64_t num_bytes,
            std::vector<std::byte>& buffer) const;

  std::filesystem::path directory_;
  std::string identity_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace nanovllm {

namespace detail {

inline constexpr std::string_view kDiskBlockSuffix = ".kvblock";

/// The name that a file's name begins with, if its first 32 characters are one.
NANOVLLM_INLINE std::optional<DiskName> disk_name_of(std::string_view file) {
  if (file.size() < 32) return std::nullopt;
  DiskName name;
  const auto parse = [&](std::size_t at, std::uint64_t& out) {
    const char* const end = file.data() + at + 16;
    const auto [stop, error] = std::from_chars(file.data() + at, end, out, 16);
    return error == std::errc() && stop == end;
  };
  if (!parse(0, name.high) || !parse(16, name.low) || name.hex() != file.substr(0, 32))
    return std::nullopt;
  return name;
}

/// Whether `rest` is what SectionWriter puts after a name while it writes: ".PID.NUMBER.part".
NANOVLLM_INLINE bool is_part_suffix(std::string_view rest) {
  for (int i = 0; i < 2; ++i) {
    if (rest.empty() || rest[0] != '.') return false;
    rest.remove_prefix(1);
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (digits == 0) return false;
    rest.remove_prefix(digits);
  }
  return rest == ".part";
}

NANOVLLM_INLINE std::span<const std::byte> bytes_of(const DiskName& name) {
  return std::as_bytes(std::span(&name, 1));
}

}  // namespace detail

NANOVLLM_INLINE BlockFiles::BlockFiles(std::filesystem::path directory, std::string identity)
    : directory_(std::move(directory)), identity_(std::move(identity)) {
  std::error_code error = make_private_directories(directory_);
  check<ConfigError>(!error, "DiskKv::path: cannot make the directory '", directory_.string(),
                     "': ", error.message());
  check<ConfigError>(std::filesystem::is_directory(directory_, error), "DiskKv::path: '",
                     directory_.string(), "' is no directory");
  const std::filesystem::path probe = directory_ / concat("probe.", ::getpid());
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  check<ConfigError>(file >= 0, "DiskKv::path: cannot write to the directory '",
                     directory_.string(), "': ", std::strerror(errno));
  ::close(file);
  ::unlink(probe.c_str());
}

NANOVLLM_INLINE std::vector<BlockFiles::File> BlockFiles::list() const {
  using std::filesystem::file_time_type;
  std::vector<std::pair<file_time_type, File>> found;
  const file_time_type now = file_time_type::clock::now();
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    std::error_code gone;  // another process may remove what is listed
    if (entry.is_symlink(gone) || !entry.is_regular_file(gone)) continue;
    const std::string file = entry.path().filename().string();
    const std::optional<DiskName> name = detail::disk_name_of(file);
    if (!name || !file.substr(32).starts_with(detail::kDiskBlockSuffix)) continue;
    const file_time_type used = entry.last_write_time(gone);
    if (gone) continue;
    const std::string_view rest =
        std::string_view(file).substr(32 + detail::kDiskBlockSuffix.size());
    if (rest.empty()) {
      const std::uintmax_t num_bytes = entry.file_size(gone);
      if (!gone) found.push_back({used, {*name, num_bytes}});
    } else if (detail::is_part_suffix(rest) && now - used > std::chrono::hours(1)) {
      std::filesystem::remove(entry.path(), gone);
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.name) < std::pair(b.first, b.second.name);
  });
  std::vector<File> files;
  for (const auto& [used, file] : found) files.push_back(file);
  return files;
}

NANOVLLM_INLINE std::uint64_t BlockFiles::file_bytes(std::span<const TokenId> tokens,
                                                     std::span<const std::span<std::byte>> pieces,
                                                     const CacheSalt& salt) const {
  std::uint64_t num_bytes = 0;
  for (const std::span<std::byte> piece : pieces) num_bytes += piece.size();
  return file_bytes(identity_with(salt).size(), tokens.size(), pieces.size(), num_bytes);
}

NANOVLLM_INLINE void BlockFiles::write(const DiskKey& key, std::span<const TokenId> tokens,
                                       std::span<const std::span<std::byte>> pieces) const {
  SectionWriter file(path_of(key.name), kDiskBlockFormat);
  file.write(identity_with(key.salt));
  file.write(detail::bytes_of(key.parent));
  file.write(std::as_bytes(tokens));
  for (const std::span<std::byte> piece : pieces) file.write(piece);
  file.finish(false);  // what a loss of power leaves of it has no right checksum
}

NANOVLLM_INLINE bool BlockFiles::read(const DiskKey& key, std::span<const TokenId> tokens,
                                      std::span<const std::span<std::byte>> pieces,
                                      std::vector<std::byte>& buffer) const {
  const std::filesystem::path path = path_of(key.name);
  if (!load(path, file_bytes(tokens, pieces, key.salt), buffer)) return false;
  SectionReader file("'" + path.string() + "'", buffer, kDiskBlockFormat);
  const bool is_ours = file.read_text("the identity") == identity_with(key.salt);
  const std::span<const std::byte> parent = file.read("the parent");
  const std::span<const std::byte> block = file.read("the tokens");
  if (!is_ours) {
    while (!file.at_end()) static_cast<void>(file.read("keys and values"));
    throw OtherModelError(concat(file.name(), " is of another model or salt"));
  }
  check<LoadError>(std::ranges::equal(parent, detail::bytes_of(key.parent)) &&
                       std::ranges::equal(block, std::as_bytes(tokens)),
                   file.name(), " is of other tokens");
  for (const std::span<std::byte> piece : pieces) {
    const std::span<const std::byte> bytes = file.read("keys and values");
    check<LoadError>(bytes.size() == piece.size(), file.name(), ": expected ", piece.size(),
                     " bytes of keys and values, got ", bytes.size());
    std::copy(bytes.begin(), bytes.end(), piece.begin());
  }
  file.finish();
  return true;
}

NANOVLLM_INLINE void BlockFiles::touch(const DiskName& name) const noexcept {
  try {
    ::utimensat(AT_FDCWD, path_of(name).c_str(), nullptr, 0);
  } catch (...) {  // out of memory: it may go earlier than it should
  }
}

NANOVLLM_INLINE void BlockFiles::remove(const DiskName& name) const noexcept {
  try {
    std::error_code ignored;  // it may be gone
    std::filesystem::remove(path_of(name), ignored);
  } catch (...) {  // out of memory: it is found again at the next start
  }
}

NANOVLLM_INLINE std::filesystem::path BlockFiles::path_of(const DiskName& name) const {
  return directory_ / name.hex().append(detail::kDiskBlockSuffix);
}

NANOVLLM_INLINE std::string BlockFiles::identity_with(const CacheSalt& salt) const {
  return salt ? concat(identity_, "\nsalt ", salt.hex()) : identity_;
}

NANOVLLM_INLINE bool BlockFiles::load(const std::filesystem::path& path, std::uint64_t num_bytes,
                                      std::vector<std::byte>& buffer) const {
  struct Descriptor {
    int value;
    ~Descriptor() {
      if (value >= 0) ::close(value);
    }
  };
  // Not mapped: a device that fails, or a file that shrinks, must be a fault of the read.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0 && errno == ENOENT) return false;
  struct stat status {};
  check<LoadError>(file.value >= 0 && ::fstat(file.value, &status) == 0 && S_ISREG(status.st_mode),
                   "cannot read '", path.string(), "'");
  // Whatever it is, it must not take all memory.
  if (static_cast<std::uint64_t>(status.st_size) > 2 * num_bytes + (1 << 20))
    throw OtherModelError(concat("'", path.string(), "' is of another model"));
  buffer.resize(static_cast<std::size_t>(status.st_size));
  std::size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t count = ::read(file.value, buffer.data() + size, buffer.size() - size);
    if (count < 0 && errno == EINTR) continue;
    check<LoadError>(count > 0, "cannot read '", path.string(), "'");
    size += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
