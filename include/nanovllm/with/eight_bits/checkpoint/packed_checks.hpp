#pragma once
/// Whether the tensors of matrices of packed integers fit together.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_tensors.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"

namespace nanovllm {

/// The tensors of matrix `name`, which has no problem.
[[nodiscard]] PackedTensors packed_of(const Checkpoint& checkpoint, const std::string& name,
                                      const std::vector<std::int64_t>& shape,
                                      const QuantizationConfig& config);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm {

namespace detail {

[[nodiscard]] NANOVLLM_INLINE std::string_view words_suffix(PackedLayout layout) {
  return layout == PackedLayout::compressed_tensors ? ".weight_packed" : ".qweight";
}

/// What one of the tensors must be.
struct PackedPart {
  std::string_view suffix;
  std::vector<std::int64_t> shape;
  bool is_words = true;  ///< I32; otherwise floats
  bool required = true;
};

[[nodiscard]] NANOVLLM_INLINE std::vector<PackedPart> packed_parts(const PackedFormat& format,
                                                                   std::int64_t rows,
                                                                   std::int64_t columns) {
  const std::int64_t per_word = 32 / format.bits;
  const std::int64_t groups = format.group_size ? ceil_div(columns, *format.group_size) : 1;
  switch (format.layout) {
    case PackedLayout::awq:
      return {{".qweight", {columns, rows / per_word}},
              {".qzeros", {groups, rows / per_word}},
              {".scales", {groups, rows}, false}};
    case PackedLayout::gptq:
      return {{".qweight", {columns / per_word, rows}},
              {".qzeros", {groups, ceil_div(rows, per_word)}, true, format.has_zeros},
              {".scales", {groups, rows}, false},
              {".g_idx", {columns}, true, false}};
    default: break;
  }
  std::vector<PackedPart> out{{".weight_packed", {rows, ceil_div(columns, per_word)}},
                              {".weight_scale", {rows, groups}, false}};
  if (format.has_zeros) out.push_back({".weight_zero_point", {ceil_div(rows, per_word), groups}});
  return out;
}

/// What is wrong with one of the tensors of `module`; empty if nothing.
[[nodiscard]] NANOVLLM_INLINE std::string part_problem(const Checkpoint& checkpoint,
                                                       const std::string& module,
                                                       const PackedPart& part) {
  const std::string name = concat(module, part.suffix);
  const std::string expected =
      concat("must have '", name, "', ", part.is_words ? "I32 " : "F16, BF16 or F32 ",
             shape_string(part.shape));
  const CheckpointTensor* const tensor = checkpoint.find(name);
  if (tensor == nullptr) return part.required ? expected + ", which is missing" : std::string();
  const FileDType dtype = tensor->dtype;
  const bool is_float =
      dtype == FileDType::f16 || dtype == FileDType::bf16 || dtype == FileDType::f32;
  if ((part.is_words ? dtype == FileDType::i32 : is_float) && has_shape(*tensor, part.shape))
    return {};
  return concat(expected, ", got ", tensor->type_name(), " ", shape_string(tensor->shape));
}

/// What is wrong with the order of GPTQ's columns: `g_idx` has the group of each.
[[nodiscard]] NANOVLLM_INLINE std::string order_problem(const CheckpointTensor& groups,
                                                        std::int64_t group_columns) {
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(groups.shape[0]); ++k) {
    const std::int64_t got = static_cast<std::int32_t>(word_at(groups, k));
    if (got != k / group_columns)
      return concat("has columns in the order of their activations (act-order), which is not ",
                    "supported: '", groups.name, "' has group ", got, " for column ", k,
                    ", expected ", k / group_columns);
  }
  return {};
}

/// What is wrong with `<module>.weight_shape` of compressed-tensors.
[[nodiscard]] NANOVLLM_INLINE std::string stored_shape_problem(
    const Checkpoint& checkpoint, const std::string& module,
    const std::vector<std::int64_t>& shape) {
  const std::string name = module + ".weight_shape";
  const CheckpointTensor* const tensor = checkpoint.find(name);
  if (tensor == nullptr) return {};
  const bool is_wide = tensor->dtype == FileDType::i64;
  if ((!is_wide && tensor->dtype != FileDType::i32) || !has_shape(*tensor, {2}))
    return concat("must have '", name, "', I64 or I32 [2], got ", tensor->type_name(), " ",
                  shape_string(tensor->shape));
  std::vector<std::int64_t> got(2);
  for (std::size_t i = 0; i < 2; ++i) {
    if (is_wide) {
      std::memcpy(&got[i], tensor->data.data() + i * sizeof got[i], sizeof got[i]);
    } else {
      got[i] = static_cast<std::int32_t>(word_at(*tensor, static_cast<std::int64_t>(i)));
    }
  }
  if (got == shape) return {};
  return concat("must have shape ", shape_string(shape), ", got ", shape_string(got), " in '", name,
                "'");
}

}  // namespace detail

NANOVLLM_INLINE std::string packed_problem(const Checkpoint& checkpoint, const std::string& name,
                                           const std::vector<std::int64_t>& shape,
                                           const QuantizationConfig& config) {
  const std::string module = detail::module_of(name);
  const std::string& stored = find_packed(checkpoint, name)->name;
  if (shape.size() != 2)
    return concat("must have shape ", detail::shape_string(shape), ", but '", stored,
                  "' is a packed matrix");
  if (!config.packed)
    return concat("is a packed matrix, '", stored,
                  "', but config.json has no 'quantization_config' of packed integers");
  const PackedFormat& format = *config.packed;
  const std::string words = concat(module, detail::words_suffix(format.layout));
  if (stored != words) return concat("must be packed as '", words, "', got '", stored, "'");
  if (config.is_unquantised(name))
    return concat("is a packed matrix, '", stored,
                  "', but config.json lists it among the modules that are not quantised");
  const std::int64_t per_word = 32 / format.bits;
  const std::int64_t packed_extent = shape[format.layout == PackedLayout::awq ? 0 : 1];
  if (format.layout != PackedLayout::compressed_tensors && packed_extent % per_word != 0)
    return concat("of shape ", detail::shape_string(shape), " cannot be packed: ", packed_extent,
                  " must be a multiple of ", per_word);
  for (const detail::PackedPart& part : detail::packed_parts(format, shape[0], shape[1])) {
    const std::string problem = detail::part_problem(checkpoint, module, part);
    if (!problem.empty()) return problem;
  }
  if (format.layout == PackedLayout::compressed_tensors) {
    if (!format.has_zeros && checkpoint.find(module + ".weight_zero_point") != nullptr)
      return concat("has zeros, '", module, ".weight_zero_point', but config.json says that it is ",
                    "symmetric");
    if (checkpoint.find(module + ".weight_g_idx") != nullptr)
      return concat("has columns in the order of their activations (act-order, '", module,
                    ".weight_g_idx'), which is not supported");
    return detail::stored_shape_problem(checkpoint, module, shape);
  }
  const CheckpointTensor* const groups = checkpoint.find(module + ".g_idx");
  if (format.layout != PackedLayout::gptq || groups == nullptr) return {};
  return detail::order_problem(*groups, format.group_size.value_or(shape[1]));
}

NANOVLLM_INLINE PackedTensors packed_of(const Checkpoint& checkpoint, const std::string& name,
                                        const std::vector<std::int64_t>& shape,
                                        const QuantizationConfig& config) {
  const std::string module = detail::module_of(name);
  const PackedFormat& format = *config.packed;
  const bool is_ours = format.layout == PackedLayout::compressed_tensors;
  const std::string zeros = module + (is_ours ? ".weight_zero_point" : ".qzeros");
  return {.words = find_packed(checkpoint, name),
          .scales = checkpoint.find(module + (is_ours ? ".weight_scale" : ".scales")),
          .zeros = format.has_zeros ? checkpoint.find(zeros) : nullptr,
          .format = format,
          .rows = shape[0],
          .columns = shape[1],
          .group_columns =
              std::max<std::int64_t>(1, std::min(shape[1], format.group_size.value_or(shape[1])))};
}

NANOVLLM_INLINE std::vector<std::string_view> packed_names(const Checkpoint& checkpoint,
                                                           const std::string& name) {
  const std::string module = detail::module_of(name);
  std::vector<std::string_view> out;
  for (const char* suffix : {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed",
                             ".weight_scale", ".weight_zero_point", ".weight_shape"}) {
    if (const auto* tensor = checkpoint.find(module + suffix); tensor != nullptr)
      out.push_back(tensor->name);
  }
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
