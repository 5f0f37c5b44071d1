#pragma once
/// A matrix of a checkpoint as it is stored, and who reads it. Rows of 16 or 32 bits and rows of
/// blocks are read here; other forms by what adds itself to a list, `FormPart`.

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm {

/// Refers to rows of a matrix in the form in which a checkpoint has them, an object of any type. A
/// backend's matrix names the type that it keeps as its `StoredRows`.
class AnyStoredRows {
 public:
  template <class Rows>
  explicit AnyStoredRows(const Rows& rows) : rows_(&rows), kind_(&kind_of<Rows>) {}

  /// The object, or null where it is of another type.
  template <class Rows>
  [[nodiscard]] const Rows* get() const {
    return kind_ == &kind_of<Rows> ? static_cast<const Rows*>(rows_) : nullptr;
  }

 private:
  template <class Rows>
  inline static char kind_of = 0;  // its address tells types apart

  const void* rows_;
  const void* kind_;
};

/// The part of a tensor that one rank keeps: [begin, end) along one dimension, everything along the
/// other. Without `dim` the whole tensor.
struct Shard {
  std::optional<int> dim{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

namespace detail {

/// Converts `count` elements of type `S` at `source`, which may be unaligned, to `T`. Conversion to
/// fewer bits rounds to nearest even.
template <class S, Element T>
void convert(const std::byte* source, T* out, std::size_t count) {
  if constexpr (std::same_as<S, T>) {
    std::memcpy(out, source, count * sizeof(T));
  } else {
    // A fixed trip count lets the compiler vectorise at -O2 already.
    constexpr std::size_t kBlock = 256;
    std::array<S, kBlock> block;
    std::size_t i = 0;
    for (; i + kBlock <= count; i += kBlock) {
      std::memcpy(block.data(), source + i * sizeof(S), sizeof block);
      for (std::size_t j = 0; j < kBlock; ++j) out[i + j] = T(static_cast<float>(block[j]));
    }
    std::memcpy(block.data(), source + i * sizeof(S), (count - i) * sizeof(S));
    for (std::size_t j = 0; i + j < count; ++j) out[i + j] = T(static_cast<float>(block[j]));
  }
}

[[nodiscard]] constexpr bool is_float(FileDType dtype) {
  return dtype == FileDType::f32 || dtype == FileDType::f16 || dtype == FileDType::bf16;
}

template <Element T>
void convert(FileDType dtype, const std::byte* source, T* out, std::size_t count) {
  switch (dtype) {
    case FileDType::f32: return convert<float>(source, out, count);
    case FileDType::f16: return convert<half>(source, out, count);
    default: return convert<bf16>(source, out, count);
  }
}

/// A part of a matrix.
struct Region {
  std::int64_t row_begin, row_end, column_begin, column_end;
  std::int64_t num_columns;  ///< of the whole matrix

  [[nodiscard]] std::int64_t rows() const { return row_end - row_begin; }
  [[nodiscard]] std::int64_t columns() const { return column_end - column_begin; }
};

/// The region that a shard keeps, with a rank-1 tensor seen as one row.
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

/// Whether a tensor has this shape.
[[nodiscard]] bool has_shape(const CheckpointTensor& tensor,
                             const std::vector<std::int64_t>& shape);

/// A matrix as its loader reads it: rows of floats, or of blocks. Other forms derive from it.
/// Refers to the checkpoint.
class StoredMatrix {
 public:
  using Sink = std::function<bool(const AnyStoredRows& rows)>;

  explicit StoredMatrix(const CheckpointTensor& tensor) : tensor_(tensor) {}
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix& operator=(const StoredMatrix&) = delete;
  virtual ~StoredMatrix() = default;

  /// The tensor with the elements.
  [[nodiscard]] const CheckpointTensor& tensor() const { return tensor_; }

  /// The part of its data that has these elements.
  [[nodiscard]] virtual std::span<const std::byte> bytes_of(const Region& region) const;
  /// Whether that part is those rows' alone, or that of all rows.
  [[nodiscard]] virtual bool is_row_major() const { return true; }
  /// How many bytes these elements are.
  [[nodiscard]] virtual std::uint64_t num_bytes(const Region& region) const;
  /// Bytes from one row to the next; 0 where that says nothing.
  [[nodiscard]] virtual std::int64_t stride(std::int64_t num_columns) const {
    return end(num_columns);
  }
  /// A multiple of so many rows is read faster.
  [[nodiscard]] virtual std::int64_t rows_at_once() const { return 1; }

  /// Gives `sink` these elements as they are stored. False, with nothing done, where there is no
  /// such form, or `sink` says so.
  virtual bool give(const Region&, const Sink&) const { return false; }

  /// out = these elements, dense rows.
  virtual void read(const Region& region, float* out) const;

 protected:
  /// Where in a row the group of element `column` begins, in bytes: the element itself, or its
  /// block.
  [[nodiscard]] std::int64_t begin(std::int64_t column) const {
    return column / group() * group_bytes();
  }
  /// Where the group of the element ahead of `column` ends. At the number of columns: bytes of a
  /// row.
  [[nodiscard]] std::int64_t end(std::int64_t column) const {
    return ceil_div(column, group()) * group_bytes();
  }
  /// Where row `row` begins.
  [[nodiscard]] const std::byte* row_at(std::int64_t row, std::int64_t num_columns) const {
    return tensor_.data.data() + row * end(num_columns);
  }

 private:
  [[nodiscard]] std::int64_t group() const {
    return tensor_.blocks != nullptr ? tensor_.blocks->elements : 1;
  }
  [[nodiscard]] std::int64_t group_bytes() const {
    return tensor_.blocks != nullptr ? tensor_.blocks->bytes : size_bits(tensor_.dtype) / 8;
  }

  const CheckpointTensor& tensor_;
};

/// A tensor that a model wants. Refers to its `Parameter`.
struct WantedTensor {
  const std::string& name;
  const std::vector<std::int64_t>& shape;
  const Shard& shard;
  bool optional;
  bool transposed;
};

/// How a tensor that is wanted is stored.
struct StoredForm {
  std::string problem{};                         ///< what is wrong with it; empty if nothing
  std::vector<std::string_view> names{};         ///< the tensors that it is made of
  std::shared_ptr<const StoredMatrix> matrix{};  ///< null where there is a problem
};

/// Reads the tensors of one checkpoint that are in forms of its own.
class FormReader {
 public:
  virtual ~FormReader() = default;
  /// Nothing where that tensor is in no form of this reader's.
  [[nodiscard]] virtual std::optional<StoredForm> find(const WantedTensor& wanted) const = 0;
  /// Whether a tensor that no model asks for may be there.
  [[nodiscard]] virtual bool ignores(const CheckpointTensor& tensor) const = 0;
};

/// A part of the library that reads forms of its own. Its header adds it to the list of all, once:
/// before `main`, or where a policy's engines are made (`add_readers`), so that a program without
/// one does not compile it.
///
///     inline constinit FormPart my_forms{&open_my_forms, &check_my_config};
///     inline const bool has_my_forms = FormPart::add(my_forms);
struct FormPart {
  std::unique_ptr<FormReader> (*open)(const Checkpoint& checkpoint);
  /// Throws ConfigError for a config.json, `text`, that says of these forms what is not supported,
  /// and warns of what is ignored.
  void (*check_config)(const Checkpoint& checkpoint, std::string_view text,
                       const std::string& source, std::vector<std::string>& warnings);
  const FormPart* next = nullptr;

  static inline constinit std::atomic<const FormPart*> first{nullptr};
  static bool add(FormPart& part) {
    part.next = first;
    while (!first.compare_exchange_weak(part.next, &part)) {
    }
    return true;
  }
};

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/model/stored_matrix.hpp"

namespace nanovllm::detail {

NANOVLLM_INLINE bool has_shape(const CheckpointTensor& tensor,
                               const std::vector<std::int64_t>& shape) {
  return std::ranges::equal(shape, tensor.shape, [](std::int64_t want, std::uint64_t got) {
    return want >= 0 && static_cast<std::uint64_t>(want) == got;
  });
}

NANOVLLM_INLINE std::span<const std::byte> StoredMatrix::bytes_of(const Region& region) const {
  if (region.rows() == 0) return {};
  const std::byte* const first = row_at(region.row_begin, region.num_columns);
  const std::byte* const last = row_at(region.row_end - 1, region.num_columns);
  return {first + begin(region.column_begin), last + end(region.column_end)};
}

NANOVLLM_INLINE std::uint64_t StoredMatrix::num_bytes(const Region& region) const {
  if (region.columns() == 0) return 0;
  return static_cast<std::uint64_t>(region.rows() *
                                    (end(region.column_end) - begin(region.column_begin)));
}

/// out[i] = element first + i of the row of blocks at `row`, for i in [0, count).
NANOVLLM_INLINE void dequantise_blocks(const BlockFormat& format, const std::byte* row,
                                       std::int64_t first, std::int64_t count, float* out) {
  constexpr std::int64_t kBuffer = 4 * std::int64_t{kMaxBlockElements};
  std::array<float, kBuffer> buffer;
  const std::int64_t group = format.elements, blocks_at_once = kBuffer / group;
  const std::int64_t end = first + count, end_block = ceil_div(end, group);
  for (std::int64_t block = first / group; block < end_block; block += blocks_at_once) {
    const std::int64_t blocks = std::min(blocks_at_once, end_block - block);
    format.dequantise(row + block * format.bytes, static_cast<std::size_t>(blocks), buffer.data());
    const std::int64_t begin = std::max(first, block * group);
    const std::int64_t stop = std::min(end, (block + blocks) * group);
    std::copy_n(buffer.data() + (begin - block * group), stop - begin, out + (begin - first));
  }
}

NANOVLLM_INLINE void StoredMatrix::read(const Region& region, float* out) const {
  for (std::int64_t row = region.row_begin; row < region.row_end; ++row) {
    const std::byte* const from = row_at(row, region.num_columns);
    if (tensor_.blocks != nullptr) {
      dequantise_blocks(*tensor_.blocks, from, region.column_begin, region.columns(), out);
    } else {
      convert(tensor_.dtype, from + begin(region.column_begin), out,
              static_cast<std::size_t>(region.columns()));
    }
    out += region.columns();
  }
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
