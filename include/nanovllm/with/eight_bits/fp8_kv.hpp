#pragma once
/// A KV cache of 8-bit floats with a scale for each token and head.

#include <string_view>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/with/eight_bits/row_scaled_kv.hpp"

namespace nanovllm {

/// x ≈ scale · stored in e4m3. Half the bytes of a 16-bit cache and 4 a row: 132 of 256 where
/// head_dim is 128.
///
/// The error of an element is at most 2⁻⁴ of its value, and at most the row's largest / 448 · 2⁻¹⁰
/// where it is smaller than a 28,672nd of that.
struct Fp8Kv : RowScaledKv<Fp8Kv, fp8_e4m3> {
  static constexpr std::string_view kName = "float8_e4m3 with a scale a token and head";
  static constexpr float kLargest = fp8_e4m3::kMax;
  static constexpr int kHalfUnitLog2 = 8;  ///< see KvBytes of cuda/tile/kv_halves.cuh

  NANOVLLM_HD static fp8_e4m3 quantised(float x) { return fp8_e4m3(x); }
};

static_assert(ScaledKvFormat<Fp8Kv>);

}  // namespace nanovllm
