#pragma once
/// What a model wants from a checkpoint, and the part of it that a rank keeps.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/stored_rows.hpp"
#include "nanovllm/with/eight_bits/fp8_weight.hpp"
#include "nanovllm/with/eight_bits/int_weight.hpp"

namespace nanovllm {

/// The part of a tensor that one rank keeps: [begin, end) along one dimension, everything along the
/// other. Without `dim` the whole tensor.
struct Shard {
  std::optional<int> dim{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A tensor that the model wants from the checkpoint.
template <Element T>
struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< of the whole tensor in the file; rank 1 or 2
  /// Receives consecutive panels of the kept part: dense rows, the first of which is row
  /// `first_row` of that part. A rank-1 tensor is one row [1, n]. The view is valid only during the
  /// call. Not called for an empty part.
  std::function<void(std::int64_t first_row, MatrixView<const T> rows)> sink;
  Shard shard{};
  bool optional = false;       ///< absence is no error; the sink is then never called
  bool transposed = false;     ///< the file has [in, out], whose packed integers are not read
  std::int64_t row_group = 1;  ///< the sink gets multiples of so many rows, but for the last ones
  /// Gets the same rows of a tensor of 8-bit floats as they are stored, if there is one. False,
  /// with nothing done: `sink` shall have them.
  std::function<bool(std::int64_t first_row, const Fp8Rows& rows)> stored_sink{};
  /// The same for a tensor of integers.
  std::function<bool(std::int64_t first_row, const IntRows& rows)> stored_int_sink{};
};

namespace detail {

/// The part of a matrix that a shard keeps.
struct Region {
  std::int64_t row_begin, row_end, column_begin, column_end;
  std::int64_t num_columns;  ///< of the whole matrix

  [[nodiscard]] std::int64_t rows() const { return row_end - row_begin; }
  [[nodiscard]] std::int64_t columns() const { return column_end - column_begin; }

  /// Bytes that are read of each row.
  [[nodiscard]] std::int64_t row_bytes(const RowLayout& layout) const {
    return columns() == 0 ? 0 : layout.end(column_end) - layout.begin(column_begin);
  }
};

/// The kept region, with a rank-1 tensor seen as one row.
[[nodiscard]] inline Region region_of(const std::vector<std::int64_t>& shape, const Shard& shard) {
  const bool vector = shape.size() == 1;
  const std::int64_t rows = vector ? 1 : shape[0];
  const std::int64_t columns = shape.back();
  Region out{0, rows, 0, columns, columns};
  if (!shard.dim) return out;
  if (shard.dim == 0 && !vector) {
    out.row_begin = shard.begin;
    out.row_end = shard.end;
  } else {
    out.column_begin = shard.begin;
    out.column_end = shard.end;
  }
  return out;
}

}  // namespace detail

}  // namespace nanovllm
