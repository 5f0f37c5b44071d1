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

#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "nanovllm/io/json.hpp"

namespace nanovllm {

NANOVLLM_INLINE SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), path_(path) {
  try {
    read(file_.bytes());
  } catch (const SafetensorsError& error) {
    throw SafetensorsError(error.kind, concat("'", path.string(), "': ", error.what()));
  }
  file_.advise_sequential();
}

NANOVLLM_INLINE void SafetensorsFile::read(std::span<const std::byte> bytes) {
  using Kind = SafetensorsError::Kind;
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
  std::uint64_t n = 0;
  if (bytes.size() < sizeof n) {
    throw SafetensorsError(Kind::header_too_small,
                           concat("a file has at least 8 bytes, got ", bytes.size()));
  }
  std::memcpy(&n, bytes.data(), sizeof n);
  if (n > kMaxHeaderBytes) {
    throw SafetensorsError(Kind::header_too_large, concat("the header may have ", kMaxHeaderBytes,
                                                          " bytes, but claims ", n));
  }
  if (n > bytes.size() - sizeof n) {
    throw SafetensorsError(
        Kind::invalid_header_length,
        concat("the header claims ", n, " bytes, but ", bytes.size() - sizeof n, " follow"));
  }
  const auto header = bytes.subspan(sizeof n, n);
  data_ = bytes.subspan(sizeof n + n);
  tensors_ = detail::parse_safetensors_header(
      {reinterpret_cast<const char*>(header.data()), header.size()}, data_.size());
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

NANOVLLM_INLINE Checkpoint::Checkpoint(const std::filesystem::path& directory)
    : directory_(directory) {
  const auto index = directory / "model.safetensors.index.json";
  const auto single = directory / "model.safetensors";
  if (std::filesystem::exists(index)) {
    open_shards(read_index(index), index);
  } else {
    check<LoadError>(std::filesystem::exists(single), "'", directory.string(),
                     "' holds neither model.safetensors.index.json nor model.safetensors");
    files_.emplace_back(single);
    add_tensors(files_.front(), {});
  }
  for (const Entry& entry : entries_) total_bytes_ += entry.tensor->end - entry.tensor->begin;
}

NANOVLLM_INLINE Checkpoint::Index Checkpoint::read_index(const std::filesystem::path& path) {
  const MappedFile file(path);
  const Json json = parse_json<LoadError>(file.text(), concat("'", path.string(), "'"));
  const Json* map = json.find("weight_map");
  check<LoadError>(map != nullptr && map->is_object(), "'", path.string(),
                   "' must be an object with an object 'weight_map'");
  Index index;
  for (const auto& [tensor, shard] : map->items()) {
    check<LoadError>(shard.is_string(), "'", path.string(), "': the shard of '", tensor,
                     "' must be a string");
    const std::string& name = shard.string();
    constexpr std::string_view kForbidden("/\\\0", 3);  // a shard lies in the same directory
    check<LoadError>(
        !name.empty() && name != "." && name != ".." && name.find_first_of(kForbidden) == name.npos,
        "'", path.string(), "': the shard of '", tensor,
        "' must be a file name without a path, got '", name, "'");
    index.emplace(tensor, name);
  }
  return index;
}

NANOVLLM_INLINE void Checkpoint::open_shards(const Index& index,
                                             const std::filesystem::path& path) {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  std::string missing;
  for (const std::string& shard : shards) {
    if (!std::filesystem::exists(directory_ / shard)) missing += concat(" '", shard, "'");
  }
  check<LoadError>(missing.empty(), "'", path.string(),
                   "' lists shards that are missing:", missing);
  files_.reserve(shards.size());
  for (const std::string& shard : shards)
    add_tensors(files_.emplace_back(directory_ / shard), index);

  std::set<std::string_view> lacking;
  for (const auto& [tensor, shard] : index) {
    if (!by_name_.contains(tensor)) lacking.insert(tensor);
  }
  std::string list;
  for (const std::string_view tensor : lacking) {
    list += concat("\n  '", tensor, "' in '", index.at(std::string(tensor)), "'");
  }
  check<LoadError>(list.empty(), "'", path.string(),
                   "' names tensors that their shard lacks:", list);
}

NANOVLLM_INLINE void Checkpoint::add_tensors(const SafetensorsFile& file, const Index& index) {
  const std::string shard = file.path().filename().string();
  for (const TensorInfo& tensor : file.tensors()) {
    const auto placed = index.find(tensor.name);
    if (placed != index.end() && placed->second != shard) continue;
    const bool added = by_name_.emplace(tensor.name, entries_.size()).second;
    check<LoadError>(added, "tensor '", tensor.name, "' is in two shards, '", shard,
                     "' among them, and the index names neither");
    entries_.push_back({&tensor, &file});
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
