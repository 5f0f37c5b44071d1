#pragma once
/// Files of sections, each with a checksum: what is cut off, altered or another format is refused.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm {

/// What a file of sections is: its first bytes, and the version of what is in it.
struct SectionFormat {
  std::string_view magic;  ///< 12 bytes
  std::uint32_t version = 0;
};

/// Writes a file under a temporary name beside `path` and renames it when it is whole, so that
/// there is never half a file of that name. Little-endian hosts only.
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

  /// Whether nothing comes behind what was read.
  [[nodiscard]] bool at_end() const { return position_ == content_.size(); }

  /// Nothing may come behind what was read.
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
#include "nanovllm/io/section_file.inc"
#endif
