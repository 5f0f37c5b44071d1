#pragma once
/// The types of values and of tensors that a GGUF file may have, by their numbers in the file.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// The type of an entry of the metadata.
enum class GgufValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

namespace detail {

struct GgufValueInfo {
  std::string_view name;
  std::uint32_t bytes;  ///< of a value; of strings and arrays, which have none, 0
};

/// In the order of the enumerators.
inline constexpr std::array<GgufValueInfo, 13> kGgufValues{{{"uint8", 1},
                                                            {"int8", 1},
                                                            {"uint16", 2},
                                                            {"int16", 2},
                                                            {"uint32", 4},
                                                            {"int32", 4},
                                                            {"float32", 4},
                                                            {"bool", 1},
                                                            {"string", 0},
                                                            {"array", 0},
                                                            {"uint64", 8},
                                                            {"int64", 8},
                                                            {"float64", 8}}};

}  // namespace detail

/// "uint32", "string", …
[[nodiscard]] constexpr std::string_view name(GgufValueType type) {
  return detail::kGgufValues[static_cast<std::uint32_t>(type)].name;
}

/// How the elements of a tensor are stored: blocks of some elements in some bytes.
struct GgufTensorType {
  std::uint32_t id = 0;
  std::string_view name{};
  std::uint32_t elements = 1;
  std::uint32_t bytes = 0;
};

/// The type of that number, or null. Knows more types than there are dequantisers for.
[[nodiscard]] const GgufTensorType* find_gguf_type(std::uint32_t id);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>

namespace nanovllm {

namespace detail {

inline constexpr std::array<GgufTensorType, 34> kGgufTensorTypes{
    {{0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
     {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
     {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},      {10, "Q2_K", 256, 84},
     {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
     {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
     {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
     {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
     {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
     {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
     {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
     {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
     {41, "Q1_0", 128, 18}}};

}  // namespace detail

NANOVLLM_INLINE const GgufTensorType* find_gguf_type(std::uint32_t id) {
  const auto found = std::ranges::find(detail::kGgufTensorTypes, id, &GgufTensorType::id);
  return found == detail::kGgufTensorTypes.end() ? nullptr : &*found;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
