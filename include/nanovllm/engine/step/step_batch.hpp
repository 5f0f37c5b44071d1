#pragma once
/// The declaration of a step's fields, and their form on the host.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/ops/batch_field.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// All that a step is told. A new input is a line, and one for its padding, in the part that it is
/// for: `ForwardFields` or `SamplingFields`; and a line where it is filled: `StepInputs::build`,
/// or `EngineCore::build_inputs` for what the sampler reads.
template <template <class Field> class Stored>
struct StepBatch {
  ForwardFields<Stored> forward;
  SamplingFields<Stored> sampling;
  // Made before the forward pass, in this order: to the host's pool, within the device's, and from
  // the host's.
  Stored<AnyNumberOf<BlockCopy>> copies_down;
  Stored<AnyNumberOf<BlockCopy>> block_copies;
  Stored<AnyNumberOf<BlockCopy>> copies_up;

  template <class Visit, class... Batches>
  static constexpr void for_each_field(Visit&& visit, Batches&... batches) {
    ForwardFields<Stored>::for_each_field(visit, batches.forward...);
    SamplingFields<Stored>::for_each_field(visit, batches.sampling...);
    visit(BlockCopy{}, batches.copies_down...);
    visit(BlockCopy{}, batches.block_copies...);
    visit(BlockCopy{}, batches.copies_up...);
  }
};

static_assert(visits_every_field<StepBatch>());

// ---- On the host, being filled ----

/// Lists that are filled one after the other.
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

/// Rows of a table that stay where they are until they are packed: block tables are long, and are
/// copied once.
template <class T>
struct HostRows {
  std::vector<std::span<const T>> rows;

  void clear() { rows.clear(); }
  /// Adds a row: `list`, which must live until the batch is packed.
  void append(std::span<const T> list) { rows.push_back(list); }
};

namespace detail {

template <class Field>
struct HostForm;
template <class T, BatchRows kOf>
struct HostForm<ListField<T, kOf>> {
  using Type = HostLists<T>;
};
template <class T, BatchRows kOf>
struct HostForm<TableField<T, kOf>> {
  using Type = HostRows<T>;
};
template <class T, BatchRows kOf, class Packed>
struct HostForm<ColumnField<T, kOf, Packed>> {
  using Type = std::vector<Packed>;
};

}  // namespace detail

/// `std::vector` of a column's elements, `HostLists` of lists, `HostRows` of tables.
template <class Field>
using HostOf = typename detail::HostForm<Field>::Type;

/// The sampler's settings of a step, row by row, as the engine fills them.
using HostSamplingBatch = SamplingFields<HostOf>;

/// Empties every field and keeps its memory.
template <template <template <class> class> class Batch>
void clear(Batch<HostOf>& batch) {
  Batch<HostOf>::for_each_field([](const auto&, auto& field) { field.clear(); }, batch);
}

/// Adds a row of logits to be sampled.
inline void append_sample(HostSamplingBatch& batch, const SamplingRow& row,
                          std::span<const TokenId> banned = {}) {
  batch.rows.push_back(row);
  batch.banned.append(banned);
}

}  // namespace nanovllm
