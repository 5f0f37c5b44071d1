#pragma once
/// Files of sections, each with a checksum: what is cut off, altered or another format is refused.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm {

/// What a file of sections is: its first bytes, and the version of what is in it.
struct SectionFormat {
  std::string_view magic;  ///< 12 bytes
  std::uint32_t version = 0;
};

/// Writes a file under a temporary name next to `path` and renames it when it is complete, so that
/// `path` never names half a file. What it holds came from users: the file has mode 0600
/// from its creation on, whatever the umask allows. Little-endian hosts only.
///
///     magic, 12 bytes; version, u32
///     for each section: its bytes' number, u64; XXH64 of them, u64, seeded with number and place
///                       in the file; the bytes
class SectionWriter {
 public:
  /// Throws Error when the file cannot be made.
  SectionWriter(std::filesystem::path path, const SectionFormat& format);
  /// Removes what is not whole.
  ~SectionWriter();

  SectionWriter(const SectionWriter&) = delete;
  SectionWriter& operator=(const SectionWriter&) = delete;

  /// Adds a section. Throws Error when it cannot be written.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// The file is whole: gives it its name. Throws Error when it cannot.
  /// @param durable  it is on the disk before it has its name, so that a loss of power cannot leave
  ///                 the name without the file. It takes time; what can be done without may go.
  void finish(bool durable = true);

 private:
  void put(const void* bytes, std::size_t size);
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_, temporary_;
  std::FILE* file_ = nullptr;
  std::uint64_t num_written_ = 0;
};

/// Makes the directory `path` and those above it that are missing, each with mode 0700. One that is
/// there keeps its mode. Returns what went wrong, if anything.
[[nodiscard]] std::error_code make_private_directories(const std::filesystem::path& path);

/// Reads what a SectionWriter has written. Every fault is a LoadError that names the file, what was
/// expected and what came.
class SectionReader {
 public:
  SectionReader(const std::filesystem::path& path, const SectionFormat& format);

  /// The same of a file's content, which outlives the reader.
  /// @param name  of the file, for messages.
  SectionReader(std::string name, std::span<const std::byte> content, const SectionFormat& format);

  /// The bytes of the next section, valid as long as the reader lives.
  /// @param what  names it in messages.
  [[nodiscard]] std::span<const std::byte> read(std::string_view what);
  [[nodiscard]] std::string_view read_text(std::string_view what) {
    const std::span<const std::byte> bytes = read(what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// Whether nothing follows what was read.
  [[nodiscard]] bool at_end() const { return position_ == content_.size(); }

  /// Nothing may follow what was read.
  void finish() const;

  /// The file's name, for messages.
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  void begin(const SectionFormat& format);

  std::string name_;
  MappedFile file_;  // where it is read from a path
  std::span<const std::byte> content_;
  std::size_t position_ = 0;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

static_assert(std::endian::native == std::endian::little, "section files are little-endian");

inline constexpr std::size_t kSectionMagicBytes = 12;

/// What stands before a section's bytes.
struct SectionHead {
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;
};

/// @param position  of the section's head in the file.
NANOVLLM_INLINE std::uint64_t section_checksum(std::span<const std::byte> bytes,
                                               std::uint64_t position) {
  const std::uint64_t seed[2] = {bytes.size(), position};
  return XXH64(bytes.data(), bytes.size(), XXH64(seed, sizeof seed, 0));
}

}  // namespace detail

NANOVLLM_INLINE SectionWriter::SectionWriter(std::filesystem::path path,
                                             const SectionFormat& format)
    : path_(std::move(path)) {
  static std::atomic<int> num_files{0};  // several threads may write the same file
  check(format.magic.size() == detail::kSectionMagicBytes, "section file: the magic must have ",
        detail::kSectionMagicBytes, " bytes, got ", format.magic.size());
  temporary_ = path_;
  temporary_ += concat(".", ::getpid(), ".", num_files++, ".part");
  ::unlink(temporary_.c_str());  // of a process that had the same number and was killed
  const int descriptor =
      ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor >= 0) file_ = ::fdopen(descriptor, "wb");
  if (file_ == nullptr) {
    const int error = errno;
    if (descriptor >= 0) ::close(descriptor);
    errno = error;
    fail("write");
  }
  try {
    put(format.magic.data(), format.magic.size());
    put(&format.version, sizeof format.version);
  } catch (...) {  // a constructor that throws has no destructor
    std::fclose(file_);
    std::remove(temporary_.c_str());
    throw;
  }
}

NANOVLLM_INLINE SectionWriter::~SectionWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

NANOVLLM_INLINE void SectionWriter::write(std::span<const std::byte> bytes) {
  const detail::SectionHead head{.size = bytes.size(),
                                 .checksum = detail::section_checksum(bytes, num_written_)};
  put(&head, sizeof head);
  put(bytes.data(), bytes.size());
}

NANOVLLM_INLINE void SectionWriter::finish(bool durable) {
  if (std::fflush(file_) != 0 || (durable && ::fsync(::fileno(file_)) != 0)) fail("write");
  const int closed = std::fclose(std::exchange(file_, nullptr));
  if (closed == 0 && std::rename(temporary_.c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  std::remove(temporary_.c_str());
  errno = error;
  fail(closed == 0 ? "rename to" : "write");
}

NANOVLLM_INLINE void SectionWriter::put(const void* bytes, std::size_t size) {
  if (size > 0 && std::fwrite(bytes, 1, size, file_) != size) fail("write");
  num_written_ += size;
}

NANOVLLM_INLINE void SectionWriter::fail(const char* what) const {
  throw Error(concat("cannot ", what, " '", path_.string(), "': ", std::strerror(errno)));
}

NANOVLLM_INLINE std::error_code make_private_directories(const std::filesystem::path& path) {
  std::filesystem::path made;
  int error = 0;
  for (const std::filesystem::path& part : path) {
    made /= part;
    error = ::mkdir(made.c_str(), S_IRWXU) == 0 ? 0 : errno;
  }
  std::error_code unknown;
  if (error == 0 || std::filesystem::is_directory(path, unknown)) return {};
  return {error, std::generic_category()};
}

NANOVLLM_INLINE SectionReader::SectionReader(const std::filesystem::path& path,
                                             const SectionFormat& format)
    : name_(concat("'", path.string(), "'")), file_(path), content_(file_.bytes()) {
  begin(format);
}

NANOVLLM_INLINE SectionReader::SectionReader(std::string name, std::span<const std::byte> content,
                                             const SectionFormat& format)
    : name_(std::move(name)), content_(content) {
  begin(format);
}

NANOVLLM_INLINE void SectionReader::begin(const SectionFormat& format) {
  const std::span<const std::byte> bytes = content_;
  const std::size_t size = detail::kSectionMagicBytes + sizeof format.version;
  check<LoadError>(bytes.size() >= size, name_, ": expected a file that begins with '",
                   format.magic.substr(0, 11), "', got ", bytes.size(), " bytes");
  check<LoadError>(std::memcmp(bytes.data(), format.magic.data(), format.magic.size()) == 0, name_,
                   ": expected a file that begins with '", format.magic.substr(0, 11),
                   "', got something else");
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + format.magic.size(), sizeof version);
  check<LoadError>(version == format.version, name_, ": expected version ", format.version,
                   ", got ", version);
  position_ = size;
}

NANOVLLM_INLINE std::span<const std::byte> SectionReader::read(std::string_view what) {
  const std::span<const std::byte> left = content_.subspan(position_);
  detail::SectionHead head;
  check<LoadError>(left.size() >= sizeof head, name_, ": expected ", what, " at byte ", position_,
                   ", but the file has ", content_.size(), " bytes: it is cut off");
  std::memcpy(&head, left.data(), sizeof head);
  check<LoadError>(head.size <= left.size() - sizeof head, name_, ": expected ", head.size,
                   " bytes of ", what, " after byte ", position_ + sizeof head,
                   ", but the file has ", content_.size(), " bytes: it is cut off or altered");
  const std::span<const std::byte> bytes =
      left.subspan(sizeof head, static_cast<std::size_t>(head.size));
  const std::uint64_t checksum = detail::section_checksum(bytes, position_);
  check<LoadError>(checksum == head.checksum, name_, ": ", what, " at byte ", position_,
                   " should have checksum ", head.checksum, " and has ", checksum,
                   ": the file is altered");
  position_ += sizeof head + bytes.size();
  return bytes;
}

NANOVLLM_INLINE void SectionReader::finish() const {
  check<LoadError>(position_ == content_.size(), name_, ": expected ", position_, " bytes, got ",
                   content_.size());
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
