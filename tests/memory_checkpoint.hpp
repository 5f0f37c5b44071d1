#pragma once
/// A kind of checkpoint without files: texts and tensors in memory.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/io/checkpoint_like.hpp"

namespace nanovllm_test {

class MemoryCheckpoint {
 public:
  std::map<std::string, std::string, std::less<>> texts;
  int num_reads = 0;

  /// `data` are the tensor's bytes, which may be `blocks`.
  void add(const std::string& name, nanovllm::FileDType dtype, std::vector<std::uint64_t> shape,
           std::string data, const nanovllm::BlockFormat* blocks = nullptr) {
    tensors_.push_back({name, dtype, std::move(shape), std::move(data), blocks});
  }

  /// The texts and tensors of another checkpoint, in this object's memory.
  template <class Other>
  static MemoryCheckpoint copy_of(const Other& other) {
    MemoryCheckpoint out;
    for (const char* file : {"config.json", "generation_config.json", "tokenizer.json"})
      if (auto text = other.text(file)) out.texts[file] = *std::move(text);
    for (const nanovllm::CheckpointTensor& tensor : other.tensors()) {
      const auto* bytes = reinterpret_cast<const char*>(tensor.data.data());
      out.add(tensor.name, tensor.dtype, tensor.shape, std::string(bytes, tensor.data.size()),
              tensor.blocks);
    }
    return out;
  }

  // A CheckpointLike.
  [[nodiscard]] std::string name() const { return "memory"; }
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const {
    const auto found = texts.find(file);
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] std::vector<nanovllm::CheckpointTensor> read_tensors() {
    ++num_reads;
    std::vector<nanovllm::CheckpointTensor> out;
    for (const Tensor& tensor : tensors_)
      out.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .data = std::as_bytes(std::span(tensor.data)),
                     .blocks = tensor.blocks});
    return out;
  }

 private:
  struct Tensor {
    std::string name;
    nanovllm::FileDType dtype;
    std::vector<std::uint64_t> shape;
    std::string data;
    const nanovllm::BlockFormat* blocks;
  };
  std::vector<Tensor> tensors_;
};

}  // namespace nanovllm_test
