#pragma once
/// Pieces of grammars in the notation of grammar/ebnf/ebnf_parser.hpp: literals, character sets, the
/// contents of JSON strings that match a pattern, and numbers within bounds.
///
/// Each function gives an expression that can stand anywhere in a rule.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/bytes/code_point_set.hpp"

namespace nanovllm::ebnf {

/// The text itself, in quotes. It must be UTF-8.
[[nodiscard]] std::string literal(std::string_view text);

/// One code point of the set, as a class in brackets. The set must not be empty.
[[nodiscard]] std::string character_class(const CodePointSet& set);

/// One of the options, which are not empty; nothing where there are none.
[[nodiscard]] std::string either(const std::vector<std::string>& options);

/// One part after the other; those that are empty, as texts or as expressions, are left out.
[[nodiscard]] std::string sequence(std::initializer_list<std::string_view> parts);

/// `expression` min to max times; no end where max < 0.
[[nodiscard]] std::string repeat(const std::string& expression, long long min, long long max);

/// What stands between the quotes of a JSON string whose value matches the regular expression, in
/// the dialect of grammar/regex/regex_parser.hpp. A pattern with ^ at its begin alone, or $ at its end
/// alone, is open at the other end; every other is the string as a whole. Where there is a choice a
/// character is spelt as itself, and quotes, backslashes and control characters by their escapes.
///
/// Throws RequestError as parse_regex does, and for an anchor that is neither at the begin nor at
/// the end.
[[nodiscard]] std::string string_content(std::string_view pattern);

/// Decimal integers min to max, without leading zeros; nothing where there are none. An end that is
/// not given is open.
[[nodiscard]] std::string integers(std::optional<long long> min, std::optional<long long> max);

/// Bounds of numbers, exact.
struct NumberBounds {
  std::optional<double> min{}, max{};
  bool min_is_exclusive = false, max_is_exclusive = false;
};

/// Decimal numbers within bounds, with at most 15 digits behind the point and no exponent; nothing
/// where there are none. Throws RequestError for a bound beyond 10^15 or one that needs more than 15
/// digits behind the point.
[[nodiscard]] std::string numbers(const NumberBounds& bounds);

}  // namespace nanovllm::ebnf

#if NANOVLLM_BODIES
#include "nanovllm/grammar/ebnf/ebnf_text.inc"
#endif
