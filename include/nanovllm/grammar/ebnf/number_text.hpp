#pragma once
/// Decimal numbers within bounds, as pieces of a grammar.

#include <optional>
#include <string>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm::ebnf {

/// Decimal integers min to max, without leading zeros; nothing where there are none. An end that is
/// not given is open.
[[nodiscard]] std::string integers(std::optional<long long> min, std::optional<long long> max);

/// Bounds of numbers, exact.
struct NumberBounds {
  std::optional<double> min{}, max{};
  bool min_is_exclusive = false, max_is_exclusive = false;
};

/// Decimal numbers within bounds, with at most 15 digits behind the point and no exponent; nothing
/// where there are none. Throws RequestError for a bound beyond 10^15 or one that needs more
/// than 15 digits behind the point.
[[nodiscard]] std::string numbers(const NumberBounds& bounds);

}  // namespace nanovllm::ebnf

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/ebnf/ebnf_text.hpp"

namespace nanovllm::ebnf {

namespace detail {

NANOVLLM_INLINE std::string digits(std::size_t min, std::size_t max) {
  return max == 0 ? "" : repeat("[0-9]", static_cast<long long>(min), static_cast<long long>(max));
}

NANOVLLM_INLINE std::string digit_class(char first, char last) {
  return first == last ? std::string("[") + first + "]"
                       : std::string("[") + first + "-" + last + "]";
}

/// Strings of digits as long as both, from `low` to `high`; low <= high.
NANOVLLM_INLINE std::string same_length(std::string_view low, std::string_view high) {
  if (low.empty()) return "\"\"";
  const bool is_whole =
      low.find_first_not_of('0') == low.npos && high.find_first_not_of('9') == high.npos;
  if (is_whole) return digits(low.size(), low.size());
  if (low[0] == high[0])
    return sequence({digit_class(low[0], low[0]), same_length(low.substr(1), high.substr(1))});
  const std::string nines(low.size() - 1, '9'), zeros(low.size() - 1, '0');
  const bool takes_low = low.substr(1) == zeros, takes_high = high.substr(1) == nines;
  std::vector<std::string> options;
  if (!takes_low)
    options.push_back(sequence({digit_class(low[0], low[0]), same_length(low.substr(1), nines)}));
  const char first = static_cast<char>(low[0] + (takes_low ? 0 : 1));
  const char last = static_cast<char>(high[0] - (takes_high ? 0 : 1));
  if (first <= last)
    options.push_back(sequence({digit_class(first, last), digits(zeros.size(), zeros.size())}));
  if (!takes_high)
    options.push_back(
        sequence({digit_class(high[0], high[0]), same_length(zeros, high.substr(1))}));
  return either(options);
}

/// Integers min to max, neither negative; no end without max.
NANOVLLM_INLINE std::string naturals(unsigned long long min,
                                     std::optional<unsigned long long> max) {
  std::vector<std::string> options;
  std::string low = std::to_string(min);
  const std::string high = max ? std::to_string(*max) : std::string(low.size(), '9');
  while (low.size() < high.size()) {
    options.push_back(same_length(low, std::string(low.size(), '9')));
    low = "1" + std::string(low.size(), '0');
  }
  options.push_back(same_length(low, high));
  if (!max)
    options.push_back("([1-9] " + repeat("[0-9]", static_cast<long long>(low.size()), -1) + ")");
  return either(options);
}

NANOVLLM_INLINE unsigned long long magnitude(long long value) {
  return value < 0 ? 0ULL - static_cast<unsigned long long>(value)
                   : static_cast<unsigned long long>(value);
}

}  // namespace detail

NANOVLLM_INLINE std::string integers(std::optional<long long> min, std::optional<long long> max) {
  std::vector<std::string> options;
  if (min && max && *min > *max) return {};
  if (!max || *max >= 0) {
    options.push_back(
        detail::naturals(min && *min > 0 ? detail::magnitude(*min) : 0,
                         max ? std::optional(detail::magnitude(*max)) : std::nullopt));
  }
  if (!min || *min < 0) {
    options.push_back(
        "(\"-\" " +
        detail::naturals(max && *max < 0 ? detail::magnitude(*max) : 1,
                         min ? std::optional(detail::magnitude(*min)) : std::nullopt) +
        ")");
  }
  return either(options);
}

namespace detail {

/// A number that is not negative, as decimal digits.
struct Decimal {
  unsigned long long whole = 0;
  std::string fraction;  ///< without zeros at its end
};

inline constexpr std::size_t kMaxFraction = 15;

NANOVLLM_INLINE Decimal decimal(double value) {
  check<RequestError>(value <= 1e15, "the bound ", value, " of a number is beyond 1e15");
  std::array<char, 64> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  check<RequestError>(end.ec == std::errc{}, "the bound ", value, " of a number is too close to 0");
  const std::string_view all(text.data(), static_cast<std::size_t>(end.ptr - text.data()));
  const std::size_t point = std::min(all.find('.'), all.size());
  Decimal out;
  std::from_chars(all.data(), all.data() + point, out.whole);
  if (point < all.size()) out.fraction = all.substr(point + 1);
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  check<RequestError>(out.fraction.size() <= kMaxFraction, "the bound ", value,
                      " of a number has more than ", kMaxFraction, " digits behind the point");
  return out;
}

/// Digits behind a point that make more than `low`, or as much where that is allowed, and less than
/// `high`, likewise. Digits are compared as what they stand for: "5" is "50". At least one digit
/// and at most `left`. Without `high` there is no upper end.
NANOVLLM_INLINE std::string fractions(std::string_view low, bool takes_low,
                                      std::optional<std::string_view> high, bool takes_high,
                                      std::size_t left) {
  if (left == 0) return {};
  const bool low_is_zero = low.find_first_not_of('0') == low.npos;
  if (!high && low_is_zero && takes_low) return digits(1, left);
  std::vector<std::string> options;
  const int low_digit = low.empty() ? 0 : low[0] - '0';
  const int high_digit = !high ? 10 : high->empty() ? 0 : (*high)[0] - '0';
  const auto tail = [](std::string_view text) { return text.empty() ? text : text.substr(1); };
  const auto add = [&](int first, int last, const std::string& rest, bool may_stop) {
    if (first > last) return;
    const std::string begin =
        digit_class(static_cast<char>('0' + first), static_cast<char>('0' + last));
    if (may_stop) options.push_back(begin);
    if (!rest.empty()) options.push_back(sequence({begin, rest}));
  };
  // A digit between the two leaves all the rest free.
  const std::string any = left > 1 ? digits(1, left - 1) : "";
  add(low_digit + 1, std::min(high_digit - 1, 9), any, true);
  const std::string_view low_rest = tail(low);
  const bool low_may_stop = low_rest.find_first_not_of('0') == low_rest.npos && takes_low;
  if (low_digit < high_digit) {
    add(low_digit, low_digit, fractions(low_rest, takes_low, std::nullopt, true, left - 1),
        low_may_stop);
  }
  if (!high) return either(options);
  const std::string_view high_rest = tail(*high);
  const bool high_is_whole = high_rest.find_first_not_of('0') == high_rest.npos;
  if (low_digit < high_digit) {
    add(high_digit, high_digit,
        high_is_whole && !takes_high ? "" : fractions("", true, high_rest, takes_high, left - 1),
        !high_is_whole || takes_high);
  } else if (low_digit == high_digit && !(high_is_whole && !takes_high)) {
    add(low_digit, low_digit, fractions(low_rest, takes_low, high_rest, takes_high, left - 1),
        low_may_stop);
  }
  return either(options);
}

/// Numbers that are not negative, from `low` to `high` if there is one.
NANOVLLM_INLINE std::string positive_numbers(const Decimal& low, bool takes_low,
                                             const std::optional<Decimal>& high, bool takes_high) {
  constexpr std::size_t kDigits = kMaxFraction;
  std::vector<std::string> options;
  const auto add = [&](const std::string& whole, const std::string& fraction, bool alone) {
    if (whole.empty()) return;
    if (alone) options.push_back(whole);
    if (!fraction.empty()) options.push_back(sequence({whole, "\".\"", fraction}));
  };
  const auto one = [](unsigned long long whole) { return literal(std::to_string(whole)); };
  const bool one_whole = high && high->whole == low.whole;
  const bool low_alone = low.fraction.empty() && takes_low;
  if (one_whole) {
    const bool is_empty = high->fraction.empty() && !takes_high;
    if (!is_empty) {
      add(one(low.whole), fractions(low.fraction, takes_low, high->fraction, takes_high, kDigits),
          low_alone);
    }
    return either(options);
  }
  add(one(low.whole), fractions(low.fraction, takes_low, std::nullopt, true, kDigits), low_alone);
  if (!high) {
    add(naturals(low.whole + 1, std::nullopt), digits(1, kDigits), true);
    return either(options);
  }
  if (low.whole + 1 < high->whole)
    add(naturals(low.whole + 1, high->whole - 1), digits(1, kDigits), true);
  const bool high_alone = takes_high || !high->fraction.empty();
  if (high_alone)
    add(one(high->whole), fractions("", true, high->fraction, takes_high, kDigits), true);
  return either(options);
}

}  // namespace detail

NANOVLLM_INLINE std::string numbers(const NumberBounds& bounds) {
  const auto& [min, max, min_is_exclusive, max_is_exclusive] = bounds;
  if (min && max && (*min > *max || (*min == *max && (min_is_exclusive || max_is_exclusive))))
    return {};
  const auto at = [](double value) { return detail::decimal(std::abs(value)); };
  std::vector<std::string> options;
  if (!max || *max > 0 || (*max == 0 && !max_is_exclusive)) {
    const bool has_low = min && *min >= 0;
    options.push_back(detail::positive_numbers(
        has_low ? at(*min) : detail::Decimal{}, !has_low || !min_is_exclusive,
        max ? std::optional(at(*max)) : std::nullopt, !max_is_exclusive));
  }
  if (!min || *min < 0) {
    const bool has_low = max && *max <= 0;
    const std::string mirrored = detail::positive_numbers(
        has_low ? at(*max) : detail::Decimal{}, has_low ? !max_is_exclusive : false,
        min ? std::optional(at(*min)) : std::nullopt, !min_is_exclusive);
    if (!mirrored.empty()) options.push_back("(\"-\" " + mirrored + ")");
  }
  std::erase(options, "");
  return either(options);
}

}  // namespace nanovllm::ebnf

#endif  // NANOVLLM_BODIES
