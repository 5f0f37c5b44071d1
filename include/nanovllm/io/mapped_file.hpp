#pragma once
/// A file mapped read-only into memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Owns a read-only mapping of a whole file. Pages are read from disk when first touched and can be
/// given back with `release`, so a file larger than memory can be streamed through.
///
/// Shrinking the file while it is mapped is undefined (the kernel raises SIGBUS). Every const
/// member may be called from several threads at once.
class MappedFile {
 public:
  MappedFile() = default;

  /// Maps `path`. Throws LoadError naming the path when it cannot be opened or is not a regular
  /// file. An empty file gives an empty span.
  explicit MappedFile(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(path, "open");
    struct stat status {};
    if (::fstat(file, &status) != 0) {
      const int error = errno;
      ::close(file);
      errno = error;
      fail(path, "stat");
    }
    if (!S_ISREG(status.st_mode)) {
      ::close(file);
      throw LoadError(concat("'", path.string(), "' is not a regular file"));
    }
    size_ = static_cast<std::size_t>(status.st_size);
    void* address = nullptr;
    if (size_ > 0) address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    const int error = errno;
    ::close(file);  // the mapping keeps the file alive
    errno = error;
    if (address == MAP_FAILED) fail(path, "map");
    data_ = static_cast<const std::byte*>(address);
  }

  ~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  /// The whole file, valid as long as this object lives. The start is page-aligned.
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// The whole file as characters.
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(data_), size_};
  }

  /// Tells the kernel that the file is read front to back, so that it reads further ahead.
  void advise_sequential() const {
    if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_SEQUENTIAL);
  }

  /// Maps the pages of `part`, a part of `bytes()`, in one go where the kernel can (Linux 5.14):
  /// cheaper than one fault for every few pages. Never fails.
  void prefetch(std::span<const std::byte> part) const {
#if defined(MADV_POPULATE_READ)
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = static_cast<std::size_t>(part.data() - data_) / page * page;
    const auto end = static_cast<std::size_t>(part.data() - data_) + part.size();
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_POPULATE_READ);
#else
    static_cast<void>(part);
#endif
  }

  /// Stops counting `part`, a part of `bytes()`, as this process's resident memory. The bytes stay
  /// readable and usually stay in the page cache. A page that `part` only begins is kept, because a
  /// front-to-back reader needs it next.
  void release(std::span<const std::byte> part) const {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto offset = static_cast<std::size_t>(part.data() - data_);
    const std::size_t begin = offset / page * page;
    const std::size_t stop = offset + part.size();
    const std::size_t end = stop == size_ ? stop : stop / page * page;
    if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path, const char* action) {
    throw LoadError(concat("cannot ", action, " '", path.string(),
                           "': ", std::generic_category().message(errno)));
  }

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace nanovllm
