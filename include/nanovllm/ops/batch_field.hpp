#pragma once
/// How the inputs of a step are declared: once, as fields, from which every form that they take on
/// their way follows.
///
/// A batch is a struct template over how a field is stored:
///
/// ```cpp
/// template <template <class Field> class Stored>
/// struct SamplingFields {
///   Stored<PerSample<SamplingRow>> rows;
///   Stored<PerSampleList<TokenId>> banned;
///
///   template <class Visit, class... Batches>
///   static void for_each_field(Visit visit, Batches&... batches) {
///     visit(SamplingRow{.temperature = 0.f}, batches.rows...);  // the padding comes first
///     visit(TokenId{}, batches.banned...);
///   }
/// };
/// ```
///
/// `SamplingFields<ViewOf>` is what ops read. engine/step/step_batch.hpp has the forms on the host
/// and on the wire, engine/step/step_memory.hpp the padded form of captured graphs.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// What the rows of a field are.
enum class BatchRows : std::uint8_t {
  tokens,     ///< the tokens that the step computes
  sequences,  ///< its sequences
  samples,    ///< the rows of logits that are sampled
  free,       ///< as many as there happen to be; steps that run as a graph have none
};

/// One element for each row. It is `PackedElement` on the way and `T` for those who read it: of the
/// same size, made by `unpack_step`.
template <class T, BatchRows kOf, class PackedElement = T>
struct ColumnField {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_copyable_v<PackedElement>,
                "the elements of a step's fields are copied byte by byte");
  static_assert(sizeof(T) == sizeof(PackedElement) && sizeof(T) % 4 == 0 && sizeof(T) <= 48,
                "the elements of a step's fields have 4, 8, … or 48 bytes");
  using Element = T;
  using Packed = PackedElement;
  using View = VectorView<const T>;
  static constexpr BatchRows rows = kOf;
};

/// The lists of a batch, one after another: row i has values [starts[i], starts[i + 1]).
template <class T>
struct ListsView {
  VectorView<const std::int32_t> starts;  ///< [rows + 1], ascending from 0
  VectorView<T> values;                   ///< [starts[rows]], or more than that

  /// Values of row `i`; reads `starts`.
  [[nodiscard]] NANOVLLM_HD VectorView<T> operator[](std::int64_t i) const {
    return values.slice(starts.data[i], starts.data[i + 1]);
  }
};

/// A list of any length for each row, packed and read as `ListsView`.
template <class T, BatchRows kOf>
struct ListField {
  using Element = T;
  using View = ListsView<const T>;
  static constexpr BatchRows rows = kOf;
};

/// A list of any length for each row, packed as `ListsView` and read as a matrix with one row a
/// list: what is after a list's end is undefined.
template <class T, BatchRows kOf>
struct TableField {
  using Element = T;
  using View = MatrixView<const T>;
  static constexpr BatchRows rows = kOf;
};

template <class T, class Packed = T>
using PerToken = ColumnField<T, BatchRows::tokens, Packed>;
template <class T>
using PerSequence = ColumnField<T, BatchRows::sequences>;
template <class T>
using PerSequenceTable = TableField<T, BatchRows::sequences>;
template <class T>
using PerSample = ColumnField<T, BatchRows::samples>;
template <class T>
using PerSampleList = ListField<T, BatchRows::samples>;
template <class T>
using AnyNumberOf = ColumnField<T, BatchRows::free>;

/// The form that a model and the ops read.
template <class Field>
using ViewOf = typename Field::View;

namespace detail {

template <class Field>
struct OneByte {
  char byte;
};

}  // namespace detail

/// Whether `for_each_field` of a batch visits all of its fields.
template <template <template <class> class> class Batch>
[[nodiscard]] consteval bool visits_every_field() {
  std::size_t count = 0;
  Batch<detail::OneByte> batch{};
  Batch<detail::OneByte>::for_each_field([&](auto, auto&) { ++count; }, batch);
  return count == sizeof(batch);
}

}  // namespace nanovllm
