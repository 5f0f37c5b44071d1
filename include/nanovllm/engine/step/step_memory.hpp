#pragma once
/// The fixed arrays in a backend's memory that a step's packed inputs are unpacked into.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/ops/batch_field.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm {

/// The limits of the steps of an executor.
struct StepCapacity {
  StepLimits limits{};
  std::int64_t max_blocks = 0;  ///< of a sequence
  std::int64_t list_room = 0;   ///< elements in a list of a padded step, on average

  [[nodiscard]] constexpr std::int64_t rows(BatchRows of) const {
    return of == BatchRows::tokens ? limits.max_num_batched_tokens : limits.max_num_seqs;
  }
};

namespace detail {

/// A field's arrays in a backend's memory; without `kPadded` only what cannot be read as it
/// is packed.
template <class Field, template <class> class Buffer, bool kPadded>
struct StepArray;

template <class T, BatchRows kOf, class Packed, template <class> class Buffer, bool kPadded>
struct StepArray<ColumnField<T, kOf, Packed>, Buffer, kPadded> {
  Buffer<T> values{0};

  void allocate(const StepCapacity& capacity) {
    constexpr bool kIsRead = std::is_same_v<T, Packed>;
    if (kOf != BatchRows::free && (kPadded || !kIsRead))
      values = Buffer<T>(static_cast<std::size_t>(capacity.rows(kOf)));
  }
};

template <class T, BatchRows kOf, template <class> class Buffer, bool kPadded>
struct StepArray<ListField<T, kOf>, Buffer, kPadded> {
  Buffer<std::int32_t> starts{0};
  Buffer<T> values{0};

  void allocate(const StepCapacity& capacity) {
    if (!kPadded) return;
    const std::int64_t rows = capacity.rows(kOf);
    starts = Buffer<std::int32_t>(static_cast<std::size_t>(rows + 1));
    values = Buffer<T>(static_cast<std::size_t>(rows * capacity.list_room));
  }
};

template <class T, BatchRows kOf, template <class> class Buffer, bool kPadded>
struct StepArray<TableField<T, kOf>, Buffer, kPadded> {
  Buffer<T> values{0};
  std::int64_t columns = 0;

  void allocate(const StepCapacity& capacity) {
    columns = capacity.max_blocks;
    values = Buffer<T>(static_cast<std::size_t>(capacity.rows(kOf) * columns));
  }
};

}  // namespace detail

/// The memory, and the views of a step in it and in the arena of its inputs.
///
/// @tparam Buffer   the backend's, `Backend::template Buffer`. Not the backend itself: one in an
///                  anonymous namespace would lend its name to types that are not.
/// @tparam kPadded  whether steps are also unpacked whole and padded, for graphs.
/// @tparam Batch    the fields; `StepBatch`, except in tests.
template <template <class T> class Buffer, bool kPadded,
          template <template <class Field> class> class Batch = StepBatch>
class StepMemory {
  template <class Field>
  using Stored = detail::StepArray<Field, Buffer, kPadded>;

 public:
  explicit StepMemory(const StepCapacity& capacity) {
    Batch<Stored>::for_each_field([&](const auto&, auto& array) { array.allocate(capacity); },
                                  arrays_);
  }

  /// Views of a step whose arena begins at `base`, 16-byte aligned. What has another form there
  /// than the model wants, `args` puts into this memory. Throws ShapeError when it has no room.
  [[nodiscard]] Batch<ViewOf> views(const Batch<PackedOf>& fields, const std::byte* base,
                                    UnpackStepArgs& args) {
    Batch<ViewOf> out;
    Batch<ViewOf>::for_each_field([&](const auto&, const auto& packed, auto& array,
                                      auto& view) { this->read(packed, base, array, view, args); },
                                  fields, arrays_, out);
    return out;
  }

  /// Views of this memory, cut to `size` rows of everything: what graphs read. A field of any
  /// number of elements is empty.
  [[nodiscard]] Batch<ViewOf> padded_views(std::int64_t size) {
    static_assert(kPadded);
    Batch<ViewOf> out;
    Batch<ViewOf>::for_each_field(
        [&](const auto&, auto& array, auto& view) { view = cut(array, size); }, arrays_, out);
    return out;
  }

  /// What fills `padded_views(size)` from a step of `size` rows or less.
  void unpack_padded(const Batch<PackedOf>& fields, const std::byte* base, std::int64_t size,
                     UnpackStepArgs& args) {
    static_assert(kPadded);
    Batch<ViewOf>::for_each_field(
        [&](const auto& padding, const auto& packed, auto& array) {
          this->pad(packed, base, array, size, padding, args);
        },
        fields, arrays_);
  }

  /// Whether the lists of a step fit into the padded arrays.
  [[nodiscard]] bool has_room(const Batch<PackedOf>& fields) const {
    bool fits = true;
    const auto look = [&]<class Packed>(const auto&, const Packed& packed, const auto& array) {
      if constexpr (requires { array.starts; })
        fits = fits && packed.values.size <= static_cast<std::int64_t>(array.values.size());
      else if constexpr (requires { array.columns; })
        fits = fits && packed.longest <= array.columns;
    };
    Batch<ViewOf>::for_each_field(look, fields, arrays_);
    return fits;
  }

 private:
  template <class T, BatchRows kOf, class Packed>
  using Column = ColumnField<T, kOf, Packed>;

  // One field in the arena.

  template <class T, BatchRows kOf>
  static void read(const PackedOf<Column<T, kOf, T>>& packed, const std::byte* base,
                   Stored<Column<T, kOf, T>>&, VectorView<const T>& view, UnpackStepArgs&) {
    view = array_at<T>(base, packed);
  }
  template <BatchRows kOf>
  void read(const PackedOf<Column<TokenId, kOf, TokenSource>>& packed, const std::byte* base,
            Stored<Column<TokenId, kOf, TokenSource>>& array, VectorView<const TokenId>& view,
            UnpackStepArgs& args) const {
    const VectorView<TokenId> tokens = first(array.values, packed.size);
    args.add_tokens(array_at<TokenSource>(base, packed), tokens);
    view = tokens;
  }
  template <class T, BatchRows kOf>
  static void read(const PackedOf<ListField<T, kOf>>& packed, const std::byte* base,
                   Stored<ListField<T, kOf>>&, ListsView<const T>& view, UnpackStepArgs&) {
    view = lists_at<T>(base, packed);
  }
  template <class T, BatchRows kOf>
  void read(const PackedOf<TableField<T, kOf>>& packed, const std::byte* base,
            Stored<TableField<T, kOf>>& array, MatrixView<const T>& view,
            UnpackStepArgs& args) const {
    const std::int64_t rows = packed.starts.size - 1;
    const MatrixView<T> table = table_of(array, rows);
    args.add_table(lists_at<T>(base, packed), packed.longest, table);
    view = MatrixView<const T>(table.data, {rows, packed.longest}, table.strides);
  }

  // One field of a graph.

  template <class T, BatchRows kOf, class Packed>
  static VectorView<const T> cut(Stored<Column<T, kOf, Packed>>& array, std::int64_t size) {
    return first(array.values, kOf == BatchRows::free ? 0 : size);
  }
  template <class T, BatchRows kOf>
  static ListsView<const T> cut(Stored<ListField<T, kOf>>& array, std::int64_t size) {
    return {first(array.starts, size + 1),
            first(array.values, static_cast<std::int64_t>(array.values.size()))};
  }
  template <class T, BatchRows kOf>
  static MatrixView<const T> cut(Stored<TableField<T, kOf>>& array, std::int64_t size) {
    return table_of(array, size);
  }

  template <class T, BatchRows kOf>
  static void pad(const PackedOf<Column<T, kOf, T>>& packed, const std::byte* base,
                  Stored<Column<T, kOf, T>>& array, std::int64_t size, const T& padding,
                  UnpackStepArgs& args) {
    if constexpr (kOf != BatchRows::free)
      args.add_column(array_at<T>(base, packed), first(array.values, size), padding);
  }
  template <BatchRows kOf>
  static void pad(const PackedOf<Column<TokenId, kOf, TokenSource>>& packed, const std::byte* base,
                  Stored<Column<TokenId, kOf, TokenSource>>& array, std::int64_t size,
                  TokenId padding, UnpackStepArgs& args) {
    args.add_tokens(array_at<TokenSource>(base, packed), first(array.values, size), padding);
  }
  template <class T, BatchRows kOf>
  static void pad(const PackedOf<ListField<T, kOf>>& packed, const std::byte* base,
                  Stored<ListField<T, kOf>>& array, std::int64_t size, const T&,
                  UnpackStepArgs& args) {
    const ListsView<const T> lists = lists_at<T>(base, packed);
    const std::int64_t count = packed.values.size;  // a padded row's list is empty
    args.add_column(lists.starts, first(array.starts, size + 1), static_cast<std::int32_t>(count));
    if (count > 0) args.add_column(lists.values, first(array.values, count));
  }
  template <class T, BatchRows kOf>
  static void pad(const PackedOf<TableField<T, kOf>>& packed, const std::byte* base,
                  Stored<TableField<T, kOf>>& array, std::int64_t size, const T&,
                  UnpackStepArgs& args) {
    args.add_table(lists_at<T>(base, packed), packed.longest, table_of(array, size));
  }

  template <class AnyBuffer>
  static auto first(AnyBuffer& buffer, std::int64_t size) {
    check<ShapeError>(size <= static_cast<std::int64_t>(buffer.size()), "run: at most ",
                      buffer.size(), " rows a step, got ", size);
    return VectorView<std::remove_pointer_t<decltype(buffer.data())>>(buffer.data(), {size});
  }
  template <class T, BatchRows kOf>
  static MatrixView<T> table_of(Stored<TableField<T, kOf>>& array, std::int64_t rows) {
    check<ShapeError>(rows * array.columns <= static_cast<std::int64_t>(array.values.size()),
                      "run: at most ",
                      static_cast<std::int64_t>(array.values.size()) / array.columns,
                      " sequences a step, got ", rows);
    return {array.values.data(), {rows, array.columns}};
  }

  Batch<Stored> arrays_;
};

}  // namespace nanovllm
