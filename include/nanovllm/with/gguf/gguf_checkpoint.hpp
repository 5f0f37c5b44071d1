#pragma once
/// A checkpoint in one GGUF file: metadata, vocabulary and weights, as llama.cpp has them. A
/// header-only program that includes this opens them as `EngineConfig::model`.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"
#include "nanovllm/model/qwen3/config.hpp"  // its table
#include "nanovllm/with/gguf/gguf_file.hpp"

namespace nanovllm {

/// A tensor's name in the checkpoints of Hugging Face. Of a tensor with the matrices of all experts
/// it has a gap for the number of one: `name` is "model.layers.3.mlp.experts." and `rest`
/// ".up_proj.weight".
struct GgufTensorName {
  std::string name{};
  std::optional<std::string> rest{};  ///< of a tensor of experts
};

/// The name of `tensor` in a file of that architecture, by the FamilyTable of that name; a program
/// has those of the families that it includes. One that is not known, and every one of other
/// architectures, stays as it is, so that a loader names it.
[[nodiscard]] GgufTensorName gguf_tensor_name(std::string_view architecture,
                                              std::string_view tensor);

/// A `CheckpointLike`: texts and tensors have the names and forms that they have in a directory of
/// Hugging Face.
///
/// - Types of tensors: F32, F16 and BF16, and Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K,
///   IQ4_NL and IQ4_XS as blocks (`CheckpointTensor::blocks`), in any mixture.
/// - Matrices of all experts of a layer become one tensor for each expert, which refers to its part
///   of the file.
/// - GPT-2's dense layers are [out, in] here and [in, out] in a directory; `Gpt2Weights` takes
///   both. Qwen3's heads have the same order of elements in both.
class GgufCheckpoint {
 public:
  /// Maps the file and checks all but the values. Throws LoadError that names the path.
  explicit GgufCheckpoint(const std::filesystem::path& path);

  /// Of a file that has been read.
  explicit GgufCheckpoint(GgufFile file) : file_(std::make_unique<GgufFile>(std::move(file))) {}

  [[nodiscard]] std::string name() const { return file_->name(); }

  /// config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
  /// chat_template.jinja, made of the metadata (gguf_config.hpp, gguf_tokenizer.hpp).
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const;

  /// Throws LoadError for a tensor of another type, with a list of those that can be read.
  [[nodiscard]] std::vector<CheckpointTensor> read_tensors() const;

 private:
  std::unique_ptr<GgufFile> file_;  // stays where it is when this moves: tensors refer to it
};

static_assert(CheckpointLike<GgufCheckpoint>);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/with/gguf/gguf_blocks.hpp"
#include "nanovllm/with/gguf/gguf_config.hpp"
#include "nanovllm/with/gguf/gguf_tokenizer.hpp"
#include "nanovllm/with/gguf/gguf_types.hpp"

namespace nanovllm {

NANOVLLM_INLINE GgufTensorName gguf_tensor_name(std::string_view architecture,
                                                std::string_view tensor) {
  constexpr std::string_view kBlock = "blk.";
  const std::size_t dot = std::min(tensor.rfind('.'), tensor.size());
  const std::string_view module = tensor.substr(0, dot), end = tensor.substr(dot);
  const std::size_t after = module.find('.', kBlock.size());
  const bool in_layer = module.starts_with(kBlock) && after != module.npos;
  const std::string_view layer =
      in_layer ? module.substr(kBlock.size(), after - kBlock.size()) : "";
  const std::string key =
      in_layer ? concat(kBlock, "#", module.substr(after)) : std::string(module);
  const FamilyModule* const found = FamilyTable::find(architecture, key);
  if (found == nullptr || end.empty()) return {std::string(tensor)};
  const std::string name = concat(with_number(found->name, layer), end);
  const std::size_t gap = name.find('#');
  if (gap == name.npos) return {name};
  return {name.substr(0, gap), name.substr(gap + 1)};
}

namespace detail {

/// The tensor as a loader knows it, with the name that it has in the file.
NANOVLLM_INLINE CheckpointTensor gguf_tensor(const GgufFile& file, const GgufTensor& tensor) {
  CheckpointTensor out{.name = std::string(tensor.name),
                       .dtype = FileDType::u8,
                       .shape = tensor.shape,
                       .data = file.data(tensor),
                       .mapping = file.mapping()};
  for (const FileDType dtype : {FileDType::f32, FileDType::f16, FileDType::bf16}) {
    if (tensor.type->name != name(dtype)) continue;
    out.dtype = dtype;
    return out;
  }
  out.blocks = find_gguf_blocks(*tensor.type);
  check<LoadError>(out.blocks != nullptr, "'", file.name(), "': the tensor '", tensor.name, "' is ",
                   tensor.type->name,
                   "; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, "
                   "IQ4_NL, IQ4_XS");
  return out;
}

/// Adds a tensor for each expert of `stacked`, [experts, rows, columns].
NANOVLLM_INLINE void add_gguf_experts(const GgufFile& file, const CheckpointTensor& stacked,
                                      const GgufTensorName& name,
                                      std::vector<CheckpointTensor>& out) {
  constexpr std::uint64_t kMostExperts = 1 << 12;  // each becomes a tensor with a name
  check<LoadError>(
      stacked.shape.size() == 3 && !stacked.data.empty() && stacked.shape[0] <= kMostExperts, "'",
      file.name(), "': the tensor '", stacked.name,
      "' must be [experts, rows, columns], none of them 0 and at most ", kMostExperts,
      " experts, got ", shape_string(stacked.shape));
  const std::uint64_t experts = stacked.shape[0];
  for (std::uint64_t e = 0; e < experts; ++e) {
    const std::size_t size = stacked.data.size() / experts;
    CheckpointTensor expert = stacked;
    expert.name = concat(name.name, e, *name.rest);
    expert.shape.erase(expert.shape.begin());
    expert.data = stacked.data.subspan(e * size, size);
    out.push_back(std::move(expert));
  }
}

}  // namespace detail

NANOVLLM_INLINE GgufCheckpoint::GgufCheckpoint(const std::filesystem::path& path)
    : file_(std::make_unique<GgufFile>(path)) {
  constexpr const char* kParts = "split.count";
  const auto parts = file_->metadata().integer(kParts);
  check<LoadError>(parts.value_or(1) <= 1, "'", name(), "': '", kParts, "' is ", parts.value_or(1),
                   ": the checkpoint is in several files; only one file is supported");
}

NANOVLLM_INLINE std::optional<std::string> GgufCheckpoint::text(std::string_view file) const {
  if (file == "config.json") return gguf_config_json(*file_);
  if (file == "generation_config.json") return gguf_generation_json(*file_);
  if (file == "tokenizer.json") return gguf_tokenizer_json(*file_);
  if (file == "tokenizer_config.json") return gguf_tokenizer_config_json(*file_);
  if (file == "chat_template.jinja") return gguf_chat_template(*file_);
  return std::nullopt;
}

NANOVLLM_INLINE std::vector<CheckpointTensor> GgufCheckpoint::read_tensors() const {
  const std::string_view architecture = gguf_architecture(*file_);
  std::vector<CheckpointTensor> out;
  for (const GgufTensor& tensor : file_->tensors()) {
    CheckpointTensor read = detail::gguf_tensor(*file_, tensor);
    GgufTensorName name = gguf_tensor_name(architecture, tensor.name);
    if (name.rest) {
      detail::add_gguf_experts(*file_, read, name, out);
      continue;
    }
    read.name = std::move(name.name);
    out.push_back(std::move(read));
  }
  return out;
}

namespace detail {

NANOVLLM_INLINE Checkpoint open_gguf(const std::filesystem::path& path) {
  return Checkpoint(GgufCheckpoint(path));
}

NANOVLLM_OPEN_DOOR(open_gguf);

}  // namespace detail

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
