#pragma once
/// The range of a setting, and how an error message writes it.

#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// [low, high], or (low, high].
struct NumberRange {
  double low = -FLT_MAX;
  double high = FLT_MAX;
  bool excludes_low = false;

  [[nodiscard]] constexpr bool has_ends() const { return low > -FLT_MAX || high < FLT_MAX; }

  /// False for NaN.
  [[nodiscard]] constexpr bool contains(double x) const {
    return (excludes_low ? x > low : x >= low) && x <= high;
  }

  /// "in (0, 1]"; ">= 0" where the high end is 2^31 - 1 or more, "finite" without ends.
  [[nodiscard]] std::string interval() const;

  /// "a number in (0, 1]"
  [[nodiscard]] std::string words() const;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

namespace nanovllm {

namespace detail {

NANOVLLM_INLINE std::string shown_bound(double bound) {
  const bool is_whole = std::trunc(bound) == bound && std::abs(bound) < 0x1p53;
  if (is_whole) return std::to_string(static_cast<std::int64_t>(bound));
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, bound).ptr};
}

}  // namespace detail

NANOVLLM_INLINE std::string NumberRange::interval() const {
  if (!has_ends()) return "finite";
  if (high >= 0x7fffffff) return concat(excludes_low ? "> " : ">= ", detail::shown_bound(low));
  return concat("in ", excludes_low ? '(' : '[', detail::shown_bound(low), ", ",
                detail::shown_bound(high), ']');
}

NANOVLLM_INLINE std::string NumberRange::words() const {
  return has_ends() ? "a number " + interval() : "a number in the range of a float";
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
