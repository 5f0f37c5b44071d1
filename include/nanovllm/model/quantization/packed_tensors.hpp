#pragma once
/// Matrices of integers of 4 or 8 bits in a checkpoint, packed as AWQ, GPTQ and compressed-tensors
/// do it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/quantization/quantization_config.hpp"

namespace nanovllm {

/// The tensors of one matrix [rows, columns]. Element (n, k) is (code(n, k) - zero) · scale, a
/// float32; scale and zero are those of row n and of columns [g, g + group_columns) around k, where
/// g is a multiple of `group_columns`. The last group of a row may be smaller.
struct PackedTensors {
  const CheckpointTensor* words = nullptr;
  const CheckpointTensor* scales = nullptr;
  const CheckpointTensor* zeros = nullptr;  ///< null where all are 2 to the power of bits - 1
  PackedFormat format{};
  std::int64_t rows = 0, columns = 0;
  std::int64_t group_columns = 1;

  /// Rows and columns that are unpacked at a time. AWQ and GPTQ have neighbours of a column in
  /// neighbouring words, so that many rows make whole cache lines.
  static constexpr std::int64_t kTileRows = 128, kTileColumns = 128;
  /// Codes of a tile; those outside of the matrix are undefined.
  using Tile = std::array<std::uint8_t, std::size_t{kTileRows * kTileColumns}>;

  /// Throws LoadError where it is not finite.
  [[nodiscard]] float scale(std::int64_t row, std::int64_t group) const;
  [[nodiscard]] int zero(std::int64_t row, std::int64_t group) const;

  /// Codes of the tile whose first element is (row, column), both multiples of 8.
  void unpack(std::int64_t row, std::int64_t column, Tile& out) const;

  /// The part of the file that has the codes of `count` rows from `row` on, in columns
  /// [first, first + num): of `words` alone.
  [[nodiscard]] std::span<const std::byte> bytes_of(std::int64_t row, std::int64_t count,
                                                    std::int64_t first, std::int64_t num) const;
  /// Whether that part is those rows' alone, or that of all rows.
  [[nodiscard]] bool is_row_major() const {
    return format.layout == PackedLayout::compressed_tensors;
  }

  /// out = elements of rows [row, row + count) and columns [first, first + num), dense rows. `T`
  /// rounds the float32 to nearest even.
  template <Element T>
  void dequantise(std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t num,
                  T* out) const {
    constexpr std::int64_t kWord = 8;  // rows or columns that no layout splits
    Tile codes;
    for (std::int64_t i = row / kWord * kWord; i < row + count; i += kTileRows) {
      for (std::int64_t j = first / kWord * kWord; j < first + num; j += kTileColumns) {
        unpack(i, j, codes);
        const std::int64_t end = std::min(first + num, j + kTileColumns);
        for (std::int64_t r = std::max(row, i); r < std::min(row + count, i + kTileRows); ++r) {
          const std::uint8_t* const from = &codes[static_cast<std::size_t>((r - i) * kTileColumns)];
          T* const to = out + (r - row) * num;
          for (std::int64_t c = std::max(first, j); c < end;) {
            const std::int64_t group = c / group_columns;
            const std::int64_t next = std::min(end, (group + 1) * group_columns);
            const float factor = scale(r, group);
            const int middle = zero(r, group);
            for (; c < next; ++c)
              to[c - first] = T(static_cast<float>(int{from[c - j]} - middle) * factor);
          }
        }
      }
    }
  }
};

/// The tensor of codes of matrix `name`, "m.weight": `m.qweight` of AWQ and GPTQ, or
/// `m.weight_packed` of compressed-tensors. Null where there is neither.
[[nodiscard]] const CheckpointTensor* find_packed(const Checkpoint& checkpoint,
                                                  const std::string& name);

/// What is wrong with the tensors of matrix `name`, which is packed and must have `shape`; empty if
/// nothing.
[[nodiscard]] std::string packed_problem(const Checkpoint& checkpoint, const std::string& name,
                                         const std::vector<std::int64_t>& shape,
                                         const QuantizationConfig& config);

/// The tensors of matrix `name`, which has no problem; none where it is not packed.
[[nodiscard]] std::optional<PackedTensors> packed_of(const Checkpoint& checkpoint,
                                                     const std::string& name,
                                                     const std::vector<std::int64_t>& shape,
                                                     const QuantizationConfig& config);

/// The names of all tensors that a packed matrix `name` may have.
[[nodiscard]] std::vector<std::string> packed_names(const std::string& name);

/// Whether `tensor` is the bias of a packed matrix, of zeros alone. AutoGPTQ writes one for every
/// matrix.
[[nodiscard]] bool is_zero_bias(const Checkpoint& checkpoint, const CheckpointTensor& tensor);

/// Whether any matrix of the checkpoint is packed.
[[nodiscard]] bool has_packed(const Checkpoint& checkpoint);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cmath>
#include <cstring>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/model/quantization/tensor_scales.hpp"

namespace nanovllm {

namespace detail {

/// Which column of eight is in each four bits of a word of AWQ, from the lowest on.
/// Source: AutoAWQ, awq/utils/packing_utils.py.
inline constexpr std::array<std::int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

/// Where AWQ's column of eight is.
inline constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

[[nodiscard]] NANOVLLM_INLINE std::uint32_t word_at(const CheckpointTensor& tensor,
                                                    std::int64_t index) {
  std::uint32_t out;
  std::memcpy(&out, tensor.data.data() + static_cast<std::size_t>(index) * sizeof out, sizeof out);
  return out;
}

/// "m" of "m.weight".
[[nodiscard]] NANOVLLM_INLINE std::string module_of(const std::string& name) {
  constexpr std::string_view kSuffix = ".weight";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

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

[[nodiscard]] NANOVLLM_INLINE bool has_shape(const CheckpointTensor& tensor,
                                             const std::vector<std::int64_t>& shape) {
  return std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end(),
                    [](std::int64_t want, std::uint64_t got) {
                      return want >= 0 && static_cast<std::uint64_t>(want) == got;
                    });
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
  return concat(expected, ", got ", nanovllm::name(dtype), " ", shape_string(tensor->shape));
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
    return concat("must have '", name, "', I64 or I32 [2], got ", nanovllm::name(tensor->dtype),
                  " ", shape_string(tensor->shape));
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

NANOVLLM_INLINE float PackedTensors::scale(std::int64_t row, std::int64_t group) const {
  const std::int64_t index =
      is_row_major() ? row * ceil_div(columns, group_columns) + group : group * rows + row;
  const float out = detail::scale_at(*scales, static_cast<std::size_t>(index));
  check<LoadError>(std::isfinite(out), "'", scales->name, "' has ", out, " as element ", index,
                   "; it must be finite");
  return out;
}

NANOVLLM_INLINE int PackedTensors::zero(std::int64_t row, std::int64_t group) const {
  const int mask = (1 << format.bits) - 1;
  if (zeros == nullptr) return (mask + 1) / 2;
  const std::int64_t per_word = 32 / format.bits, across = ceil_div(rows, per_word);
  const std::int64_t index = is_row_major()
                                 ? row / per_word * ceil_div(columns, group_columns) + group
                                 : group * across + row / per_word;
  int place = static_cast<int>(row % per_word);
  if (format.layout == PackedLayout::awq)
    place = detail::kAwqPlace[static_cast<std::size_t>(place)];
  const int stored =
      static_cast<int>(detail::word_at(*zeros, index) >> (place * format.bits)) & mask;
  return format.zeros_less_one ? (stored + 1) & mask : stored;
}

NANOVLLM_INLINE void PackedTensors::unpack(std::int64_t row, std::int64_t column, Tile& out) const {
  const int bits = format.bits;
  const std::int64_t per_word = 32 / bits;
  const std::uint32_t mask = (1u << bits) - 1;
  const std::int64_t row_end = std::min(rows, row + kTileRows);
  const std::int64_t column_end = std::min(columns, column + kTileColumns);
  const auto spread = [&](std::uint32_t word, std::uint8_t* to) {  // along a row
    for (std::int64_t i = 0; i < per_word; ++i, word >>= bits)
      to[i] = static_cast<std::uint8_t>(word & mask);
  };
  const auto at = [&](std::int64_t n, std::int64_t k) {
    return &out[static_cast<std::size_t>((n - row) * kTileColumns + k - column)];
  };
  switch (format.layout) {
    case PackedLayout::awq:
      for (std::int64_t k = column; k < column_end; ++k) {
        for (std::int64_t n = row; n < row_end; n += per_word) {
          std::uint32_t word = detail::word_at(*words, (k * rows + n) / per_word);
          std::uint8_t* const to = at(n, k);
          for (const std::int64_t i : detail::kAwqOrder) {
            to[i * kTileColumns] = static_cast<std::uint8_t>(word & mask);
            word >>= bits;
          }
        }
      }
      return;
    case PackedLayout::gptq:
      for (std::int64_t k = column; k < column_end; k += per_word) {
        for (std::int64_t n = row; n < row_end; ++n)
          spread(detail::word_at(*words, k / per_word * rows + n), at(n, k));
      }
      return;
    default:
      for (std::int64_t n = row; n < row_end; ++n) {
        for (std::int64_t k = column; k < column_end; k += per_word)
          spread(detail::word_at(*words, n * ceil_div(columns, per_word) + k / per_word), at(n, k));
      }
  }
}

NANOVLLM_INLINE std::span<const std::byte> PackedTensors::bytes_of(std::int64_t row,
                                                                   std::int64_t count,
                                                                   std::int64_t first,
                                                                   std::int64_t num) const {
  const std::int64_t per_word = 32 / format.bits;
  std::int64_t begin = 0, end = 0;  // words
  switch (format.layout) {
    case PackedLayout::awq:
      begin = first * (rows / per_word);
      end = (first + num) * (rows / per_word);
      break;
    case PackedLayout::gptq:
      begin = first / per_word * rows;
      end = ceil_div(first + num, per_word) * rows;
      break;
    default:
      begin = row * ceil_div(columns, per_word);
      end = (row + count) * ceil_div(columns, per_word);
  }
  return words->data.subspan(static_cast<std::size_t>(begin) * sizeof(std::uint32_t),
                             static_cast<std::size_t>(end - begin) * sizeof(std::uint32_t));
}

NANOVLLM_INLINE const CheckpointTensor* find_packed(const Checkpoint& checkpoint,
                                                    const std::string& name) {
  const std::string module = detail::module_of(name);
  const CheckpointTensor* const words = checkpoint.find(module + ".qweight");
  return words != nullptr ? words : checkpoint.find(module + ".weight_packed");
}

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
    if (checkpoint.find(module + ".weight_g_idx") != nullptr)
      return concat("has columns in the order of their activations (act-order, '", module,
                    ".weight_g_idx'), which is not supported");
    return detail::stored_shape_problem(checkpoint, module, shape);
  }
  const CheckpointTensor* const groups = checkpoint.find(module + ".g_idx");
  if (format.layout != PackedLayout::gptq || groups == nullptr) return {};
  return detail::order_problem(*groups, format.group_size.value_or(shape[1]));
}

NANOVLLM_INLINE std::optional<PackedTensors> packed_of(const Checkpoint& checkpoint,
                                                       const std::string& name,
                                                       const std::vector<std::int64_t>& shape,
                                                       const QuantizationConfig& config) {
  const CheckpointTensor* const words = find_packed(checkpoint, name);
  if (words == nullptr || !config.packed) return {};
  const std::string module = detail::module_of(name);
  const PackedFormat& format = *config.packed;
  const bool is_ours = format.layout == PackedLayout::compressed_tensors;
  const std::string zeros = module + (is_ours ? ".weight_zero_point" : ".qzeros");
  return PackedTensors{.words = words,
                       .scales = checkpoint.find(module + (is_ours ? ".weight_scale" : ".scales")),
                       .zeros = format.has_zeros ? checkpoint.find(zeros) : nullptr,
                       .format = format,
                       .rows = shape[0],
                       .columns = shape[1],
                       .group_columns = std::min(shape[1], format.group_size.value_or(shape[1]))};
}

NANOVLLM_INLINE std::vector<std::string> packed_names(const std::string& name) {
  std::vector<std::string> out;
  for (const char* suffix : {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed",
                             ".weight_scale", ".weight_zero_point", ".weight_shape"})
    out.push_back(detail::module_of(name) + suffix);
  return out;
}

NANOVLLM_INLINE bool is_zero_bias(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  constexpr std::string_view kSuffix = ".bias";
  if (!tensor.name.ends_with(kSuffix)) return false;
  const std::string module = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
  return checkpoint.find(module + ".qweight") != nullptr &&
         std::ranges::all_of(tensor.data, [](std::byte b) { return b == std::byte{0}; });
}

NANOVLLM_INLINE bool has_packed(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.tensors(), [](const CheckpointTensor& tensor) {
    return tensor.name.ends_with(".qweight") || tensor.name.ends_with(".weight_packed");
  });
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
