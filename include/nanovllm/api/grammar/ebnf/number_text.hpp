#pragma once
/// Decimal numbers of any size, exact, and those within bounds as pieces of a grammar.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <compare>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"

namespace nanovllm::ebnf {

/// A number by its digits. Zero has no sign.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";  ///< digits, without needless zeros
  std::string fraction{};   ///< digits after the point, without zeros at the end

  Decimal() = default;
  /// The integer that `digits`, with a sign or without, spell.
  explicit Decimal(std::string_view digits) {
    is_negative = digits.starts_with('-');
    digits.remove_prefix(digits.starts_with('-') || digits.starts_with('+') ? 1 : 0);
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    if (!digits.empty()) whole = digits;
    is_negative = is_negative && whole != "0";
  }

  template <std::integral Integer>
  Decimal(Integer value) : Decimal(std::string_view(std::to_string(value))) {}

  /// All digits of a whole number; of another the fewest that are read as it, so that texts between
  /// two bounds are read as numbers between them. `value` is finite.
  Decimal(double value) {
    std::array<char, 1100> text{};  // the smallest numbers have so many digits
    char* const last = text.data() + text.size();
    const bool is_integer = std::floor(value) == value;
    const auto end = is_integer
                         ? std::to_chars(text.data(), last, value, std::chars_format::fixed, 0)
                         : std::to_chars(text.data(), last, value, std::chars_format::fixed);
    const std::string_view all(text.data(), static_cast<std::size_t>(end.ptr - text.data()));
    const std::size_t point = std::min(all.find('.'), all.size());
    *this = Decimal(all.substr(0, point));
    if (point == all.size()) return;
    fraction = all.substr(point + 1);
    is_negative = value < 0;
  }

  [[nodiscard]] bool is_whole() const { return fraction.empty(); }

  friend bool operator==(const Decimal&, const Decimal&) = default;
  friend std::strong_ordering operator<=>(const Decimal& a, const Decimal& b);
};

/// Bounds of numbers, exact. A `max` above 10^40, or a `min` below -10^40, counts as that, and is
/// exclusive if it was: 10^40 is the same 64-bit float as 1e40, which has other digits.
struct NumberBounds {
  std::optional<Decimal> min{}, max{};
  bool min_is_exclusive = false, max_is_exclusive = false;

  /// Whether only numbers from 10^40 on, or only those to -10^40, are within: such bounds are not
  /// written out, since digits cost their square.
  [[nodiscard]] bool are_far() const;
};

/// Decimal integers within bounds, without leading zeros; nothing where there are none. An end that
/// is not given is open.
[[nodiscard]] std::string integers(const NumberBounds& bounds);

namespace detail {

/// As numbers, without signs.
inline std::strong_ordering compare_sizes(const Decimal& a, const Decimal& b) {
  if (const auto order = a.whole.size() <=> b.whole.size(); order != 0) return order;
  if (const auto order = a.whole.compare(b.whole) <=> 0; order != 0) return order;
  return a.fraction.compare(b.fraction) <=> 0;
}

}  // namespace detail

inline std::strong_ordering operator<=>(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative)
    return a.is_negative ? std::strong_ordering::less : std::strong_ordering::greater;
  return a.is_negative ? detail::compare_sizes(b, a) : detail::compare_sizes(a, b);
}

/// The natural number after `digits`, and the one before, which is not that of "0".
[[nodiscard]] inline std::string next_natural(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0; digits[i] = '0')
    if (digits[i] != '9') return ++digits[i], digits;
  return "1" + digits;
}

[[nodiscard]] inline std::string previous_natural(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0; digits[i] = '9') {
    if (digits[i] == '0') continue;
    --digits[i];
    break;
  }
  return Decimal(digits).whole;
}

/// The smallest integer that is not less, or with `is_exclusive` that is more.
[[nodiscard]] inline Decimal ceiling(const Decimal& value, bool is_exclusive) {
  Decimal out{std::string_view(value.whole)};
  out.is_negative = value.is_negative && out.whole != "0";
  if (value.is_whole() ? !is_exclusive : value.is_negative) return out;
  out.whole = out.is_negative ? previous_natural(out.whole) : next_natural(out.whole);
  out.is_negative = out.is_negative && out.whole != "0";
  return out;
}

/// The largest integer that is not more, or with `is_exclusive` that is less.
[[nodiscard]] inline Decimal floor(const Decimal& value, bool is_exclusive) {
  Decimal mirrored = value;
  mirrored.is_negative = !value.is_negative && (value.whole != "0" || !value.is_whole());
  Decimal out = ceiling(mirrored, is_exclusive);
  out.is_negative = !out.is_negative && out.whole != "0";
  return out;
}

namespace detail {

inline constexpr std::size_t kMaxFraction = 15;

/// 10^40.
[[nodiscard]] inline Decimal far_number() {
  return Decimal(std::string_view("1" + std::string(40, '0')));
}

/// The bounds that are written.
inline NumberBounds with_few_digits(NumberBounds bounds) {
  Decimal most = far_number();
  if (bounds.max && *bounds.max > most) bounds.max = most;
  most.is_negative = true;
  if (bounds.min && *bounds.min < most) bounds.min = most;
  return bounds;
}

inline std::string digits(std::size_t min, std::size_t max) {
  return max == 0 ? "" : repeat("[0-9]", static_cast<long long>(min), static_cast<long long>(max));
}

inline std::string digit_class(char first, char last) {
  return first == last ? std::string("[") + first + "]"
                       : std::string("[") + first + "-" + last + "]";
}

/// Strings of digits as long as both, from `low` to `high`; low <= high.
inline std::string same_length(std::string_view low, std::string_view high) {
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
inline std::string naturals(const std::string& low, const std::optional<std::string>& max) {
  if (max && max->size() == low.size()) return same_length(low, *max);
  // Those as long as the least, those as long as the largest, and all in between.
  std::vector<std::string> options{same_length(low, std::string(low.size(), '9'))};
  if (max) options.push_back(same_length("1" + std::string(max->size() - 1, '0'), *max));
  const auto shortest = static_cast<long long>(low.size());
  const long long longest = max ? static_cast<long long>(max->size()) - 2 : -1;
  if (!max || shortest <= longest)
    options.push_back("([1-9] " + repeat("[0-9]", shortest, longest) + ")");
  return either(options);
}

}  // namespace detail

inline bool NumberBounds::are_far() const {
  Decimal most = detail::far_number();
  if (min && *min >= most) return true;
  most.is_negative = true;
  return max && *max <= most;
}

inline std::string integers(const NumberBounds& all) {
  const NumberBounds bounds = detail::with_few_digits(all);
  std::optional<Decimal> min, max;
  if (bounds.min) min = ceiling(*bounds.min, bounds.min_is_exclusive);
  if (bounds.max) max = floor(*bounds.max, bounds.max_is_exclusive);
  if (min && max && *min > *max) return {};
  const auto whole = [](const std::optional<Decimal>& bound) {
    return bound ? std::optional(bound->whole) : std::nullopt;
  };
  std::vector<std::string> options;
  if (!max || !max->is_negative)
    options.push_back(detail::naturals(min && !min->is_negative ? min->whole : "0", whole(max)));
  if (!min || min->is_negative)
    options.push_back(
        "(\"-\" " + detail::naturals(max && max->is_negative ? max->whole : "1", whole(min)) + ")");
  return either(options);
}

namespace detail {

/// Digits after a point that make more than `low`, or as much where that is allowed, and less than
/// `high`, likewise. Digits are compared as what they stand for: "5" is "50". At least one digit
/// and at most `left`. Without `high` there is no upper end.
inline std::string fractions(std::string_view low, bool takes_low,
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
inline std::string positive_numbers(const Decimal& low, bool takes_low,
                                    const std::optional<Decimal>& high, bool takes_high) {
  // Two numbers of up to 15 digits are two as 64-bit floats.
  const auto near = [](const Decimal& bound, bool takes) {
    return takes ? kMaxFraction : kMaxFraction - std::min(kMaxFraction, bound.whole.size());
  };
  const std::size_t low_digits = near(low, takes_low);
  const std::size_t high_digits = high ? near(*high, takes_high) : kMaxFraction;
  const std::size_t inner_digits = low_digits == 0 || high_digits == 0 ? 0 : kMaxFraction;
  std::vector<std::string> options;
  const auto add = [&](const std::string& whole, const std::string& fraction, bool alone) {
    if (whole.empty()) return;
    if (alone) options.push_back(whole);
    if (!fraction.empty()) options.push_back(sequence({whole, "\".\"", fraction}));
  };
  const bool one_whole = high && high->whole == low.whole;
  const bool low_alone = low.is_whole() && takes_low;
  if (one_whole) {
    const bool is_empty = high->is_whole() && !takes_high;
    if (!is_empty) {
      add(literal(low.whole),
          fractions(low.fraction, takes_low, high->fraction, takes_high,
                    std::min(low_digits, high_digits)),
          low_alone);
    }
    return either(options);
  }
  // Below an exclusive whole bound, the digits of the number before are few as well.
  const bool has_last = high && high->is_whole() && !takes_high;
  const std::string last = has_last ? previous_natural(high->whole) : "";
  const auto above = [&](const Decimal& from, bool takes, std::size_t most) {
    if (has_last && from.whole == last) most = std::min(most, high_digits);
    add(literal(from.whole), fractions(from.fraction, takes, std::nullopt, true, most),
        from.is_whole() && takes);
  };
  above(low, takes_low, low_digits);
  const Decimal next{std::string_view(next_natural(low.whole))};
  if (!high) {
    add(naturals(next.whole, std::nullopt), digits(1, inner_digits), true);
    return either(options);
  }
  const Decimal end = has_last ? Decimal(std::string_view(last)) : *high;
  if (next.whole != end.whole && Decimal(std::string_view(end.whole)) > next)
    add(naturals(next.whole, previous_natural(end.whole)), digits(1, inner_digits), true);
  if (has_last) {
    if (last != low.whole) above(end, true, high_digits);
  } else {
    add(literal(high->whole), fractions("", true, high->fraction, takes_high, high_digits), true);
  }
  return either(options);
}

}  // namespace detail

/// Decimal numbers within bounds, with at most 15 digits after the point and no exponent; nothing
/// where there are none. Near a bound that is exclusive there are so few digits that no text is
/// read as the bound by those who read numbers as 64-bit floats.
[[nodiscard]] inline std::string numbers(const NumberBounds& bounds) {
  const auto [min, max, min_is_exclusive, max_is_exclusive] = detail::with_few_digits(bounds);
  if (min && max && (*min > *max || (*min == *max && (min_is_exclusive || max_is_exclusive))))
    return {};
  const auto at = [](Decimal value) {
    value.is_negative = false;
    return value;
  };
  const auto is_zero = [](const Decimal& value) { return value == Decimal(); };
  std::vector<std::string> options;
  if (!max || (!max->is_negative && !(is_zero(*max) && max_is_exclusive))) {
    const bool has_low = min && !min->is_negative;
    options.push_back(
        detail::positive_numbers(has_low ? at(*min) : Decimal{}, !has_low || !min_is_exclusive,
                                 max ? std::optional(at(*max)) : std::nullopt, !max_is_exclusive));
  }
  if (!min || min->is_negative) {
    const bool has_low = max && (max->is_negative || is_zero(*max));
    const std::string mirrored = detail::positive_numbers(
        has_low ? at(*max) : Decimal{}, has_low ? !max_is_exclusive : false,
        min ? std::optional(at(*min)) : std::nullopt, !min_is_exclusive);
    if (!mirrored.empty()) options.push_back("(\"-\" " + mirrored + ")");
  }
  std::erase(options, "");
  return either(options);
}

}  // namespace nanovllm::ebnf
