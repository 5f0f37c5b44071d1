#pragma once
/// Mixtures of experts that have the matrices of all experts of a layer in one tensor, as modules
/// of transformers 5 have them: `mlp.experts.gate_up_proj`, [experts, 2 · width, hidden], and
/// `mlp.experts.down_proj`, [experts, hidden, width].

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"

namespace nanovllm {

/// Another checkpoint, in which each expert has tensors of its own: `experts.3.gate_proj.weight`.
/// They refer to their parts of the others. Blocks of scales of 8-bit floats are divided likewise.
/// A CheckpointLike.
class SeparateExperts {
 public:
  explicit SeparateExperts(Checkpoint base) : base_(std::move(base)) {}

  [[nodiscard]] std::string name() const { return base_.name(); }
  [[nodiscard]] std::optional<std::string> text(std::string_view file) const {
    return base_.text(file);
  }
  /// Throws LoadError for a fused tensor of another shape.
  [[nodiscard]] std::vector<CheckpointTensor> read_tensors() const;

 private:
  Checkpoint base_;
};

/// `checkpoint`, with tensors of their own for the experts if they are fused.
[[nodiscard]] Checkpoint with_separate_experts(const Checkpoint& checkpoint);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

namespace detail {

/// What the name of a fused tensor says.
struct FusedName {
  std::string_view experts;           ///< "model.layers.3.mlp.experts."
  std::vector<const char*> matrices;  ///< each has an equal part of the rows
  std::string_view suffix;            ///< ".weight", ".weight_scale_inv"
};

/// Nothing for other tensors.
[[nodiscard]] NANOVLLM_INLINE std::optional<FusedName> fused_name(std::string_view name) {
  constexpr std::string_view kModule = ".mlp.experts.";
  const std::size_t found = name.find(kModule);
  if (found == name.npos) return std::nullopt;
  FusedName out{.experts = name.substr(0, found + kModule.size()), .matrices = {}, .suffix = {}};
  std::string_view rest = name.substr(out.experts.size());
  for (const std::string_view matrix : {"gate_up_proj", "down_proj"}) {
    if (!rest.starts_with(matrix)) continue;
    if (matrix == "gate_up_proj") {
      out.matrices = {"gate_proj", "up_proj"};
    } else {
      out.matrices = {"down_proj"};
    }
    rest.remove_prefix(matrix.size());
    if (rest.starts_with(".weight")) rest.remove_prefix(7);
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSuffixes{
        {{"", ".weight"}, {"_scale_inv", ".weight_scale_inv"}, {"_scale", ".weight_scale"}}};
    for (const auto& [fused, separate] : kSuffixes) {
      if (rest == fused) out.suffix = separate;
    }
    return out.suffix.empty() ? std::nullopt : std::optional(out);
  }
  return std::nullopt;
}

/// Adds the parts of `fused`, [experts, rows, columns].
NANOVLLM_INLINE void add_experts(const Checkpoint& checkpoint, const CheckpointTensor& fused,
                                 const FusedName& name, std::vector<CheckpointTensor>& out) {
  constexpr std::uint64_t kMostExperts = 1 << 12;  // each becomes a tensor with a name
  const std::uint64_t parts = name.matrices.size();
  const bool fits = fused.shape.size() == 3 && !fused.data.empty() &&
                    fused.shape[0] <= kMostExperts && fused.shape[1] % parts == 0;
  check<LoadError>(fits, "'", checkpoint.name(), "': the tensor '", fused.name,
                   "' must be [experts, rows, columns], of at most ", kMostExperts,
                   parts == 2 ? " experts and with an even number of rows, got " : " experts, got ",
                   shape_string(fused.shape));
  const std::size_t size = fused.data.size() / fused.shape[0] / parts;
  std::size_t begin = 0;
  for (std::uint64_t e = 0; e < fused.shape[0]; ++e) {
    for (const char* const matrix : name.matrices) {
      CheckpointTensor part = fused;
      part.name = concat(name.experts, e, ".", matrix, name.suffix);
      part.shape = {fused.shape[1] / parts, fused.shape[2]};
      part.data = fused.data.subspan(begin, size);
      out.push_back(std::move(part));
      begin += size;
    }
  }
}

}  // namespace detail

NANOVLLM_INLINE std::vector<CheckpointTensor> SeparateExperts::read_tensors() const {
  std::vector<CheckpointTensor> out;
  for (const CheckpointTensor& tensor : base_.tensors()) {
    if (const auto name = detail::fused_name(tensor.name)) {
      detail::add_experts(base_, tensor, *name, out);
    } else {
      out.push_back(tensor);
    }
  }
  return out;
}

NANOVLLM_INLINE Checkpoint with_separate_experts(const Checkpoint& checkpoint) {
  const auto is_fused = [](const CheckpointTensor& tensor) {
    return detail::fused_name(tensor.name).has_value();
  };
  if (std::ranges::none_of(checkpoint.tensors(), is_fused)) return checkpoint;
  return Checkpoint(SeparateExperts(checkpoint), checkpoint);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
