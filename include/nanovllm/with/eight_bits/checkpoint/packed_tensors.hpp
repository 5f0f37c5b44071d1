#pragma once
/// Matrices of integers of 4 or 8 bits in a checkpoint, packed as AWQ, GPTQ and compressed-tensors
/// do it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm {

/// The tensors of one matrix [rows, columns]. Element (n, k) is (code(n, k) - zero) · scale, a
/// float32; scale and zero are those of row n and of columns [g, g + group_columns) around k, where
/// g is a multiple of `group_columns`. The last group of a row may be smaller. With `order` they
/// are those of the group that it has for column k.
struct PackedTensors {
  const CheckpointTensor* words = nullptr;
  const CheckpointTensor* scales = nullptr;
  const CheckpointTensor* zeros = nullptr;  ///< null where all are 2 to the power of bits - 1
  /// The group of each column (act-order); null where groups are of neighbours.
  const CheckpointTensor* order = nullptr;
  PackedFormat format{};
  std::int64_t rows = 0, columns = 0;
  std::int64_t group_columns = 1;

  /// Rows and columns that are unpacked at a time. AWQ and GPTQ have neighbours of a column in
  /// neighbouring words, so that many rows make whole cache lines.
  static constexpr std::int64_t kTileRows = 128, kTileColumns = 128;
  /// Rows, or columns, that a word may have.
  static constexpr std::int64_t kWord = 8;
  /// Codes of a tile; those outside of the matrix are undefined.
  using Tile = std::array<std::uint8_t, std::size_t{kTileRows * kTileColumns}>;

  /// Throws LoadError where it is not finite.
  [[nodiscard]] float scale(std::int64_t row, std::int64_t group) const;
  [[nodiscard]] int zero(std::int64_t row, std::int64_t group) const;

  /// Codes of the tile whose first element is (row, column), both multiples of kWord.
  void unpack(std::int64_t row, std::int64_t column, Tile& out) const;

  /// The part of the file that has the codes of `count` rows from `row` on, in columns
  /// [first, first + num): of `words` alone.
  [[nodiscard]] std::span<const std::byte> bytes_of(std::int64_t row, std::int64_t count,
                                                    std::int64_t first, std::int64_t num) const;
  /// Bytes of the codes of so many elements.
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t num_rows, std::int64_t num_columns) const {
    return static_cast<std::uint64_t>(num_rows * num_columns) *
           static_cast<std::uint64_t>(format.bits) / 8;
  }
  /// Whether that part is those rows' alone, or that of all rows.
  [[nodiscard]] bool is_row_major() const {
    return format.layout == PackedLayout::compressed_tensors;
  }

  /// Rows [row, row + count) and columns [first, first + num) as integers. Refers to this; keeps
  /// codes of kTileRows rows in memory. Not where there is an `order`.
  [[nodiscard]] IntRows rows_of(std::int64_t row, std::int64_t count, std::int64_t first,
                                std::int64_t num) const;

  /// out = elements of rows [row, row + count) and columns [first, first + num), dense rows.
  void dequantise(std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t num,
                  float* out) const;
};

namespace detail {

/// Word `index` of a tensor of 32 bits.
[[nodiscard]] std::uint32_t word_at(const CheckpointTensor& tensor, std::int64_t index);

/// Whether `order` has the groups of neighbouring columns.
[[nodiscard]] bool is_in_order(const CheckpointTensor& order, std::int64_t group_columns);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>
#include <cstring>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"

namespace nanovllm {

namespace detail {

/// Which column of eight is in each four bits of a word of AWQ, from the lowest on.
/// Source: AutoAWQ, awq/utils/packing_utils.py.
inline constexpr std::array<std::int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

/// Where AWQ's column of eight is.
inline constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

/// The eight nibbles of a word as bytes, the lowest first.
[[nodiscard]] constexpr std::uint64_t spread_nibbles(std::uint32_t word) {
  std::uint64_t x = word;
  x = (x | x << 16) & 0x0000FFFF0000FFFFu;
  x = (x | x << 8) & 0x00FF00FF00FF00FFu;
  return (x | x << 4) & 0x0F0F0F0F0F0F0F0Fu;
}

/// Byte j of element i becomes byte i of element j: halves, quarters and eighths change places.
constexpr void transpose_bytes(std::array<std::uint64_t, 8>& x) {
  constexpr std::array<std::uint64_t, 3> kLow = {0x00FF00FF00FF00FFu, 0x0000FFFF0000FFFFu,
                                                 0x00000000FFFFFFFFu};
  for (std::size_t stage = 0; stage < 3; ++stage) {
    const std::size_t step = std::size_t{1} << stage;
    for (std::size_t i = 0; i < 8; ++i) {
      if ((i & step) != 0) continue;
      std::uint64_t &a = x[i], &b = x[i + step];
      const std::uint64_t change = (a >> (8 * step) ^ b) & kLow[stage];
      a ^= change << (8 * step);
      b ^= change;
    }
  }
}

/// The signed codes of columns [first, first + num) of a row that lies at `bytes`.
NANOVLLM_INLINE void unpack_row(const std::byte* bytes, int bits, std::int64_t first,
                                std::int64_t num, std::int8_t* codes) {
  const auto* const row = reinterpret_cast<const std::uint8_t*>(bytes);
  const auto code = [&](std::int64_t k) {
    return static_cast<std::int8_t>(bits == 8 ? row[k] - 128
                                              : ((row[k / 2] >> (k % 2 * 4)) & 15) - 8);
  };
  constexpr std::uint64_t kEights = 0x0808080808080808u;
  std::int64_t c = 0;
  for (; c < num && (first + c) % 8 != 0; ++c) codes[c] = code(first + c);
  for (; c + 8 <= num; c += 8) {
    std::uint64_t eight;
    if (bits == 8) {
      std::memcpy(&eight, row + first + c, sizeof eight);
      eight ^= kEights << 4;
    } else {
      std::uint32_t word;
      std::memcpy(&word, row + (first + c) / 2, sizeof word);
      eight = spread_nibbles(word) ^ kEights;
      eight |= (eight & kEights) * 30;  // their signs
    }
    std::memcpy(codes + c, &eight, sizeof eight);
  }
  for (; c < num; ++c) codes[c] = code(first + c);
}

NANOVLLM_INLINE std::uint32_t word_at(const CheckpointTensor& tensor, std::int64_t index) {
  std::uint32_t out;
  std::memcpy(&out, tensor.data.data() + static_cast<std::size_t>(index) * sizeof out, sizeof out);
  return out;
}

NANOVLLM_INLINE bool is_in_order(const CheckpointTensor& order, std::int64_t group_columns) {
  const auto columns = static_cast<std::int64_t>(order.shape[0]);
  std::int64_t k = 0;
  while (k < columns && word_at(order, k) == k / group_columns) ++k;
  return k == columns;
}

}  // namespace detail

NANOVLLM_INLINE float PackedTensors::scale(std::int64_t row, std::int64_t group) const {
  const std::int64_t index =
      is_row_major() ? row * ceil_div(columns, group_columns) + group : group * rows + row;
  const float out = detail::scale_at(*scales, static_cast<std::size_t>(index));
  check<LoadError>(std::isfinite(out), "'", scales->name, "' has ", out, " as element ", index,
                   "; it must be finite");
  return out;
}

NANOVLLM_INLINE int PackedTensors::zero(std::int64_t row, std::int64_t group) const {
  const int mask = (1 << format.bits) - 1;
  if (zeros == nullptr) return (mask + 1) / 2;
  const std::int64_t per_word = 32 / format.bits, across = ceil_div(rows, per_word);
  const std::int64_t index = is_row_major()
                                 ? row / per_word * ceil_div(columns, group_columns) + group
                                 : group * across + row / per_word;
  int place = static_cast<int>(row % per_word);
  if (format.layout == PackedLayout::awq)
    place = detail::kAwqPlace[static_cast<std::size_t>(place)];
  std::uint32_t word = detail::word_at(*zeros, index);
  // One was subtracted from each element of the whole word, so a zero of 0 has borrowed from the
  // next one. Source: GPTQModel, convert_gptq_v2_to_v1_format_module.
  if (format.zeros_less_one) word += format.bits == 4 ? 0x11111111u : 0x01010101u;
  return static_cast<int>(word >> (place * format.bits)) & mask;
}

NANOVLLM_INLINE void PackedTensors::unpack(std::int64_t row, std::int64_t column, Tile& out) const {
  const std::int64_t per_word = 32 / format.bits;
  const std::int64_t row_end = std::min(rows, row + kTileRows);
  const std::int64_t column_end = std::min(columns, column + kTileColumns);
  const auto at = [&](std::int64_t n, std::int64_t k) {
    return &out[static_cast<std::size_t>((n - row) * kTileColumns + k - column)];
  };
  const auto spread = [this](std::uint32_t word, std::uint8_t* to) {  // along a row
    if (format.bits == 8) {
      std::memcpy(to, &word, sizeof word);
    } else {
      const std::uint64_t bytes = detail::spread_nibbles(word);
      std::memcpy(to, &bytes, sizeof bytes);
    }
  };
  switch (format.layout) {
    case PackedLayout::awq:
      for (std::int64_t k = column; k < column_end; k += kWord) {
        for (std::int64_t n = row; n < row_end; n += kWord) {
          std::array<std::uint64_t, 8> square{};
          for (std::int64_t i = 0; i < std::min(kWord, column_end - k); ++i)
            square[static_cast<std::size_t>(i)] =
                detail::spread_nibbles(detail::word_at(*words, ((k + i) * rows + n) / kWord));
          detail::transpose_bytes(square);
          for (std::size_t i = 0; i < 8; ++i)
            std::memcpy(at(n + detail::kAwqOrder[i], k), &square[i], sizeof square[i]);
        }
      }
      return;
    case PackedLayout::gptq:
      for (std::int64_t k = column; k < column_end; k += per_word) {
        for (std::int64_t n = row; n < row_end; ++n)
          spread(detail::word_at(*words, k / per_word * rows + n), at(n, k));
      }
      return;
    default:
      const std::int64_t across = ceil_div(columns, per_word);
      for (std::int64_t n = row; n < row_end; ++n) {
        for (std::int64_t k = column; k < column_end; k += per_word)
          spread(detail::word_at(*words, n * across + k / per_word), at(n, k));
      }
  }
}

NANOVLLM_INLINE void PackedTensors::dequantise(std::int64_t row, std::int64_t count,
                                               std::int64_t first, std::int64_t num,
                                               float* out) const {
  Tile codes;
  for (std::int64_t i = row / kWord * kWord; i < row + count; i += kTileRows) {
    for (std::int64_t j = first / kWord * kWord; j < first + num; j += kTileColumns) {
      unpack(i, j, codes);
      const std::int64_t end = std::min(first + num, j + kTileColumns);
      for (std::int64_t r = std::max(row, i); r < std::min(row + count, i + kTileRows); ++r) {
        const std::uint8_t* const from = &codes[static_cast<std::size_t>((r - i) * kTileColumns)];
        float* const to = out + (r - row) * num;
        for (std::int64_t c = std::max(first, j); c < end;) {
          const std::int64_t group =
              order != nullptr ? detail::word_at(*order, c) : c / group_columns;
          const std::int64_t next =
              order != nullptr ? c + 1 : std::min(end, (group + 1) * group_columns);
          const float factor = scale(r, group);
          const int middle = zero(r, group);
          for (; c < next; ++c) to[c - first] = static_cast<float>(from[c - j] - middle) * factor;
        }
      }
    }
  }
}

NANOVLLM_INLINE IntRows PackedTensors::rows_of(std::int64_t row, std::int64_t count,
                                               std::int64_t first, std::int64_t num) const {
  const int middle = 1 << (format.bits - 1);
  const auto group = [this, row, first, middle](std::int64_t i, std::int64_t j) {
    const std::int64_t index = (first + j) / group_columns;
    const float factor = scale(row + i, index);
    return IntRows::Group{factor, factor * static_cast<float>(middle - zero(row + i, index))};
  };
  IntRows out{.rows = count,
              .columns = num,
              .bits = format.bits,
              .group_columns = group_columns,
              .phase = first % group_columns,
              .has_offsets = zeros != nullptr,
              .group = group};
  if (is_row_major()) {
    out.read = [this, row, first, num](std::int64_t i, std::int8_t* codes) {
      detail::unpack_row(bytes_of(row + i, 1, 0, columns).data(), format.bits, first, num, codes);
    };
    return out;
  }
  out.rows_at_once = kTileRows;
  const std::int64_t base = row / kWord * kWord;
  // Codes of the rows [begin, begin + kTileRows), or of none.
  out.read = [this, row, first, num, base, middle, begin = std::int64_t{-1},
              band = std::vector<std::int8_t>()](std::int64_t i, std::int8_t* codes) mutable {
    const std::int64_t start = base + (row + i - base) / kTileRows * kTileRows;
    if (start != begin) {
      band.resize(static_cast<std::size_t>(kTileRows * num));
      Tile tile;
      for (std::int64_t j = first / kWord * kWord; j < first + num; j += kTileColumns) {
        unpack(start, j, tile);
        const std::int64_t left = std::max(first, j),
                           right = std::min(first + num, j + kTileColumns);
        for (std::int64_t r = 0; r < std::min(kTileRows, rows - start); ++r) {
          const std::uint8_t* const from = &tile[static_cast<std::size_t>(r * kTileColumns)];
          for (std::int64_t c = left; c < right; ++c)
            band[static_cast<std::size_t>(r * num + c - first)] =
                static_cast<std::int8_t>(int{from[c - j]} - middle);
        }
      }
      begin = start;
    }
    std::copy_n(&band[static_cast<std::size_t>((row + i - start) * num)], num, codes);
  };
  return out;
}

NANOVLLM_INLINE std::span<const std::byte> PackedTensors::bytes_of(std::int64_t row,
                                                                   std::int64_t count,
                                                                   std::int64_t first,
                                                                   std::int64_t num) const {
  const std::int64_t per_word = 32 / format.bits;
  std::int64_t begin = 0, end = 0;  // words
  switch (format.layout) {
    case PackedLayout::awq:
      begin = first * (rows / per_word);
      end = (first + num) * (rows / per_word);
      break;
    case PackedLayout::gptq:
      begin = first / per_word * rows;
      end = ceil_div(first + num, per_word) * rows;
      break;
    default:
      begin = row * ceil_div(columns, per_word);
      end = (row + count) * ceil_div(columns, per_word);
  }
  return words->data.subspan(static_cast<std::size_t>(begin) * sizeof(std::uint32_t),
                             static_cast<std::size_t>(end - begin) * sizeof(std::uint32_t));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
