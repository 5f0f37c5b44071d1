#pragma once
/// Matrices of packed integers, as those know them who read none: by their names, and by what
/// packed_integers.hpp makes of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"

namespace nanovllm {

/// The tensor of codes of matrix `name`, "m.weight": `m.qweight` of AWQ and GPTQ, or
/// `m.weight_packed` of compressed-tensors. Null where there is neither.
[[nodiscard]] const CheckpointTensor* find_packed(const Checkpoint& checkpoint,
                                                  const std::string& name);

/// Whether `tensor` is the bias of a packed matrix, of zeros alone. AutoGPTQ writes one for every
/// matrix.
[[nodiscard]] bool is_zero_bias(const Checkpoint& checkpoint, const CheckpointTensor& tensor);

/// Whether a tensor of this name has the codes of a packed matrix.
[[nodiscard]] bool is_packed_name(std::string_view name);

/// Whether `tensor` cannot be read without "quantization_config": it is of 8-bit floats, has the
/// codes of a packed matrix, or is a weight in integers of another kind.
[[nodiscard]] bool needs_quantization(const CheckpointTensor& tensor);

// The bodies of these are in the part kPackedPart.

/// What is wrong with the tensors of `name`, which is packed and must have `shape`; empty if
/// nothing.
[[nodiscard]] std::string packed_problem(const Checkpoint& checkpoint, const std::string& name,
                                         const std::vector<std::int64_t>& shape,
                                         const QuantizationConfig& config);
NANOVLLM_DOOR(packed_problem);

/// The names of the tensors that belong to packed matrix `name`; they are the checkpoint's.
[[nodiscard]] std::vector<std::string_view> packed_names(const Checkpoint& checkpoint,
                                                         const std::string& name);
NANOVLLM_DOOR(packed_names);

/// Matrix `name`, which has no problem.
[[nodiscard]] std::shared_ptr<const detail::StoredMatrix> packed_matrix(
    const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape,
    const QuantizationConfig& config);
NANOVLLM_DOOR(packed_matrix);

namespace detail {

/// "m" of "m.weight".
[[nodiscard]] std::string module_of(const std::string& name);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>

#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm {

namespace detail {

NANOVLLM_INLINE std::string module_of(const std::string& name) {
  constexpr std::string_view kSuffix = ".weight";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

}  // namespace detail

NANOVLLM_INLINE const CheckpointTensor* find_packed(const Checkpoint& checkpoint,
                                                    const std::string& name) {
  const std::string module = detail::module_of(name);
  const CheckpointTensor* const words = checkpoint.find(module + ".qweight");
  return words != nullptr ? words : checkpoint.find(module + ".weight_packed");
}

NANOVLLM_INLINE bool is_zero_bias(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  constexpr std::string_view kSuffix = ".bias";
  if (!tensor.name.ends_with(kSuffix)) return false;
  const std::string module = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
  return checkpoint.find(module + ".qweight") != nullptr &&
         std::ranges::all_of(tensor.data, [](std::byte b) { return b == std::byte{0}; });
}

NANOVLLM_INLINE bool is_packed_name(std::string_view name) {
  return name.ends_with(".qweight") || name.ends_with(".weight_packed");
}

NANOVLLM_INLINE bool needs_quantization(const CheckpointTensor& tensor) {
  if (tensor.blocks != nullptr) return false;
  if (is_packed_name(tensor.name)) return true;
  switch (tensor.dtype) {
    case FileDType::f8_e4m3:
    case FileDType::f8_e5m2: return true;
    case FileDType::i8:
      if (tensor.name.ends_with(".weight")) return true;
      [[fallthrough]];
    case FileDType::u8:
    case FileDType::i32:
      return tensor.name.ends_with("_proj.weight") || tensor.name.ends_with("_proj");
    default: return false;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
