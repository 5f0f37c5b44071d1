#pragma once
/// A checkpoint as Hugging Face publishes it: a directory with config.json, tokenizer.json and the
/// weights in safetensors files.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint_like.hpp"
#include "nanovllm/io/safetensors.hpp"

namespace nanovllm {

/// A `CheckpointLike`.
class SafetensorsCheckpoint {
 public:
  explicit SafetensorsCheckpoint(std::filesystem::path directory)
      : directory_(std::move(directory)) {}

  [[nodiscard]] std::string name() const { return directory_.string(); }

  /// The content of `directory`/`file`; nothing where there is no such file.
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const;

  /// Opens `directory`/model.safetensors, or else the shards that
  /// `directory`/model.safetensors.index.json lists, and gives their tensors: shards by name, and
  /// in a shard by offset. Throws LoadError that names every missing shard, or every tensor that a
  /// shard lacks.
  ///
  /// Where there are both, the index was left by a model that was saved there before, and is
  /// ignored with a warning, as transformers (5.24) ignores it; unless it lists model.safetensors.
  ///
  /// A tensor that the index does not mention is part of the checkpoint like any other. Where the
  /// index places a tensor in one shard, a copy in another shard is ignored.
  [[nodiscard]] std::vector<CheckpointTensor> read_tensors();
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  using Index = std::unordered_map<std::string, std::string>;  ///< tensor name to shard name

  /// Reads the index file. Throws LoadError unless it maps tensor names to plain file names.
  static Index read_index(const std::filesystem::path& path);

  /// Whether the index at `path` lists `shard`; false for one that cannot be read.
  static bool lists(const std::filesystem::path& path, std::string_view shard);

  /// Maps every shard of the index, in the order of their names. `path` is the index's.
  [[nodiscard]] std::vector<CheckpointTensor> open_shards(const Index& index,
                                                          const std::filesystem::path& path);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> warnings_;
};

static_assert(CheckpointLike<SafetensorsCheckpoint>);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <set>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm {

namespace detail {

/// Adds the tensors of `file`, less those that `index` places elsewhere. Throws LoadError for one
/// that is there already.
NANOVLLM_INLINE void add_tensors(const SafetensorsFile& file,
                                 const std::unordered_map<std::string, std::string>& index,
                                 std::vector<CheckpointTensor>& tensors,
                                 std::set<std::string, std::less<>>& names) {
  const std::string shard = file.path().filename().string();
  for (const TensorInfo& tensor : file.tensors()) {
    const auto placed = index.find(tensor.name);
    if (placed != index.end() && placed->second != shard) continue;
    check<LoadError>(names.insert(tensor.name).second, "tensor '", tensor.name,
                     "' is in two shards, '", shard, "' among them, and the index names neither");
    tensors.push_back({.name = tensor.name,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .data = file.data(tensor),
                       .mapping = file.mapping()});
  }
}

}  // namespace detail

NANOVLLM_INLINE std::optional<std::string> SafetensorsCheckpoint::text(
    std::string_view file) const {
  const std::filesystem::path path = directory_ / file;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return std::string(MappedFile(path).text());
}

NANOVLLM_INLINE std::vector<CheckpointTensor> SafetensorsCheckpoint::read_tensors() {
  const auto index = directory_ / "model.safetensors.index.json";
  const auto single = directory_ / "model.safetensors";
  files_.clear();
  warnings_.clear();
  if (std::filesystem::exists(index)) {
    if (!std::filesystem::exists(single) || lists(index, "model.safetensors"))
      return open_shards(read_index(index), index);
    warnings_.push_back(concat("'", index.string(),
                               "' is ignored: it does not list model.safetensors, which is there"));
  }
  check<LoadError>(std::filesystem::exists(single), "'", directory_.string(),
                   "' holds neither model.safetensors.index.json nor model.safetensors");
  files_.emplace_back(single);
  std::vector<CheckpointTensor> out;
  std::set<std::string, std::less<>> names;
  detail::add_tensors(files_.front(), {}, out, names);
  return out;
}

NANOVLLM_INLINE SafetensorsCheckpoint::Index SafetensorsCheckpoint::read_index(
    const std::filesystem::path& path) {
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

NANOVLLM_INLINE bool SafetensorsCheckpoint::lists(const std::filesystem::path& path,
                                                  std::string_view shard) {
  try {
    const Index index = read_index(path);
    return std::ranges::any_of(index, [&](const auto& entry) { return entry.second == shard; });
  } catch (const LoadError&) {
    return false;
  }
}

NANOVLLM_INLINE std::vector<CheckpointTensor> SafetensorsCheckpoint::open_shards(
    const Index& index, const std::filesystem::path& path) {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  std::string missing;
  for (const std::string& shard : shards) {
    if (!std::filesystem::exists(directory_ / shard)) missing += concat(" '", shard, "'");
  }
  check<LoadError>(missing.empty(), "'", path.string(),
                   "' lists shards that are missing:", missing);
  files_.reserve(shards.size());
  std::vector<CheckpointTensor> out;
  std::set<std::string, std::less<>> names;
  for (const std::string& shard : shards)
    detail::add_tensors(files_.emplace_back(directory_ / shard), index, out, names);

  std::set<std::string_view> lacking;
  for (const auto& [tensor, shard] : index) {
    if (!names.contains(tensor)) lacking.insert(tensor);
  }
  std::string list;
  for (const std::string_view tensor : lacking) {
    list += concat("\n  '", tensor, "' in '", index.at(std::string(tensor)), "'");
  }
  check<LoadError>(list.empty(), "'", path.string(),
                   "' names tensors that their shard lacks:", list);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
