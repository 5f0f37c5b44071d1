#pragma once
/// The scales of keys and values that a checkpoint has for an 8-bit cache.

#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm {

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

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
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

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
