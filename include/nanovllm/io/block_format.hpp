#pragma once
/// Formats of files that store the elements of a tensor in blocks with scales of their own.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nanovllm {

/// One such format. A block has consecutive elements of one row, and a row has whole blocks, one
/// after another. Blocks may lie at any address.
///
/// Formats are constants, so a reader that computes with the blocks themselves knows one by its
/// address and takes the tensor's bytes as they are. One that computes with integers takes those of
/// `BlockIntegers`, where a format has them; every other reader calls `dequantise`.
struct BlockFormat {
  std::string_view name;       ///< "Q4_K"; for messages
  std::uint32_t elements = 0;  ///< of a block, in [1, kMaxBlockElements]
  std::uint32_t bytes = 0;     ///< of a block, > 0
  /// out[i] = element i of `count` blocks that lie one after another, for i in
  /// [0, count * elements).
  void (*dequantise)(const std::byte* blocks, std::size_t count, float* out) = nullptr;
  const struct BlockIntegers* integers = nullptr;  ///< the same elements as integers; may be null
};

/// Elements of a block as integers: element i is scale · code(i) + offset, with the scale and the
/// offset of its group.
struct BlockIntegers {
  struct Scale {
    float scale = 1.f, offset = 0.f;
  };

  int bits = 8;              ///< codes are in [-2^(bits - 1), 2^(bits - 1)), at most 8
  std::uint32_t group = 0;   ///< elements of a group, a divisor of the block's
  bool has_offsets = false;  ///< whether any offset is not 0
  /// Writes the codes of a block.
  void (*read)(const std::byte* block, std::int8_t* codes) = nullptr;
  /// Of group `index` of a block.
  Scale (*scale)(const std::byte* block, std::uint32_t index) = nullptr;
};

inline constexpr std::uint32_t kMaxBlockElements = 256;

}  // namespace nanovllm
