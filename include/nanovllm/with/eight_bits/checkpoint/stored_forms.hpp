#pragma once
/// Reads matrices of 8-bit floats and integers and blocks of integers, and says of packed ones what
/// is missing (packed_integers.hpp reads them).

#include "nanovllm/core/separate.hpp"

namespace nanovllm::detail {

/// Has checkpoints read in this way from now on, by all engines of the program.
void read_eight_bits();

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::detail {

/// Rows of blocks that have integers.
class IntBlocks final : public StoredMatrix {
 public:
  using StoredMatrix::StoredMatrix;

  bool give(const Region& region, const Sink& sink) const override {
    const BlockFormat& format = *tensor().blocks;
    const BlockIntegers& integers = *format.integers;
    const std::int64_t elements = format.elements, group = integers.group;
    const auto block_at = [&](std::int64_t row, std::int64_t column) {
      return row_at(region.row_begin + row, region.num_columns) + begin(column);
    };
    return sink(AnyStoredRows(IntRows{
        .rows = region.rows(),
        .columns = region.columns(),
        .bits = integers.bits,
        .group_columns = group,
        .phase = region.column_begin % group,
        .has_offsets = integers.has_offsets,
        .read =
            [&](std::int64_t row, std::int8_t* codes) {
              std::array<std::int8_t, kMaxBlockElements> block;
              for (std::int64_t column = region.column_begin; column < region.column_end;) {
                const std::int64_t offset = column % elements;
                const std::int64_t size = std::min(elements - offset, region.column_end - column);
                integers.read(block_at(row, column), block.data());
                codes = std::copy_n(block.data() + offset, size, codes);
                column += size;
              }
            },
        .group =
            [&](std::int64_t row, std::int64_t i) {
              const std::int64_t column = region.column_begin + i;
              const auto of = integers.scale(block_at(row, column),
                                             static_cast<std::uint32_t>(column % elements / group));
              return IntRows::Group{of.scale, of.offset};
            }}));
  }
};

class EightBitsReader final : public FormReader {
 public:
  explicit EightBitsReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    if (std::ranges::any_of(checkpoint.tensors(), needs_quantization))
      config_ = read_quantization(checkpoint);
  }

  [[nodiscard]] std::optional<StoredForm> find(const WantedTensor& wanted) const override {
    const CheckpointTensor* const tensor = checkpoint_.find(wanted.name);
    if (tensor == nullptr) return find_packed_integers(wanted);
    if (tensor->blocks != nullptr) {
      if (tensor->blocks->integers == nullptr) return {};
      return StoredForm{.matrix = std::make_shared<const IntBlocks>(*tensor)};
    }
    if (is_float(tensor->dtype)) return {};
    StoredForm out;
    if (const auto* scales = find_scale_tensor(checkpoint_, wanted.name); scales != nullptr)
      out.names.push_back(scales->name);
    out.problem = scales_problem(checkpoint_, *tensor, config_);
    if (out.problem.empty()) out.matrix = scaled_matrix(checkpoint_, *tensor, config_);
    return out;
  }

  [[nodiscard]] bool ignores(const CheckpointTensor& tensor) const override {
    return is_activation_scale(tensor.name) || is_zero_bias(checkpoint_, tensor);
  }

 private:
  [[nodiscard]] std::optional<StoredForm> find_packed_integers(const WantedTensor& wanted) const {
    const CheckpointTensor* const words = find_packed(checkpoint_, wanted.name);
    if (words == nullptr) return {};
    StoredForm out;
    if (const auto names = packed_names_door.load(); names != nullptr)
      out.names = names(checkpoint_, wanted.name);
    if (wanted.transposed) {
      out.problem = concat("is a packed matrix, '", words->name,
                           "'; models whose files have this matrix transposed do not read those");
      return out;
    }
    out.problem = through<LoadError>(packed_problem_door, kPackedPart, "'", checkpoint_.name(),
                                     "' has '", words->name, "': a matrix of packed integers")(
        checkpoint_, wanted.name, wanted.shape, config_);
    if (out.problem.empty())
      out.matrix = packed_matrix_door.load()(checkpoint_, wanted.name, wanted.shape, config_);
    return out;
  }

  const Checkpoint& checkpoint_;
  QuantizationConfig config_;
};

[[nodiscard]] NANOVLLM_INLINE std::unique_ptr<FormReader> open_eight_bits(
    const Checkpoint& checkpoint) {
  return std::make_unique<EightBitsReader>(checkpoint);
}

/// Reads "quantization_config" where a tensor needs it. Where none does, as in a fine-tune of 16
/// bits whose config.json is that of its quantised base, a warning says that it is ignored.
NANOVLLM_INLINE void check_quantization(const Checkpoint& checkpoint, std::string_view text,
                                        const std::string& source,
                                        std::vector<std::string>& warnings) {
  const Json json = parse_json_object<ConfigError>(text, source);
  const Json* const found = json.find("quantization_config");
  if (found == nullptr || !found->is_object() || found->empty()) return;
  Problems problems;
  try {
    if (std::ranges::any_of(checkpoint.tensors(), needs_quantization)) {
      static_cast<void>(read_quantization(JsonFields(json, "", problems), problems));
    } else if (!checkpoint.tensors().empty()) {
      const Json* const method = found->find("quant_method");
      warnings.push_back(concat("'quantization_config'", method ? " of " : "",
                                method ? shown(*method) : "",
                                " is ignored: the checkpoint has no quantised matrix"));
    }
  } catch (const LoadError&) {  // a config.json without weights can be read; their loading says so
  }
  problems.raise<ConfigError>(source);
}

NANOVLLM_INLINE void read_eight_bits() {
  static constinit FormPart forms{&open_eight_bits, &check_quantization};
  static const bool added = FormPart::add(forms);
  static_cast<void>(added);
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
