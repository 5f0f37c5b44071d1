#pragma once
/// Contract of `unpack_step`: the packed inputs of a step into arrays of a fixed place and size, as
/// captured graphs and the attention kernels want them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/ops/batch_field.hpp"

namespace nanovllm {

/// One array to be filled, of elements of 4 · `element_words` bytes at multiples of 4.
struct UnpackedArray {
  enum class Kind : std::uint8_t {
    column,  ///< to[i] = from[i] for i < from_size, and `padding` for the rest
    tokens,  ///< the same for a `TokenSource` from[i], whose token comes to to[i]
    table,   ///< row i of `to`, a matrix, begins with values [starts[i], starts[i + 1]) of `from`;
             ///< nothing else is written
  };

  Kind kind = Kind::column;
  std::int32_t element_words = 1;
  const void* from = nullptr;
  const std::int32_t* starts = nullptr;  ///< [from_size + 1]; of a table
  void* to = nullptr;                    ///< may be `from`
  std::int64_t from_size = 0;            ///< elements, or rows of a table
  std::int64_t to_size = 0;              ///< ≥ from_size
  std::int64_t row_stride = 0;           ///< elements from a table's row to the next
  std::array<std::uint32_t, 12> padding{};
};

/// Fills `arrays[0, num_arrays)`, which do not overlap. It knows no field by name: who adds one to
/// a step edits no backend.
struct UnpackStepArgs {
  static constexpr int kMaxArrays = 20;

  std::array<UnpackedArray, kMaxArrays> arrays{};
  int num_arrays = 0;
  VectorView<const TokenId> previous;  ///< what the samples of the step before drew

  template <class T>
  void add_column(VectorView<const T> from, VectorView<T> to, const T& padding = {}) {
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= sizeof(UnpackedArray::padding));
    UnpackedArray& array = add(UnpackedArray::Kind::column, from, to);
    array.element_words = sizeof(T) / 4;
    std::memcpy(array.padding.data(), &padding, sizeof(T));
  }

  void add_tokens(VectorView<const TokenSource> from, VectorView<TokenId> to, TokenId padding = 0) {
    UnpackedArray& array = add(UnpackedArray::Kind::tokens, from, to);
    std::memcpy(array.padding.data(), &padding, sizeof(padding));
  }

  /// @param longest  values of the longest row.
  template <class T>
  void add_table(const ListsView<const T>& from, std::int64_t longest, MatrixView<T> to) {
    static_assert(sizeof(T) == 4, "unpack_step: the elements of a table have 4 bytes");
    check<ShapeError>(longest <= to.extent(1), "unpack_step: a row of ", longest,
                      " values does not fit into a table of ", to.extent(1), " columns");
    const std::int64_t rows = from.starts.extent(0) - 1;
    UnpackedArray& array =
        add(UnpackedArray::Kind::table, VectorView<const T>(from.values.data, {rows}),
            VectorView<T>(to.data, {to.extent(0)}));
    array.starts = from.starts.data;
    array.row_stride = to.strides[0];
  }

 private:
  template <class From, class To>
  UnpackedArray& add(UnpackedArray::Kind kind, VectorView<const From> from, VectorView<To> to) {
    check<ShapeError>(num_arrays < kMaxArrays, "unpack_step: a step has at most ", kMaxArrays,
                      " arrays");
    check<ShapeError>(from.extent(0) <= to.extent(0), "unpack_step: ", from.extent(0),
                      " rows do not fit into ", to.extent(0));
    UnpackedArray& array = arrays[static_cast<std::size_t>(num_arrays++)];
    array.kind = kind;
    array.from = from.data;
    array.to = to.data;
    array.from_size = from.extent(0);
    array.to_size = to.extent(0);
    return array;
  }
};

}  // namespace nanovllm
