#pragma once
/// Checkpoints of a decoder without a head, such as Qwen3-Embedding's, whose tensors have no
/// `model.` in front of their names.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"

namespace nanovllm {

/// Another checkpoint, with `model.` in front of all names but that of lm_head. A CheckpointLike.
class PrefixedCheckpoint {
 public:
  explicit PrefixedCheckpoint(Checkpoint base) : base_(std::move(base)) {}

  [[nodiscard]] std::string name() const { return base_.name(); }
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const {
    return base_.text(file);
  }
  [[nodiscard]] std::vector<CheckpointTensor> read_tensors() {
    std::vector<CheckpointTensor> out(base_.tensors().begin(), base_.tensors().end());
    for (CheckpointTensor& tensor : out) {
      if (!tensor.name.starts_with("lm_head.")) tensor.name.insert(0, "model.");
    }
    return out;
  }

 private:
  Checkpoint base_;
};

/// `checkpoint`, with `model.` in front of its tensors' names if they lack it.
[[nodiscard]] inline Checkpoint with_model_prefix(const Checkpoint& checkpoint) {
  constexpr const char* kTable = "embed_tokens.weight";
  const bool lacks_it = checkpoint.find(kTable) != nullptr;
  return lacks_it ? Checkpoint(PrefixedCheckpoint(checkpoint)) : checkpoint;
}

}  // namespace nanovllm
