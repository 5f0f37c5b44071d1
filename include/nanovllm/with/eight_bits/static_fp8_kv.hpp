#pragma once
/// A KV cache of 8-bit floats with given scales, one for a layer's keys and one for its values,
/// which a checkpoint may have.

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

/// Reads the scales of each module of attention, such as "model.layers.0.self_attn", in the order
/// of `modules`. A module's scales are the first of these pairs of which one is there; names of
/// scales of values have a v instead:
///
/// - `<module>.k_scale`: llm-compressor, compressed-tensors;
/// - `<module>.k_proj.k_scale`: ModelOpt;
/// - `<module>.k_cache.scale`;
/// - `<module>.k_proj.output_scale`: Quark, older files of compressed-tensors;
/// - `<module>.kv_scale`: deprecated, of both.
///
/// A module with none of them has 1 and 1. A scale is a tensor of one element of F32, F16, BF16 or
/// F8_E8M0, positive, and small enough that 448 times it is finite.
///
/// Throws one LoadError that names every scale that is not so, that stands alone, or that has one
/// of these names and belongs to none of the modules.
[[nodiscard]] std::vector<KvScales> read_kv_scales(const Checkpoint& checkpoint,
                                                   std::span<const std::string> modules);

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

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"

namespace nanovllm {

namespace detail {

/// After the name of a module, keys and values; the last is one for both.
inline constexpr std::array<std::array<std::string_view, 2>, 5> kKvScaleNames = {
    {{".k_scale", ".v_scale"},
     {".k_proj.k_scale", ".v_proj.v_scale"},
     {".k_cache.scale", ".v_cache.scale"},
     {".k_proj.output_scale", ".v_proj.output_scale"},
     {".kv_scale", ".kv_scale"}}};

/// What is wrong with a scale of keys or values; empty if nothing.
NANOVLLM_INLINE std::string kv_scale_problem(const CheckpointTensor& tensor) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : tensor.shape) count *= extent;
  if (count != 1)
    return concat("must be one scale for the whole tensor of keys or values, of shape [] or [1], ",
                  "got ", shape_string(tensor.shape));
  if (!holds_scales(tensor))
    return concat("must be F32, F16, BF16 or F8_E8M0, got ", tensor.type_name());
  const float scale = scale_at(tensor, 0);
  if (!(scale > 0.f && std::isfinite(scale * fp8_e4m3::kMax)))
    return concat("must be a positive scale, and finite when multiplied by 448, got ", scale);
  return {};
}

}  // namespace detail

NANOVLLM_INLINE std::vector<KvScales> read_kv_scales(const Checkpoint& checkpoint,
                                                     std::span<const std::string> modules) {
  std::vector<KvScales> out;
  std::set<std::string> known;
  std::string problems;
  const auto wrong = [&](const auto&... words) { problems += concat("\n  - '", words...); };
  const auto read = [&](const CheckpointTensor& tensor) {
    const std::string problem = detail::kv_scale_problem(tensor);
    if (problem.empty()) return detail::scale_at(tensor, 0);
    wrong(tensor.name, "' ", problem);
    return 1.f;
  };
  for (const std::string& module : modules) {
    std::array<const CheckpointTensor*, 2> found{};
    for (const auto& names : detail::kKvScaleNames) {
      const bool is_first = found[0] == nullptr && found[1] == nullptr;
      for (std::size_t i = 0; i < 2; ++i) {
        const std::string name = concat(module, names[i]);
        known.insert(name);
        if (is_first) found[i] = checkpoint.find(name);
      }
    }
    const auto [k, v] = found;
    if ((k == nullptr) != (v == nullptr))
      wrong((k ? k : v)->name, "' must have a scale of ", k ? "values" : "keys",
            " beside it, of the same layer");
    KvScales scales;
    if (k != nullptr) scales.k = read(*k);
    if (v != nullptr) scales.v = v == k ? scales.k : read(*v);
    out.push_back(scales);
  }
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto ends = [&](const auto& names) {
      return tensor.name.ends_with(names[0]) || tensor.name.ends_with(names[1]);
    };
    if (std::ranges::any_of(detail::kKvScaleNames, ends) && !known.contains(tensor.name))
      wrong(tensor.name, "' is a scale of keys or values under a name that is not read");
  }
  check<LoadError>(problems.empty(), "'", checkpoint.name(),
                   "' does not hold scales for this KV cache:", problems);
  return out;
}

NANOVLLM_INLINE std::vector<KvScales> StaticFp8Kv::read_scales(
    const Checkpoint& checkpoint, std::span<const std::string> modules) {
  return read_kv_scales(checkpoint, modules);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
