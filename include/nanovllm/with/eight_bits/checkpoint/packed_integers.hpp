#pragma once
/// Reads checkpoints of packed integers: AWQ, GPTQ and compressed-tensors. With a library every
/// program reads them; a header-only one if one of its files includes this.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_tensors.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/stored_forms.hpp"

namespace nanovllm {

/// The tensors of matrix `name`, which has no problem.
[[nodiscard]] PackedTensors packed_of(const Checkpoint& checkpoint, const std::string& name,
                                      const std::vector<std::int64_t>& shape,
                                      const QuantizationConfig& config);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstring>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

// What config.json says of them.

namespace detail {

/// The number of bits of packed integers.
NANOVLLM_INLINE void read_bits(const JsonFields& fields, std::string_view key, int most,
                               PackedFormat& out) {
  const std::optional<std::int64_t> bits = fields.required_integer(key, 1, 32);
  if (bits && *bits != 4 && *bits != most)
    fields.wrong(key, most == 4 ? "4" : "4 or 8", *fields.find(key));
  if (bits) out.bits = *bits == 8 ? 8 : 4;
}

/// Columns that share a scale; -1 is all.
NANOVLLM_INLINE void read_group_size(const JsonFields& fields, std::string_view key,
                                     PackedFormat& out) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  out.group_size = fields.required_integer(key, -1, kMost);
  if (out.group_size == 0) fields.wrong(key, "a positive integer or -1", *fields.find(key));
  if (out.group_size && *out.group_size < 1) out.group_size.reset();
}

/// Source: AutoAWQ, WQLinear_GEMM; its own files call the fields w_bit and q_group_size.
NANOVLLM_INLINE PackedFormat read_awq(const JsonFields& fields, Problems& problems) {
  PackedFormat format{.layout = PackedLayout::awq};
  const auto either = [&](std::string_view key, std::string_view older) {
    return fields.find(key) == nullptr && fields.find(older) != nullptr ? older : key;
  };
  read_bits(fields, either("bits", "w_bit"), 4, format);
  read_group_size(fields, either("group_size", "q_group_size"), format);
  for (const char* key : {"version", "format", "checkpoint_format"})
    static_cast<void>(read_word(fields, key, {"gemm"}));
  if (fields.find("backend") != nullptr && *fields.find("backend") == Json("llm-awq"))
    problems.add("'quantization_config.backend' must not be \"llm-awq\": its packing is another");
  if (!fields.boolean("zero_point").value_or(true))
    problems.add("'quantization_config.zero_point' must be true, got false");
  return format;
}

/// Overrides for modules whose names match a pattern. Those that leave a module as it is, "-:…",
/// are read from the tensors; others must not change anything.
NANOVLLM_INLINE void check_overrides(const JsonFields& fields, const Json& whole,
                                     Problems& problems) {
  const Json* const found = fields.find("dynamic");
  if (found == nullptr || (found->is_boolean() && *found == Json(false))) return;
  if (!found->is_object()) return fields.wrong("dynamic", "an object", *found);
  for (const auto& [pattern, overrides] : found->items()) {
    if (pattern.starts_with("-:")) continue;
    const std::string where = concat("'quantization_config.dynamic' of '", pattern, "'");
    if (!overrides.is_object()) {
      problems.add(where, " must be an object");
      continue;
    }
    for (const char* key : {"bits", "group_size", "desc_act", "sym"}) {
      const Json *const own = overrides.find(key), *const all = whole.find(key);
      if (own != nullptr && (all == nullptr || *own != *all))
        problems.add(where, " must not change '", key, "': all matrices must have the same");
    }
  }
}

/// Source: AutoGPTQ, BaseQuantizeConfig; GPTQModel, QuantizeConfig.
NANOVLLM_INLINE PackedFormat read_gptq(const JsonFields& fields, const Json& json,
                                       Problems& problems) {
  PackedFormat format{.layout = PackedLayout::gptq};
  read_bits(fields, "bits", 8, format);
  read_group_size(fields, "group_size", format);
  format.has_zeros = !fields.boolean("sym").value_or(true);
  const char* const key = fields.find("checkpoint_format") ? "checkpoint_format" : "format";
  format.zeros_less_one = read_word(fields, key, {"gptq", "gptq_v2"}) == "gptq";
  static_cast<void>(read_word(fields, "pack_dtype", {"int32"}));
  if (fields.boolean("is_marlin_format").value_or(false))
    problems.add("'quantization_config.is_marlin_format' must be false, got true");
  check_overrides(fields, json, problems);
  return format;
}

/// The integers of a group of compressed-tensors.
NANOVLLM_INLINE PackedFormat read_integers(const JsonFields& fields) {
  PackedFormat format{.layout = PackedLayout::compressed_tensors};
  read_bits(fields, "num_bits", 8, format);
  expect_text(fields, "type", "int");
  format.has_zeros = !fields.boolean("symmetric").value_or(true);
  if (read_word(fields, "strategy", {"group", "channel"}) == "group")
    read_group_size(fields, "group_size", format);
  static_cast<void>(read_word(fields, "actorder", {"static", "weight", "group", "dynamic"}));
  return format;
}

}  // namespace detail

NANOVLLM_INLINE PackedFormat read_packed_format(PackedLayout layout, const JsonFields& fields,
                                                const Json& json, Problems& problems) {
  switch (layout) {
    case PackedLayout::awq: return detail::read_awq(fields, problems);
    case PackedLayout::gptq: return detail::read_gptq(fields, json, problems);
    default: return detail::read_integers(fields);
  }
}

// Whether their tensors fit together.

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
                              {".weight_scale", {rows, groups}, false},
                              {".weight_g_idx", {columns}, true, false}};
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

/// The tensor with the group of each column of `module`, or null.
[[nodiscard]] NANOVLLM_INLINE const CheckpointTensor* find_order(const Checkpoint& checkpoint,
                                                                 const std::string& module,
                                                                 PackedLayout layout) {
  if (layout == PackedLayout::awq) return nullptr;
  return checkpoint.find(module + (layout == PackedLayout::gptq ? ".g_idx" : ".weight_g_idx"));
}

/// What is wrong with the groups of columns; empty if nothing.
[[nodiscard]] NANOVLLM_INLINE std::string order_problem(const CheckpointTensor& order,
                                                        std::int64_t groups) {
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(order.shape[0]); ++k) {
    const std::int64_t got = static_cast<std::int32_t>(word_at(order, k));
    if (got < 0 || got >= groups)
      return concat("has group ", got, " for column ", k, " in '", order.name, "'; there are ",
                    groups);
  }
  return {};
}

/// What is wrong with the zeros that GPTQ stores of a matrix that config.json says to be symmetric:
/// all are in the middle, or all one less.
[[nodiscard]] NANOVLLM_INLINE std::string symmetry_problem(const CheckpointTensor& zeros,
                                                           std::int64_t rows, int bits) {
  const std::int64_t per_word = 32 / bits, across = ceil_div(rows, per_word);
  const std::uint32_t ones = bits == 4 ? 0x11111111u : 0x01010101u, middles = ones << (bits - 1);
  const auto all_are = [&](std::uint32_t expected) {
    for (std::int64_t i = 0; i < across * static_cast<std::int64_t>(zeros.shape[0]); ++i) {
      const std::int64_t unused = std::max<std::int64_t>(0, (i % across + 1) * per_word - rows);
      if ((word_at(zeros, i) ^ expected) << (unused * bits) != 0) return false;
    }
    return true;
  };
  if (all_are(middles) || all_are(middles - ones)) return {};
  return concat("has zeros in '", zeros.name, "' that are not all ", 1 << (bits - 1),
                ", but config.json has no 'sym' that is false");
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
    const std::string problem = detail::stored_shape_problem(checkpoint, module, shape);
    if (!problem.empty()) return problem;
  }
  const CheckpointTensor* const zeros = checkpoint.find(module + ".qzeros");
  if (format.layout == PackedLayout::gptq && !format.has_zeros && zeros != nullptr) {
    const std::string problem = detail::symmetry_problem(*zeros, shape[0], format.bits);
    if (!problem.empty()) return problem;
  }
  const CheckpointTensor* const order = detail::find_order(checkpoint, module, format.layout);
  if (order == nullptr) return {};
  return detail::order_problem(*order, ceil_div(shape[1], format.group_size.value_or(shape[1])));
}

NANOVLLM_INLINE PackedTensors packed_of(const Checkpoint& checkpoint, const std::string& name,
                                        const std::vector<std::int64_t>& shape,
                                        const QuantizationConfig& config) {
  const std::string module = detail::module_of(name);
  const PackedFormat& format = *config.packed;
  const bool is_ours = format.layout == PackedLayout::compressed_tensors;
  const std::string zeros = module + (is_ours ? ".weight_zero_point" : ".qzeros");
  const std::int64_t group =
      std::max<std::int64_t>(1, std::min(shape[1], format.group_size.value_or(shape[1])));
  const CheckpointTensor* order = detail::find_order(checkpoint, module, format.layout);
  if (order != nullptr && detail::is_in_order(*order, group)) order = nullptr;
  return {.words = find_packed(checkpoint, name),
          .scales = checkpoint.find(module + (is_ours ? ".weight_scale" : ".scales")),
          .zeros = format.has_zeros ? checkpoint.find(zeros) : nullptr,
          .order = order,
          .format = format,
          .rows = shape[0],
          .columns = shape[1],
          .group_columns = group};
}

NANOVLLM_INLINE std::vector<std::string_view> packed_names(const Checkpoint& checkpoint,
                                                           const std::string& name) {
  const std::string module = detail::module_of(name);
  std::vector<std::string_view> out;
  for (const char* suffix :
       {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_scale",
        ".weight_zero_point", ".weight_shape", ".weight_g_idx"}) {
    if (const auto* tensor = checkpoint.find(module + suffix); tensor != nullptr)
      out.push_back(tensor->name);
  }
  return out;
}

// How they are read.

namespace detail {

class PackedMatrix final : public StoredMatrix {
 public:
  explicit PackedMatrix(const PackedTensors& tensors)
      : StoredMatrix(*tensors.words), tensors_(tensors) {}

  [[nodiscard]] std::span<const std::byte> bytes_of(const Region& region) const override {
    return tensors_.bytes_of(region.row_begin, region.rows(), region.column_begin,
                             region.columns());
  }
  [[nodiscard]] bool is_row_major() const override { return tensors_.is_row_major(); }
  [[nodiscard]] std::uint64_t num_bytes(const Region& region) const override {
    return tensors_.stored_bytes(region.rows(), region.columns());
  }
  [[nodiscard]] std::int64_t stride(std::int64_t) const override { return 0; }
  [[nodiscard]] std::int64_t rows_at_once() const override { return PackedTensors::kTileRows; }

  bool give(const Region& region, const Sink& sink) const override {
    if (tensors_.order != nullptr) return false;
    return sink(AnyStoredRows(
        tensors_.rows_of(region.row_begin, region.rows(), region.column_begin, region.columns())));
  }
  void read(const Region& region, float* out) const override {
    tensors_.dequantise(region.row_begin, region.rows(), region.column_begin, region.columns(),
                        out);
  }

 private:
  PackedTensors tensors_;
};

}  // namespace detail

NANOVLLM_INLINE std::shared_ptr<const detail::StoredMatrix> packed_matrix(
    const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape,
    const QuantizationConfig& config) {
  return std::make_shared<const detail::PackedMatrix>(packed_of(checkpoint, name, shape, config));
}

NANOVLLM_OPEN_DOOR(read_packed_format);
NANOVLLM_OPEN_DOOR(packed_problem);
NANOVLLM_OPEN_DOOR(packed_names);
NANOVLLM_OPEN_DOOR(packed_matrix);

namespace detail {

inline const bool eight_bits_are_read = (read_eight_bits(), true);

}  // namespace detail

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
