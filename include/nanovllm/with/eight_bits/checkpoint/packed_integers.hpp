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
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_checks.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/packed_tensors.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/stored_forms.hpp"

#if NANOVLLM_BODIES

namespace nanovllm {

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
