#pragma once
/// Decimal numbers of any size, exact.

#include <compare>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm::ebnf {

/// A number by its digits. Zero has no sign.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";  ///< digits, without needless zeros
  std::string fraction{};   ///< digits after the point, without zeros at the end

  Decimal() = default;
  /// The integer that `digits`, with a sign or without, spell.
  explicit Decimal(std::string_view digits);
  template <std::integral Integer>
  Decimal(Integer value) : Decimal(std::string_view(std::to_string(value))) {}
  /// All digits of a whole number; of another the fewest that are read as it, so that texts between
  /// two bounds are read as numbers between them. `value` is finite.
  Decimal(double value);

  [[nodiscard]] bool is_whole() const { return fraction.empty(); }

  friend bool operator==(const Decimal&, const Decimal&) = default;
  friend std::strong_ordering operator<=>(const Decimal& a, const Decimal& b);
};

/// The natural number after `digits`, and the one before, which is not that of "0".
[[nodiscard]] std::string next_natural(std::string digits);
[[nodiscard]] std::string previous_natural(std::string digits);

/// The smallest integer that is not less, or with `is_exclusive` that is more.
[[nodiscard]] Decimal ceiling(const Decimal& value, bool is_exclusive);
/// The largest integer that is not more, or with `is_exclusive` that is less.
[[nodiscard]] Decimal floor(const Decimal& value, bool is_exclusive);

}  // namespace nanovllm::ebnf

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace nanovllm::ebnf {

namespace detail {

/// As numbers, without signs.
NANOVLLM_GRAMMAR_INLINE std::strong_ordering compare_sizes(const Decimal& a, const Decimal& b) {
  if (const auto order = a.whole.size() <=> b.whole.size(); order != 0) return order;
  if (const auto order = a.whole.compare(b.whole) <=> 0; order != 0) return order;
  return a.fraction.compare(b.fraction) <=> 0;
}

}  // namespace detail

NANOVLLM_GRAMMAR_INLINE Decimal::Decimal(std::string_view digits) {
  is_negative = digits.starts_with('-');
  digits.remove_prefix(digits.starts_with('-') || digits.starts_with('+') ? 1 : 0);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  if (!digits.empty()) whole = digits;
  is_negative = is_negative && whole != "0";
}

NANOVLLM_GRAMMAR_INLINE Decimal::Decimal(double value) {
  std::array<char, 1100> text{};  // the smallest numbers have so many digits
  char* const last = text.data() + text.size();
  const bool is_integer = std::floor(value) == value;
  const auto end = is_integer ? std::to_chars(text.data(), last, value, std::chars_format::fixed, 0)
                              : std::to_chars(text.data(), last, value, std::chars_format::fixed);
  const std::string_view all(text.data(), static_cast<std::size_t>(end.ptr - text.data()));
  const std::size_t point = std::min(all.find('.'), all.size());
  *this = Decimal(all.substr(0, point));
  if (point == all.size()) return;
  fraction = all.substr(point + 1);
  is_negative = value < 0;
}

NANOVLLM_GRAMMAR_INLINE std::strong_ordering operator<=>(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative)
    return a.is_negative ? std::strong_ordering::less : std::strong_ordering::greater;
  return a.is_negative ? detail::compare_sizes(b, a) : detail::compare_sizes(a, b);
}

NANOVLLM_GRAMMAR_INLINE std::string next_natural(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0; digits[i] = '0')
    if (digits[i] != '9') return ++digits[i], digits;
  return "1" + digits;
}

NANOVLLM_GRAMMAR_INLINE std::string previous_natural(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0; digits[i] = '9') {
    if (digits[i] == '0') continue;
    --digits[i];
    break;
  }
  return Decimal(digits).whole;
}

NANOVLLM_GRAMMAR_INLINE Decimal ceiling(const Decimal& value, bool is_exclusive) {
  Decimal out{std::string_view(value.whole)};
  out.is_negative = value.is_negative && out.whole != "0";
  if (value.is_whole() ? !is_exclusive : value.is_negative) return out;
  out.whole = out.is_negative ? previous_natural(out.whole) : next_natural(out.whole);
  out.is_negative = out.is_negative && out.whole != "0";
  return out;
}

NANOVLLM_GRAMMAR_INLINE Decimal floor(const Decimal& value, bool is_exclusive) {
  Decimal mirrored = value;
  mirrored.is_negative = !value.is_negative && (value.whole != "0" || !value.is_whole());
  Decimal out = ceiling(mirrored, is_exclusive);
  out.is_negative = !out.is_negative && out.whole != "0";
  return out;
}

}  // namespace nanovllm::ebnf

#endif  // NANOVLLM_GRAMMAR_BODIES
