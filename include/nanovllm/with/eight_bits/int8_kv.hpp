#pragma once
/// A KV cache of 8-bit integers with a scale for each token and head.

#include <cmath>
#include <cstdint>
#include <string_view>

#include "nanovllm/core/config.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"

namespace nanovllm {

/// x ≈ scale · stored in integers. Half the bytes of a 16-bit cache and 4 a row: 132 of 256 where
/// head_dim is 128.
///
/// The error of an element is at most the row's largest / 254. docs/quantization.md compares it
/// with Fp8Kv, which takes the same bytes.
struct Int8Kv : RowScaledKv<Int8Kv, std::int8_t> {
  static constexpr std::string_view kName = "int8 with a scale a token and head";
  static constexpr float kLargest = 127.f;
  static constexpr int kHalfUnitLog2 = 0;  ///< see KvBytes of cuda/tile/kv_halves.cuh

  /// The nearest integer, ties to even.
  NANOVLLM_HD static std::int8_t quantised(float x) {
    const float most = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
    return std::isnan(most) ? std::int8_t{0} : static_cast<std::int8_t>(std::rint(most));
  }
};

static_assert(ScaledKvFormat<Int8Kv>);

}  // namespace nanovllm
