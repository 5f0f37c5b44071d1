#pragma once
/// What a model wants from a checkpoint, and the part of it that a rank keeps.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/stored_matrix.hpp"

namespace nanovllm {

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
  bool transposed = false;     ///< the file has [in, out], of which no other form is read
  std::int64_t row_group = 1;  ///< the sink gets multiples of so many rows, but for the last ones
  /// Gets the same rows as they are stored, where that is another form. False, with nothing done:
  /// `sink` shall have them.
  std::function<bool(std::int64_t first_row, const AnyStoredRows& rows)> stored_sink{};
};

}  // namespace nanovllm
