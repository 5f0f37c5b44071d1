#pragma once
/// Converts elements of a file to those that a model computes with.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/io/file_dtype.hpp"

namespace nanovllm::detail {

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

}  // namespace nanovllm::detail
