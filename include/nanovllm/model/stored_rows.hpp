#pragma once
/// Rows of a checkpoint's tensor as its file has them: element after element, or in blocks.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/io/block_format.hpp"
#include "nanovllm/io/checkpoint_like.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/with/eight_bits/int_weight.hpp"

namespace nanovllm::detail {

/// Where the elements of a row lie: each `group` of them in `group_bytes` bytes.
struct RowLayout {
  std::int64_t group = 1;
  std::int64_t group_bytes = 1;

  explicit RowLayout(const CheckpointTensor& tensor)
      : group(tensor.blocks != nullptr ? tensor.blocks->elements : 1),
        group_bytes(tensor.blocks != nullptr ? tensor.blocks->bytes : size_bits(tensor.dtype) / 8) {
  }

  /// Where in the row the group of element `column` begins, in bytes.
  [[nodiscard]] std::int64_t begin(std::int64_t column) const {
    return column / group * group_bytes;
  }
  /// Where the group of the element ahead of `column` ends. At the number of columns: bytes of a
  /// row.
  [[nodiscard]] std::int64_t end(std::int64_t column) const {
    return ceil_div(column, group) * group_bytes;
  }
};

/// out[i] = element first + i of the row of blocks at `row`, for i in [0, count), rounded to `T`.
template <Element T>
void dequantise_blocks(const BlockFormat& format, const std::byte* row, std::int64_t first,
                       std::int64_t count, T* out) {
  constexpr std::int64_t kBuffer = 4 * std::int64_t{kMaxBlockElements};
  std::array<float, kBuffer> buffer;
  const std::int64_t group = format.elements, blocks_at_once = kBuffer / group;
  const std::int64_t end = first + count, end_block = ceil_div(end, group);
  for (std::int64_t block = first / group; block < end_block; block += blocks_at_once) {
    const std::int64_t blocks = std::min(blocks_at_once, end_block - block);
    format.dequantise(row + block * format.bytes, static_cast<std::size_t>(blocks), buffer.data());
    const std::int64_t begin = std::max(first, block * group);
    const std::int64_t stop = std::min(end, (block + blocks) * group);
    const float* const source = buffer.data() + (begin - block * group);
    for (std::int64_t i = 0; i < stop - begin; ++i) out[begin - first + i] = T(source[i]);
  }
}

/// Rows of blocks as integers, columns [first, first + count) of each; the first row is at `data`,
/// others `stride` bytes apart. The format has integers. Refers to `data`.
[[nodiscard]] inline IntRows int_rows_of(const BlockFormat& format, const std::byte* data,
                                         std::int64_t stride, std::int64_t rows, std::int64_t first,
                                         std::int64_t count) {
  const BlockIntegers& integers = *format.integers;
  const std::int64_t elements = format.elements, group = integers.group;
  const auto block_at = [=, bytes = std::int64_t{format.bytes}](std::int64_t row,
                                                                std::int64_t column) {
    return data + row * stride + column / elements * bytes;
  };
  return {.rows = rows,
          .columns = count,
          .bits = integers.bits,
          .group_columns = group,
          .phase = first % group,
          .has_offsets = integers.has_offsets,
          .read =
              [=, &integers](std::int64_t row, std::int8_t* codes) {
                std::array<std::int8_t, kMaxBlockElements> block;
                for (std::int64_t column = first; column < first + count;) {
                  const std::int64_t offset = column % elements;
                  const std::int64_t size = std::min(elements - offset, first + count - column);
                  integers.read(block_at(row, column), block.data());
                  std::copy_n(block.data() + offset, size, codes + (column - first));
                  column += size;
                }
              },
          .group =
              [=, &integers](std::int64_t row, std::int64_t column) {
                const auto of =
                    integers.scale(block_at(row, first + column),
                                   static_cast<std::uint32_t>((first + column) % elements / group));
                return IntRows::Group{of.scale, of.offset};
              }};
}

}  // namespace nanovllm::detail
