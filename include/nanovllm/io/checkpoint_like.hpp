#pragma once
/// What a kind of checkpoint must offer, whatever its files.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm {

/// A tensor of a checkpoint, row-major.
struct CheckpointTensor {
  std::string name{};
  FileDType dtype{};                    ///< of an element; u8 where there are blocks
  std::vector<std::uint64_t> shape{};   ///< empty for a scalar; an extent may be 0
  std::span<const std::byte> data{};    ///< may lie at any address: copy, do not cast
  const MappedFile* mapping = nullptr;  ///< that `data` is a part of; null for other memory
  const BlockFormat* blocks = nullptr;  ///< of `data`; null where it has element after element

  /// "BF16", "Q4_K": what is stored, for messages.
  [[nodiscard]] std::string_view type_name() const {
    return blocks != nullptr ? blocks->name : nanovllm::name(dtype);
  }
};

/// A kind of checkpoint: what `Checkpoint` can be made of.
///
/// - `name()`: for messages, such as its path.
/// - `text(file)`: a file that Hugging Face's directories have beside the weights, by its name:
///   "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
///   "chat_template.jinja"; nothing where there is none. A kind without such files makes these
///   texts from what it has. Throws LoadError when it cannot be read.
/// - `read_tensors()`: all tensors, in the order in which they are best read. It is called once,
///   when the first of them is needed, and again if it has thrown LoadError. Their `data` is valid
///   as long as the object, also when it has moved.
///
/// - `warnings()`, optional: strings that say what of the files is ignored, known once
///   `read_tensors` has returned.
///
/// `name` and `text` may be called by several threads at once.
template <class C>
concept CheckpointLike = std::movable<C> &&
    requires(C& checkpoint, const C& constant, std::string_view file) {
  { constant.name() } -> std::convertible_to<std::string>;
  { constant.text(file) } -> std::convertible_to<std::optional<std::string>>;
  { checkpoint.read_tensors() } -> std::convertible_to<std::vector<CheckpointTensor>>;
};

}  // namespace nanovllm
