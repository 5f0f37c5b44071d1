#pragma once
/// Matrices of packed integers, as those know them who read none: by their names, and by what
/// packed_integers.hpp makes of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/int_weight.hpp"

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

/// A matrix [rows, columns] of packed integers as its loader reads it. Rows and columns are counted
/// in the whole matrix.
class PackedRows {
 public:
  static constexpr std::int64_t kAtOnce = 128;  ///< rows; a multiple of them is read faster

  explicit PackedRows(const CheckpointTensor& words) : words_(words) {}
  PackedRows(const PackedRows&) = delete;
  PackedRows& operator=(const PackedRows&) = delete;
  virtual ~PackedRows() = default;

  /// The tensor with the codes.
  [[nodiscard]] const CheckpointTensor& words() const { return words_; }

  /// The part of its data that has `count` rows from `row` on, in columns [first, first + num).
  [[nodiscard]] virtual std::span<const std::byte> bytes_of(std::int64_t row, std::int64_t count,
                                                            std::int64_t first,
                                                            std::int64_t num) const = 0;
  /// Whether that part is those rows' alone, or that of all rows.
  [[nodiscard]] virtual bool is_row_major() const = 0;
  /// Bytes of the codes of so many elements.
  [[nodiscard]] virtual std::uint64_t stored_bytes(std::int64_t num_rows,
                                                   std::int64_t num_columns) const = 0;

  /// These rows and columns as integers. Refers to this.
  [[nodiscard]] virtual IntRows rows_of(std::int64_t row, std::int64_t count, std::int64_t first,
                                        std::int64_t num) const = 0;

  /// out = these elements, dense rows, a float32 each that is rounded to nearest even.
  virtual void dequantise(std::int64_t row, std::int64_t count, std::int64_t first,
                          std::int64_t num, float* out) const = 0;
  virtual void dequantise(std::int64_t row, std::int64_t count, std::int64_t first,
                          std::int64_t num, half* out) const = 0;
  virtual void dequantise(std::int64_t row, std::int64_t count, std::int64_t first,
                          std::int64_t num, bf16* out) const = 0;

 private:
  const CheckpointTensor& words_;
};

// The bodies of these are in the part kPackedPart.

/// What is wrong with the tensors of `name`, which is packed and must have `shape`; empty if
/// nothing.
[[nodiscard]] std::string packed_problem(const Checkpoint& checkpoint, const std::string& name,
                                         const std::vector<std::int64_t>& shape,
                                         const QuantizationConfig& config);
NANOVLLM_DOOR(packed_problem);

/// The names of the tensors that belong to packed matrix `name`; they are the checkpoint's.
[[nodiscard]] std::set<std::string_view> packed_names(const Checkpoint& checkpoint,
                                                      const std::string& name);
NANOVLLM_DOOR(packed_names);

/// Matrix `name`, which has no problem; null where it is not packed.
[[nodiscard]] std::shared_ptr<const PackedRows> packed_rows(const Checkpoint& checkpoint,
                                                            const std::string& name,
                                                            const std::vector<std::int64_t>& shape,
                                                            const QuantizationConfig& config);
NANOVLLM_DOOR(packed_rows);

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
    case FileDType::u8:
    case FileDType::i8:
    case FileDType::i32:
      return tensor.name.ends_with("_proj.weight") || tensor.name.ends_with("_proj");
    default: return false;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
