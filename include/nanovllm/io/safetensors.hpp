#pragma once
/// Reads safetensors: one file, or a directory that holds one file or an index of shards.
///
/// A file is a little-endian u64 n, n bytes of JSON, then the tensors' bytes. The checks, their
/// order and their names are those of the format's own library, so that a file is refused here for
/// the reason it is refused there. (Two forms that the library's JSON layer takes by accident, an
/// entry written as an array and a dtype written as an object, are refused.)

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/io/safetensors_header.hpp"

namespace nanovllm {

/// One safetensors file, mapped into memory. Moving it keeps every view valid. Const members may be
/// called from several threads at once.
class SafetensorsFile {
 public:
  /// Maps and checks the file at `path`. Throws LoadError when it cannot be read, SafetensorsError
  /// when it is not valid; both name the path.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// Checks a file that is already in memory; `bytes` must outlive the result. Throws
  /// SafetensorsError.
  [[nodiscard]] static SafetensorsFile parse(std::span<const std::byte> bytes) {
    SafetensorsFile out;
    out.read(bytes);
    return out;
  }

  /// Empty when the file was parsed from memory.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Every tensor, in the order of their bytes in the file.
  [[nodiscard]] std::span<const TensorInfo> tensors() const { return tensors_; }

  /// The tensor of that name, or null. Constant time.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

  /// The bytes of one of `tensors()`. They may lie at any address: copy, do not cast.
  [[nodiscard]] std::span<const std::byte> data(const TensorInfo& tensor) const {
    return data_.subspan(tensor.begin, tensor.end - tensor.begin);
  }

  /// Maps the pages of `part`, a part of the mapping, in one go; see MappedFile::prefetch.
  void prefetch(std::span<const std::byte> part) const {
    if (!file_.bytes().empty()) file_.prefetch(part);
  }

  /// Stops counting `part` of the mapping as resident memory; see MappedFile::release.
  void release(std::span<const std::byte> part) const {
    if (!file_.bytes().empty()) file_.release(part);
  }

 private:
  SafetensorsFile() = default;

  void read(std::span<const std::byte> bytes);

  MappedFile file_;
  std::filesystem::path path_;
  std::span<const std::byte> data_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  ///< keys view `tensors_`
};

/// All tensors of a checkpoint directory. Const members may be called from several threads at once.
class Checkpoint {
 public:
  /// A tensor and the file that holds it.
  struct Entry {
    const TensorInfo* tensor = nullptr;
    const SafetensorsFile* file = nullptr;

    [[nodiscard]] std::span<const std::byte> data() const { return file->data(*tensor); }
  };

  /// Opens the shards that `directory`/model.safetensors.index.json lists, or else
  /// `directory`/model.safetensors. Throws LoadError that names every missing shard, or every
  /// tensor that a shard lacks.
  ///
  /// A tensor that the index does not mention is part of the checkpoint like any other. Where the
  /// index places a tensor in one shard, a copy in another shard is ignored.
  explicit Checkpoint(const std::filesystem::path& directory);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

  /// Every tensor: shards by name, and in a shard by offset.
  [[nodiscard]] std::span<const Entry> tensors() const { return entries_; }

  /// The tensor of that name, or null. Constant time.
  [[nodiscard]] const Entry* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &entries_[found->second];
  }

  /// Bytes of all tensors, headers not counted.
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  using Index = std::unordered_map<std::string, std::string>;  ///< tensor name to shard name

  /// Reads the index file. Throws LoadError unless it maps tensor names to plain file names.
  static Index read_index(const std::filesystem::path& path);

  /// Maps every shard of the index, in the order of their names.
  void open_shards(const Index& index, const std::filesystem::path& path);

  /// Takes in the tensors of `file`, less those that `index` places elsewhere.
  void add_tensors(const SafetensorsFile& file, const Index& index);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<Entry> entries_;  ///< views `files_`
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/io/safetensors.inc"
#endif
