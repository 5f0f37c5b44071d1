#pragma once
/// Checkpoints whose tensors are named in another way than loaders of Qwen3 ask for: those of a
/// decoder without a head, such as Qwen3-Embedding's, which have no `model.` in front of their
/// names.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"

namespace nanovllm {

/// Another checkpoint, with `model.` in front of all names but those of heads. A CheckpointLike.
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
      if (!tensor.name.starts_with("lm_head.") && !tensor.name.starts_with("score."))
        tensor.name.insert(0, "model.");
    }
    return out;
  }

 private:
  Checkpoint base_;
};

/// Whether the tensors' names lack `model.`: what was saved is a decoder without a head.
[[nodiscard]] inline bool lacks_model_prefix(const Checkpoint& checkpoint) {
  return checkpoint.find("embed_tokens.weight") != nullptr;
}

/// `checkpoint`, with `model.` in front of its tensors' names if they lack it.
[[nodiscard]] inline Checkpoint with_model_prefix(const Checkpoint& checkpoint) {
  return lacks_model_prefix(checkpoint) ? Checkpoint(PrefixedCheckpoint(checkpoint), checkpoint)
                                        : checkpoint;
}

}  // namespace nanovllm
