#pragma once
/// The JSON header of a safetensors file: what it may say, and its reader.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

// clang-format off
/// Every element type the format knows. The engine computes with f32, f16 and bf16 only.
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

/// One tensor of a file. `begin` and `end` are byte offsets from the end of the header.
struct TensorInfo {
  std::string name;
  FileDType dtype{};
  std::vector<std::uint64_t> shape;  ///< empty for a scalar; an extent may be 0
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A file is not valid safetensors. `kind` says which check refused it.
struct SafetensorsError : LoadError {
  enum class Kind : std::uint8_t {
    header_too_small,                ///< fewer than 8 bytes
    header_too_large,                ///< the header claims more than 100,000,000 bytes
    invalid_header_length,           ///< the header reaches past the end of the file
    invalid_header,                  ///< the header is not UTF-8
    invalid_header_deserialization,  ///< not JSON, or not the JSON of this format
    invalid_offset,                  ///< a hole, an overlap, or an end before its begin
    validation_overflow,             ///< a tensor's size in bits exceeds 64 bits
    misaligned_slice,                ///< a tensor of sub-byte elements ends inside a byte
    tensor_invalid_info,             ///< the offsets do not span what dtype and shape need
    metadata_incomplete_buffer,      ///< the tensors do not end where the file ends
  };

  SafetensorsError(Kind kind_in, const std::string& message) : LoadError(message), kind(kind_in) {}

  Kind kind;
};

/// The name that the format's own library gives to this refusal, such as "InvalidOffset".
[[nodiscard]] constexpr std::string_view name(SafetensorsError::Kind kind) {
  using enum SafetensorsError::Kind;
  switch (kind) {
    case header_too_small: return "HeaderTooSmall";
    case header_too_large: return "HeaderTooLarge";
    case invalid_header_length: return "InvalidHeaderLength";
    case invalid_header: return "InvalidHeader";
    case invalid_header_deserialization: return "InvalidHeaderDeserialization";
    case invalid_offset: return "InvalidOffset";
    case validation_overflow: return "ValidationOverflow";
    case misaligned_slice: return "MisalignedSlice";
    case tensor_invalid_info: return "TensorInvalidInfo";
    case metadata_incomplete_buffer: return "MetadataIncompleteBuffer";
  }
  return "?";
}

namespace detail {

/// "[2, 3]", for messages.
[[nodiscard]] std::string shape_string(const std::vector<std::uint64_t>& shape);
[[nodiscard]] std::string shape_string(const std::vector<std::int64_t>& shape);

/// The tensors that header `json` describes, in the order of their bytes. `data_bytes` is the size
/// of what follows the header. Throws SafetensorsError.
[[nodiscard]] std::vector<TensorInfo> parse_safetensors_header(std::string_view json,
                                                               std::uint64_t data_bytes);

}  // namespace detail
}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/io/safetensors_header.inc"
#endif
