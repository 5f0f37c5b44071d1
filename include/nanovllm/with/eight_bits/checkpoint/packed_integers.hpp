#pragma once
/// Reads checkpoints of packed integers: AWQ, GPTQ and compressed-tensors. With a library every
/// program reads them; a header-only one if one of its files includes this.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_checks.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_tensors.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/int_weight.hpp"

#if NANOVLLM_BODIES

namespace nanovllm {

namespace detail {

class PackedTensorRows final : public PackedRows {
 public:
  static_assert(kAtOnce == PackedTensors::kTileRows);

  explicit PackedTensorRows(const PackedTensors& tensors)
      : PackedRows(*tensors.words), tensors_(tensors) {}

  [[nodiscard]] std::span<const std::byte> bytes_of(std::int64_t row, std::int64_t count,
                                                    std::int64_t first,
                                                    std::int64_t num) const override {
    return tensors_.bytes_of(row, count, first, num);
  }
  [[nodiscard]] bool is_row_major() const override { return tensors_.is_row_major(); }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t num_rows,
                                           std::int64_t num_columns) const override {
    return tensors_.stored_bytes(num_rows, num_columns);
  }
  [[nodiscard]] IntRows rows_of(std::int64_t row, std::int64_t count, std::int64_t first,
                                std::int64_t num) const override {
    return tensors_.rows_of(row, count, first, num);
  }
  void dequantise(std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t num,
                  float* out) const override {
    tensors_.dequantise(row, count, first, num, out);
  }
  void dequantise(std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t num,
                  half* out) const override {
    tensors_.dequantise(row, count, first, num, out);
  }
  void dequantise(std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t num,
                  bf16* out) const override {
    tensors_.dequantise(row, count, first, num, out);
  }

 private:
  PackedTensors tensors_;
};

}  // namespace detail

NANOVLLM_INLINE std::shared_ptr<const PackedRows> packed_rows(
    const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape,
    const QuantizationConfig& config) {
  const auto tensors = packed_of(checkpoint, name, shape, config);
  return tensors ? std::make_shared<const detail::PackedTensorRows>(*tensors) : nullptr;
}

NANOVLLM_OPEN_DOOR(read_packed_format);
NANOVLLM_OPEN_DOOR(packed_problem);
NANOVLLM_OPEN_DOOR(packed_names);
NANOVLLM_OPEN_DOOR(packed_rows);

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
