#pragma once
/// The declaration of a step's fields, and their forms on the host and on the wire.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/ops/batch_field.hpp"
#include "nanovllm/ops/sampling_batch.hpp"

namespace nanovllm {

/// All that a step is told. A new input is a line, and one for its padding, in the part that it is
/// for: `ForwardFields` or `SamplingFields`; and a line where it is filled: `StepInputs::build`,
/// or `Engine::build_inputs` for what the sampler reads.
template <template <class Field> class Stored>
struct StepBatch {
  ForwardFields<Stored> forward;
  SamplingFields<Stored> sampling;
  Stored<AnyNumberOf<BlockCopy>> block_copies;  ///< made before the forward pass

  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    ForwardFields<Stored>::for_each_field(visit, batches.forward...);
    SamplingFields<Stored>::for_each_field(visit, batches.sampling...);
    visit(BlockCopy{}, batches.block_copies...);
  }
};

static_assert(visits_every_field<StepBatch>());

// ---- On the host, being filled -------------------------------------------------------------------

/// Lists that are filled one behind the other.
template <class T>
struct HostLists {
  std::vector<std::int32_t> starts{0};
  std::vector<T> values;

  void clear() {
    starts.resize(1);
    values.clear();
  }
  /// Adds a row: `list`.
  void append(std::span<const T> list) {
    values.insert(values.end(), list.begin(), list.end());
    end_row();
  }
  /// Adds a row: what came to `values` since the row before.
  void end_row() { starts.push_back(static_cast<std::int32_t>(values.size())); }
};

namespace detail {

template <class Field>
struct HostForm {  // of lists and tables
  using Type = HostLists<typename Field::Element>;
};
template <class T, BatchRows kOf, class Packed>
struct HostForm<ColumnField<T, kOf, Packed>> {
  using Type = std::vector<Packed>;
};

}  // namespace detail

/// `std::vector` of a column's elements, `HostLists` of lists.
template <class Field>
using HostOf = typename detail::HostForm<Field>::Type;

/// The sampler's settings of a step, row by row, as the engine fills them.
using HostSamplingBatch = SamplingFields<HostOf>;

/// Empties every field and keeps its memory.
template <template <template <class> class> class Batch>
void clear(Batch<HostOf>& batch) {
  Batch<HostOf>::for_each_field([](const auto&, auto& field) { field.clear(); }, batch);
}

// ---- Packed into one arena -----------------------------------------------------------------------

/// An array in an arena: the offset in bytes, a multiple of 16, and the number of elements.
struct PackedArray {
  std::int64_t offset = 0;
  std::int64_t size = 0;
};

struct PackedLists {
  PackedArray starts;
  PackedArray values;
  std::int64_t longest = 0;  ///< elements of the longest list
};

namespace detail {

template <class Field>
struct PackedForm : PackedLists {  // of lists and tables
  using Element = typename Field::Element;
};
template <class T, BatchRows kOf, class Packed>
struct PackedForm<ColumnField<T, kOf, Packed>> : PackedArray {
  using Element = Packed;
};

}  // namespace detail

/// Where a field is in an arena. Plain data: it goes to other processes as it is.
template <class Field>
using PackedOf = detail::PackedForm<Field>;

}  // namespace nanovllm
