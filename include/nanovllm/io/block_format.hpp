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
/// address and takes the tensor's bytes as they are; every other reader calls `dequantise`.
struct BlockFormat {
  std::string_view name;       ///< "Q4_K"; for messages
  std::uint32_t elements = 0;  ///< of a block, in [1, kMaxBlockElements]
  std::uint32_t bytes = 0;     ///< of a block, > 0
  /// out[i] = element i of `count` blocks that lie one after another, for i in
  /// [0, count * elements).
  void (*dequantise)(const std::byte* blocks, std::size_t count, float* out) = nullptr;
};

inline constexpr std::uint32_t kMaxBlockElements = 256;

}  // namespace nanovllm
