#pragma once
/// Rounding of rows to integers in groups of 32 columns, of weights and of activations.
///
/// The result is the same, bit for bit, on every instruction set: quotients are divisions, and what
/// is squared is short enough for the product to be exact, so a multiply-add has nothing to round
/// differently.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/scratch.hpp"
#include "nanovllm/cpu/simd/simd.hpp"

namespace nanovllm::cpu {

/// Columns that share a scale.
inline constexpr std::int64_t kIntGroup = 32;

/// 32 columns of a row of activations: element i is codes[i] · scale.
struct ActivationGroup {
  std::int8_t codes[kIntGroup];  ///< in [-127, 127]
  float scale;                   ///< the largest |x| / 127; NaN where an x is not finite
  std::int32_t sum;              ///< of the codes

  [[nodiscard]] float float_sum() const { return static_cast<float>(sum); }
};

namespace detail {

// Whose scratch memory it is.
struct PaddedColumns;
struct RoundedColumns;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The smallest half that is not below `x` > 0; infinity above 65504.
[[nodiscard]] inline half half_above(float x) {
  half out(x);
  if (static_cast<float>(out) < x) ++out.bits;
  return out;
}

[[nodiscard]] inline bool is_infinite(half x) { return (x.bits & 0x7fffu) == 0x7c00u; }

}  // namespace detail
}  // namespace nanovllm::cpu

#define NANOVLLM_KERNELS "nanovllm/with/eight_bits/cpu/quantise_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"
