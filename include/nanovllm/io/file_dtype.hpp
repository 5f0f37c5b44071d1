#pragma once
/// The element types and shapes of tensors in files.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

// clang-format off
/// Every element type that safetensors knows. The engine computes with f32, f16 and bf16 only.
enum class FileDType : std::uint8_t {
  boolean, f4, f6_e2m3, f6_e3m2, u8, i8, f8_e5m2, f8_e4m3, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz,
  i16, u16, f16, bf16, i32, u32, f32, c64, f64, i64, u64
};
// clang-format on

namespace detail {

struct FileDTypeInfo {
  std::string_view name;
  std::uint32_t bits;
};

/// In the order of the enumerators.
inline constexpr std::array<FileDTypeInfo, 22> kFileDTypes{
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

}  // namespace detail

/// "BF16", "F32", …: the spelling in the file.
[[nodiscard]] constexpr std::string_view name(FileDType dtype) {
  return detail::kFileDTypes[static_cast<std::size_t>(dtype)].name;
}

/// Bits of one element.
[[nodiscard]] constexpr std::uint32_t size_bits(FileDType dtype) {
  return detail::kFileDTypes[static_cast<std::size_t>(dtype)].bits;
}

namespace detail {

/// "[2, 3]", for messages.
template <class Int>
[[nodiscard]] std::string shape_string(const std::vector<Int>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace detail

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
