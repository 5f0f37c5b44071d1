#pragma once
/// A KV cache of 8-bit floats with given scales, one for a layer's keys and one for its values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"

namespace nanovllm {

class Checkpoint;

/// stored = e4m3(x / scale), read as stored · scale; quotient and product are float32, rounded to
/// nearest even. The scale is the checkpoint's, or 1. Each row keeps it in 4 bytes, as rows of
/// Fp8Kv keep theirs: 132 bytes of 256 where head_dim is 128.
///
/// What is beyond ±448 · scale, infinities as well, becomes that. NaN is stored as NaN, alone in
/// its row; kernels on tensor cores read it as ±480 · scale. Otherwise the error of an element is
/// at most 2⁻⁴ of its value, or scale · 2⁻¹⁰ where it is smaller than scale · 2⁻⁶.
/// Source: vLLM, `--kv-cache-dtype fp8`.
struct StaticFp8Kv {
  using Stored = fp8_e4m3;
  static constexpr bool kIsProduct = true;  ///< see ByteKvFormat
  static constexpr std::string_view kName = "float8_e4m3 with fixed scales";
  static constexpr int kHalfUnitLog2 = Fp8Kv::kHalfUnitLog2;

  NANOVLLM_HD static fp8_e4m3 quantised(float x) { return fp8_e4m3(x); }

  template <class T>
  static float store(const T* row, std::int64_t n, Stored* to, float scale = 1.f) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = quantised(static_cast<float>(row[i]) / scale);
    return scale;
  }

  static void load(const Stored* from, float scale, std::int64_t n, float* row) {
    Fp8Kv::load(from, scale, n, row);
  }

  /// Those of a checkpoint: `read_kv_scales`.
  [[nodiscard]] static std::vector<KvScales> read_scales(const Checkpoint& checkpoint,
                                                         std::span<const std::string> modules);
};

static_assert(FixedScaleKvFormat<StaticFp8Kv> && !FixedScaleKvFormat<Fp8Kv>);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/with/eight_bits/checkpoint/kv_scales.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::vector<KvScales> StaticFp8Kv::read_scales(
    const Checkpoint& checkpoint, std::span<const std::string> modules) {
  return read_kv_scales(checkpoint, modules);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
