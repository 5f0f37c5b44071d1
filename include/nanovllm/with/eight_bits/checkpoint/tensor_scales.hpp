#pragma once
/// Matrices of 8-bit floats or integers in a checkpoint, and the scales that belong to them.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"

namespace nanovllm {

/// The tensor of scales of matrix `name`: `<name>_scale_inv`, which transformers writes and
/// multiplies by, or `<name>_scale` of compressed-tensors. Null where there is neither.
[[nodiscard]] const CheckpointTensor* find_scale_tensor(const Checkpoint& checkpoint,
                                                        const std::string& name);

/// What is wrong with `matrix`, which is of e4m3 or int8, or with its scales; empty if nothing.
[[nodiscard]] std::string scales_problem(const Checkpoint& checkpoint,
                                         const CheckpointTensor& matrix,
                                         const QuantizationConfig& config);

/// `matrix`, which is of e4m3 or int8 and has no problem.
[[nodiscard]] std::shared_ptr<const detail::StoredMatrix> scaled_matrix(
    const Checkpoint& checkpoint, const CheckpointTensor& matrix, const QuantizationConfig& config);

/// `quantization_config` of the checkpoint's config.json. Throws ConfigError for one that is not
/// supported.
[[nodiscard]] QuantizationConfig read_quantization(const Checkpoint& checkpoint);

/// Whether tensor `name` belongs to a quantised matrix or cache, and is not needed to compute in
/// more bits: a stored scale of activations, queries, keys or values. `read_kv_scales` reads those
/// of keys and values for caches that want them.
[[nodiscard]] bool is_activation_scale(std::string_view name);

namespace detail {

/// Whether a tensor is of a type that may hold scales.
[[nodiscard]] bool holds_scales(const CheckpointTensor& tensor);
/// Element `index` of such a tensor.
[[nodiscard]] float scale_at(const CheckpointTensor& tensor, std::size_t index);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm {

namespace detail {

/// The number that element `index` of a tensor of scales is. Of 8 bits it is a power of two.
NANOVLLM_INLINE float scale_at(const CheckpointTensor& tensor, std::size_t index) {
  const auto read = [&]<class S>(S value) {
    std::memcpy(&value, tensor.data.data() + index * sizeof(S), sizeof(S));
    return value;
  };
  switch (tensor.dtype) {
    case FileDType::f32: return read(float{});
    case FileDType::f16: return read(half{});
    case FileDType::bf16: return read(bf16{});
    default: return std::ldexp(1.f, int{read(std::uint8_t{})} - 127);
  }
}

NANOVLLM_INLINE bool holds_scales(const CheckpointTensor& tensor) {
  constexpr std::array kTypes = {FileDType::f32, FileDType::f16, FileDType::bf16,
                                 FileDType::f8_e8m0, FileDType::u8};
  return tensor.blocks == nullptr && std::ranges::find(kTypes, tensor.dtype) != kTypes.end();
}

/// A matrix of e4m3 or int8: element (n, k) is stored[n, k] · scale. There is one scale for the
/// whole matrix, for each row, or for each block of rows and columns; the last blocks may be
/// smaller.
class ScaledMatrix final : public StoredMatrix {
 public:
  /// How the scales lie.
  struct Layout {
    std::int64_t group_rows = 1;
    std::int64_t group_columns = 1;
    std::int64_t groups_across = 1;  ///< in a row of the scales
  };

  ScaledMatrix(const CheckpointTensor& matrix, const CheckpointTensor& scales, const Layout& layout)
      : StoredMatrix(matrix), scales_(scales), layout_(layout) {}

  bool give(const Region& region, const Sink& sink) const override {
    const auto scale_of = [this, &region](std::int64_t i, std::int64_t j) {
      return scale(region.row_begin + i, region.column_begin + j);
    };
    const std::int64_t phase = region.column_begin % layout_.group_columns;
    if (is_integers()) {
      return sink(AnyStoredRows(IntRows{
          .rows = region.rows(),
          .columns = region.columns(),
          .group_columns = layout_.group_columns,
          .phase = phase,
          .read =
              [&](std::int64_t i, std::int8_t* codes) {
                std::memcpy(codes,
                            row_at(region.row_begin + i, region.num_columns) + region.column_begin,
                            static_cast<std::size_t>(region.columns()));
              },
          .group = [&](std::int64_t i,
                       std::int64_t j) { return IntRows::Group{.scale = scale_of(i, j)}; }}));
    }
    return sink(AnyStoredRows(Fp8Rows{
        .data = reinterpret_cast<const fp8_e4m3*>(row_at(region.row_begin, region.num_columns) +
                                                  region.column_begin),
        .rows = region.rows(),
        .columns = region.columns(),
        .stride = region.num_columns,
        .group_columns = layout_.group_columns,
        .phase = phase,
        .scale = scale_of}));
  }

  void read(const Region& region, float* out) const override {
    for (std::int64_t row = region.row_begin; row < region.row_end; ++row) {
      const std::byte* const from = row_at(row, region.num_columns);
      for (std::int64_t column = region.column_begin; column < region.column_end;) {
        const std::int64_t group = layout_.group_columns;
        const std::int64_t next = std::min(region.column_end, (column / group + 1) * group);
        const float factor = scale(row, column);
        for (; column < next; ++column) {
          if (is_integers()) {
            *out++ = static_cast<float>(std::to_integer<std::int8_t>(from[column])) * factor;
            continue;
          }
          fp8_e4m3 stored;
          std::memcpy(&stored, from + column, 1);
          *out++ = static_cast<float>(stored) * factor;
        }
      }
    }
  }

 private:
  [[nodiscard]] bool is_integers() const { return tensor().dtype == FileDType::i8; }
  [[nodiscard]] float scale(std::int64_t row, std::int64_t column) const {
    return scale_at(scales_,
                    static_cast<std::size_t>(row / layout_.group_rows * layout_.groups_across +
                                             column / layout_.group_columns));
  }

  const CheckpointTensor& scales_;
  Layout layout_;
};

/// How the scales lie, by their shape; nothing where it fits no form.
NANOVLLM_INLINE std::optional<ScaledMatrix::Layout> layout_of(const CheckpointTensor& matrix,
                                                              const CheckpointTensor& scales,
                                                              const QuantizationConfig& config) {
  const auto rows = static_cast<std::int64_t>(matrix.shape[0]);
  const auto columns = static_cast<std::int64_t>(matrix.shape[1]);
  std::vector<std::int64_t> shape(scales.shape.begin(), scales.shape.end());
  if (shape.empty() || shape == std::vector<std::int64_t>{1}) shape = {1, 1};
  if (shape.size() == 1) shape.push_back(1);
  using Shape = std::vector<std::int64_t>;
  if (shape == Shape{1, 1}) return ScaledMatrix::Layout{rows, columns, 1};
  if (shape == Shape{rows, 1}) return ScaledMatrix::Layout{1, columns, 1};
  const std::int64_t across = ceil_div(columns, config.block_columns);
  if (shape != Shape{ceil_div(rows, config.block_rows), across}) return {};
  return ScaledMatrix::Layout{config.block_rows, config.block_columns, across};
}

}  // namespace detail

NANOVLLM_INLINE const CheckpointTensor* find_scale_tensor(const Checkpoint& checkpoint,
                                                          const std::string& name) {
  const CheckpointTensor* const inverse = checkpoint.find(name + "_scale_inv");
  return inverse != nullptr ? inverse : checkpoint.find(name + "_scale");
}

NANOVLLM_INLINE std::string scales_problem(const Checkpoint& checkpoint,
                                           const CheckpointTensor& matrix,
                                           const QuantizationConfig& config) {
  const std::string &name = matrix.name, shape = detail::shape_string(matrix.shape);
  const std::string type(matrix.type_name());
  const FileDType expected = config.has_int8 ? FileDType::i8 : FileDType::f8_e4m3;
  if (matrix.dtype != expected)
    return concat("must be F32, F16, BF16 or ", nanovllm::name(expected), ", got ", type);
  if (matrix.shape.size() != 2) return concat("must be a matrix to be ", type, ", got ", shape);
  if (config.is_unquantised(name))
    return concat("is ", type, ", but config.json lists it among the modules that are not ",
                  "quantised");
  const CheckpointTensor* const scales = find_scale_tensor(checkpoint, name);
  if (scales == nullptr)
    return concat("is ", type, ", but there are no scales: neither '", name, "_scale_inv' nor '",
                  name, "_scale'");
  if (!detail::holds_scales(*scales))
    return concat("has scales of ", scales->type_name(),
                  "; they must be F32, F16, BF16 or F8_E8M0");
  if (!detail::layout_of(matrix, *scales, config)) {
    return concat("of shape ", shape, " has scales of shape ", detail::shape_string(scales->shape),
                  "; expected [1], [", matrix.shape[0], ", 1], or one for each block of [",
                  config.block_rows, ", ", config.block_columns, "]");
  }
  std::size_t count = 1;
  for (const std::uint64_t extent : scales->shape) count *= static_cast<std::size_t>(extent);
  for (std::size_t i = 0; i < count; ++i) {
    const float scale = detail::scale_at(*scales, i);
    if (!std::isfinite(scale)) return concat("has ", scale, " as scale ", i, "; it must be finite");
  }
  return {};
}

NANOVLLM_INLINE std::shared_ptr<const detail::StoredMatrix> scaled_matrix(
    const Checkpoint& checkpoint, const CheckpointTensor& matrix,
    const QuantizationConfig& config) {
  const CheckpointTensor& scales = *find_scale_tensor(checkpoint, matrix.name);
  return std::make_shared<const detail::ScaledMatrix>(matrix, scales,
                                                      *detail::layout_of(matrix, scales, config));
}

NANOVLLM_INLINE QuantizationConfig read_quantization(const Checkpoint& checkpoint) {
  const std::optional<std::string> text = checkpoint.text("config.json");
  if (!text) return {};
  const std::string source = checkpoint.path_of("config.json");
  const Json json = parse_json_object<ConfigError>(*text, source);
  Problems problems;
  QuantizationConfig out = read_quantization(JsonFields(json, "", problems), problems);
  problems.raise<ConfigError>(source);
  return out;
}

NANOVLLM_INLINE bool is_activation_scale(std::string_view name) {
  constexpr std::array<std::string_view, 10> kNames = {
      ".input_scale", ".input_zero_point", ".output_scale",  ".q_scale",       ".k_scale",
      ".v_scale",     ".kv_scale",         ".q_cache.scale", ".k_cache.scale", ".v_cache.scale"};
  return std::ranges::any_of(kNames, [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
