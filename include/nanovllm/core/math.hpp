#pragma once
/// Integer helpers used by host and device code alike.

#include <type_traits>

#include "nanovllm/core/config.hpp"

namespace nanovllm {

/// log2(e): e^x = 2^(x · kLog2E).
inline constexpr double kLog2E = 1.4426950408889634;

/// ⌈a / b⌉ for a ≥ 0, b > 0.
template <class Int>
[[nodiscard]] NANOVLLM_HD constexpr Int ceil_div(Int a, std::type_identity_t<Int> b) {
  return (a + b - 1) / b;
}

/// Smallest multiple of `b` that is ≥ `a`, for a ≥ 0, b > 0.
template <class Int>
[[nodiscard]] NANOVLLM_HD constexpr Int align_up(Int a, std::type_identity_t<Int> b) {
  return ceil_div(a, b) * b;
}

/// Largest multiple of `b` that is ≤ `a`, for a ≥ 0, b > 0.
template <class Int>
[[nodiscard]] NANOVLLM_HD constexpr Int align_down(Int a, std::type_identity_t<Int> b) {
  return a / b * b;
}

}  // namespace nanovllm
