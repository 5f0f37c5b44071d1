#pragma once
/// The declaration of a step's fields, their form on the host, and that in one piece of memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
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

// ---- In one contiguous piece of memory ----

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

/// The array in an arena, or a copy of one, that begins at `base`, a multiple of 16.
template <class T>
[[nodiscard]] VectorView<const T> array_at(const std::byte* base, const PackedArray& array) {
  return {reinterpret_cast<const T*>(base + array.offset), {array.size}};
}
template <class T>
[[nodiscard]] ListsView<const T> lists_at(const std::byte* base, const PackedLists& lists) {
  return {array_at<std::int32_t>(base, lists.starts), array_at<T>(base, lists.values)};
}

/// The fields of a `Batch` packed one after the other, so that a device, or another process, gets
/// them in one copy, and `Counts`, what else is known of them. Lists are as long as they are: none
/// is padded. Keeps its capacity.
///
/// @tparam Counts  plain data, with `kName` for errors.
template <template <template <class Field> class Stored> class Batch, class Counts>
class StepArena {
 public:
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// What `unpack` needs in front of `bytes()`. Plain data.
  [[nodiscard]] std::span<const std::byte> counts_as_bytes() const {
    return std::as_bytes(std::span(&header_, 1));
  }
  /// Where each field is in the arena.
  [[nodiscard]] const Batch<PackedOf>& fields() const { return header_.fields; }

  /// Becomes the same as `other`, but for what that was packed from.
  void copy_packed(const StepArena& other) {
    header_ = other.header_;
    bytes_ = other.bytes_;
  }

  /// Becomes the same as an arena of which `message` has the counts and the bytes, one after the
  /// other. Throws Error when they do not fit together.
  void unpack(std::span<const std::byte> message) {
    check(message.size() >= sizeof(Header), Counts::kName, ": a message of ", message.size(),
          " bytes has no room for the counts");
    std::memcpy(&header_, message.data(), sizeof(Header));
    message = message.subspan(sizeof(Header));
    const std::size_t expected = place(message.size());
    check(message.size() == expected, "step inputs: the counts are those of ", expected,
          " bytes, but ", message.size(), " came");
    bytes_.assign(message.begin(), message.end());
  }

 protected:
  [[nodiscard]] Counts& counts() { return header_.counts; }
  [[nodiscard]] const Counts& counts() const { return header_.counts; }

  /// @param host  a `Batch<HostOf>`, or anything else with the same members.
  template <class Host>
  void pack(const Host& host) {
    const auto measure = [](const auto&, const auto& from, auto& to) { set_size(from, to); };
    Batch<HostOf>::for_each_field(measure, host, header_.fields);
    bytes_.resize(place(static_cast<std::size_t>(-1) / 4));
    const auto copy = [this](const auto&, const auto& from, const auto& to) {
      this->write(from, to);
    };
    Batch<HostOf>::for_each_field(copy, host, header_.fields);
  }

 private:
  struct Header {
    Batch<PackedOf> fields;
    Counts counts;
  };
  static_assert(std::is_trivially_copyable_v<Header>);

  template <class T>
  static void set_size(const std::vector<T>& from, PackedArray& to) {
    to.size = static_cast<std::int64_t>(from.size());
  }
  template <class T>
  static void set_size(const HostLists<T>& from, PackedLists& to) {
    set_size(from.starts, to.starts);
    set_size(from.values, to.values);
    to.longest = 0;
    for (std::size_t i = 1; i < from.starts.size(); ++i)
      to.longest = std::max<std::int64_t>(to.longest, from.starts[i] - from.starts[i - 1]);
  }
  template <class T>
  static void set_size(const HostRows<T>& from, PackedLists& to) {
    to.starts.size = static_cast<std::int64_t>(from.rows.size()) + 1;
    to.values.size = to.longest = 0;
    for (const std::span<const T> row : from.rows) {
      to.values.size += static_cast<std::int64_t>(row.size());
      to.longest = std::max(to.longest, static_cast<std::int64_t>(row.size()));
    }
  }

  template <class T>
  void write(const std::vector<T>& from, const PackedArray& to) {
    if (!from.empty()) std::memcpy(bytes_.data() + to.offset, from.data(), from.size() * sizeof(T));
  }
  template <class T>
  void write(const HostLists<T>& from, const PackedLists& to) {
    write(from.starts, to.starts);
    write(from.values, to.values);
  }
  template <class T>
  void write(const HostRows<T>& from, const PackedLists& to) {
    auto* start = reinterpret_cast<std::int32_t*>(bytes_.data() + to.starts.offset);
    auto* value = reinterpret_cast<T*>(bytes_.data() + to.values.offset);
    *start = 0;
    for (const std::span<const T> row : from.rows) {
      value = std::copy(row.begin(), row.end(), value);
      start[1] = start[0] + static_cast<std::int32_t>(row.size());
      ++start;
    }
  }

  /// Cuts an arena into arrays of the sizes in its fields; returns its bytes. Throws Error for a
  /// size that no arena of `most_bytes` has.
  [[nodiscard]] std::size_t place(std::size_t most_bytes) {
    std::int64_t end = 0;
    const auto place_array = [&](PackedArray& array, std::size_t element_bytes) {
      check(array.size >= 0 && static_cast<std::size_t>(array.size) <= most_bytes / element_bytes,
            "step inputs: an array of ", array.size, " elements in ", most_bytes, " bytes");
      array.offset = end;
      end = align_up(end + array.size * static_cast<std::int64_t>(element_bytes), 16);
    };
    const auto place_field = [&]<class Packed>(const auto&, Packed& field) {
      constexpr std::size_t kBytes = sizeof(typename Packed::Element);
      if constexpr (std::is_base_of_v<PackedArray, Packed>) {
        place_array(field, kBytes);
      } else {
        place_array(field.starts, sizeof(std::int32_t));
        place_array(field.values, kBytes);
      }
    };
    Batch<PackedOf>::for_each_field(place_field, header_.fields);
    return static_cast<std::size_t>(end);
  }

  Header header_;
  std::vector<std::byte> bytes_;
};

}  // namespace nanovllm
