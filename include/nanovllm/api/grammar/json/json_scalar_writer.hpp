#pragma once
/// Strings and numbers of JSON Schemas as pieces of a grammar.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/ebnf/number_text.hpp"
#include "nanovllm/api/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_reader.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::json_schema {

/// A regular expression for strings of a format: every string that it matches has the format. Empty
/// for a format that JSON Schema defines and that has none here; unset for a name that JSON Schema
/// does not define, which says nothing of what is valid.
[[nodiscard]] inline std::optional<std::string> format_pattern(std::string_view format) {
  // The days that each month has; the 29th of February in years that four divides, centuries aside.
  const std::string day_of_year =
      "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"
      "02-(0[1-9]|1\\d|2[0-8]))";
  // Years begin with 0001, as calendars of most languages do.
  const std::string year = "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})";
  const std::string leap_day = "(0[1-9]|[1-9]\\d)(0[48]|[2468][048]|[13579][26])-02-29";
  const std::string date = "(" + year + "-" + day_of_year + "|" + leap_day + ")";
  const std::string time =
      "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
  const std::string label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
  const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const std::string word = "[0-9a-fA-F]{1,4}";
  if (format == "date") return date;
  if (format == "time") return time;
  if (format == "date-time") return date + "T" + time;
  if (format == "duration") {
    const std::string clock = "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)";
    const std::string days = "(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)";
    return "P(" + days + "(" + clock + ")?|" + clock + "|\\d+W)";
  }
  if (format == "email" || format == "idn-email")
    return "[a-zA-Z0-9_+-]{1,16}(\\.[a-zA-Z0-9_+-]{1,15}){0,3}@" + label + "(\\." + label +
           "){1,3}";
  if (format == "hostname" || format == "idn-hostname") return label + "(\\." + label + "){0,3}";
  if (format == "ipv4") return "(" + byte + "\\.){3}" + byte;
  if (format == "ipv6") {
    // All eight words, or fewer around one gap.
    std::string out = "(" + word + ":){7}" + word;
    for (int before = 0; before <= 6; ++before) {
      out += "|";
      for (int i = 0; i < before; ++i) out += (i ? ":" : "") + word;
      out += "::";
      const int after = 6 - before;
      if (after > 0) {
        out += "(" + word + "(:" + word + "){0," + std::to_string(after - 1) + "})?";
      }
    }
    return out;
  }
  if (format == "uuid") {
    const std::string hex = "[0-9a-fA-F]";
    return hex + "{8}-" + hex + "{4}-" + hex + "{4}-" + hex + "{4}-" + hex + "{12}";
  }
  const std::string in_path = "([a-zA-Z0-9._~!$&'()*+,;=:@\\-]|%[0-9a-fA-F]{2})";
  const std::string behind_path = "([a-zA-Z0-9._~!$&'()*+,;=:@/?\\-]|%[0-9a-fA-F]{2})*";
  const std::string begin =
      "[a-zA-Z][a-zA-Z0-9+.\\-]*://" + label + "(\\." + label + ")*(:\\d{1,4})?";
  const std::string end = "(\\?" + behind_path + ")?(#" + behind_path + ")?";
  const std::string uri = begin + "(/" + in_path + "*)*" + end;
  if (format == "uri" || format == "iri") return uri;
  if (format == "uri-reference" || format == "iri-reference")
    return "(" + uri + "|(/" + in_path + "+)+/?" + end + ")";
  if (format == "json-pointer") return "(/([^~/]|~[01])*)*";
  if (format == "relative-json-pointer") return "(0|[1-9]\\d{0,8})(#|(/([^~/]|~[01])*)*)";
  if (format == "regex" || format == "uri-template") return std::string();
  return std::nullopt;
}

}  // namespace nanovllm::json_schema

namespace nanovllm::detail {

/// Writes strings, numbers and listed values.
class ScalarWriter {
 public:
  explicit ScalarWriter(SchemaReader& reader) : reader_(reader) {}

  [[nodiscard]] std::string listed(const Json& schema, const Json& values,
                                   const std::string& path) {
    if (values.size() > reader_.limits().max_listed_values)
      json_schema::refuse(
          concat("'enum' has more than ", reader_.limits().max_listed_values, " values"), path);
    static const Texts kAny{"null", "boolean", "number", "string", "array", "object"};
    const Texts all = schema.contains("type") ? reader_.types(schema, path) : kAny;
    const auto is_valid = filter(schema, path);
    Texts options;
    for (const Json& each : values) {
      const bool fits = std::any_of(all.begin(), all.end(), [&](const std::string& type) {
        return json_schema::is_of_type(each, type);
      });
      if (fits && is_valid(each)) options.push_back(ebnf::literal(each.dump()));
    }
    return GrammarRules::terminal(ebnf::either(options));
  }

  /// @param one_text_each whether it must be one terminal with one text for each value.
  [[nodiscard]] std::string string(const Json& schema, const std::string& path,
                                   bool one_text_each = false) {
    auto min = count_of(schema, "minLength", path), max = count_of(schema, "maxLength", path);
    Texts patterns = patterns_of(schema, path);
    for (std::string& each : patterns) each = without_length(each, min, max);
    if (max && min.value_or(0) > *max) return {};
    const bool has_length = min.value_or(0) > 0 || max;
    const std::string of_length =
        concat("$string{", min.value_or(0), ",", max ? std::to_string(*max) : "", "}");
    if (patterns.empty() && one_text_each) {
      if (!has_length) return "$key";
      patterns.push_back("[\\u{0}-\\u{10FFFF}]*");
    }
    if (patterns.empty()) return has_length ? of_length : "string";
    try {
      return matching(patterns, has_length ? of_length : "");
    } catch (const RequestError& error) {
      json_schema::refuse(error.what(), path);
    }
  }

  /// A string that matches all patterns and has the length, if one is given. Messages name the
  /// first pattern.
  [[nodiscard]] static std::string matching(const SchemaReader::Texts& patterns,
                                            const std::string& of_length) {
    const std::string& pattern = patterns.front();
    std::size_t shown = std::min<std::size_t>(pattern.size(), 80);
    while (shown < pattern.size() && (static_cast<unsigned char>(pattern[shown]) & 0xC0) == 0x80)
      --shown;
    const std::string name =
        concat("the pattern '", pattern.substr(0, shown), shown < pattern.size() ? "…'" : "'");
    std::string all;
    for (const std::string& each : patterns) {
      static_cast<void>(parse_regex(each, true));  // refused where the place is known
      all += concat(all.empty() ? "" : " & ", "$pattern ", ebnf::literal(each));
    }
    if (!of_length.empty()) all += " & " + of_length;
    return concat("<@", ebnf::literal(name), " ", all, ">");
  }

  [[nodiscard]] std::string number(const Json& schema, bool is_integer, const std::string& path) {
    const ebnf::NumberBounds bounds = bounds_of(schema, path);
    check_near(!bounds.are_far(), path);
    const bool is_bounded = bounds.min || bounds.max;
    const Json* step = schema.find("multipleOf");
    if (step) {
      const double size = step->is_number() ? step->get<double>() : 0;
      if (size != std::floor(size) || size < 1 || size > 1000)
        json_schema::refuse(
            concat("'multipleOf' is supported for whole numbers from 1 to 1000, and is ",
                   step->dump(), ","),
            path);
      if (size > 1) return multiples(static_cast<long long>(size), bounds, path);
    }
    if (!is_integer && !step)
      return is_bounded ? GrammarRules::terminal(ebnf::numbers(bounds)) : "number";
    return is_bounded ? GrammarRules::terminal(ebnf::integers(bounds)) : "integer";
  }

 private:
  using Texts = SchemaReader::Texts;

  /// The patterns that a string must match, one for its format among them.
  [[nodiscard]] static Texts patterns_of(const Json& schema, const std::string& path) {
    Texts patterns;
    if (const Json* pattern = schema.find("pattern")) {
      const std::string& all = pattern->string();  // several, as json_schema::both joins them
      for (std::size_t begin = 0; begin <= all.size();) {
        const std::size_t end = std::min(all.find('\xFF', begin), all.size());
        patterns.push_back(all.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    if (const Json* format = schema.find("format")) {
      const std::optional<std::string> text = json_schema::format_pattern(format->string());
      if (text && text->empty())
        json_schema::refuse(concat("the format '", format->string(), "' is not supported"), path);
      if (text) patterns.push_back("^(" + *text + ")$");
    }
    return patterns;
  }

  /// Which listed values are valid by the keywords of strings and numbers beside the list.
  [[nodiscard]] std::function<bool(const Json&)> filter(const Json& schema,
                                                        const std::string& path) {
    constexpr auto kKnown = std::to_array<std::string_view>(
        {"const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxLength", "maximum",
         "minLength", "minimum", "pattern", "type"});
    static_assert(std::ranges::is_sorted(kKnown));
    for (const auto& [key, keyword] : schema.items())
      if (!json_schema::is_annotation(key) && !std::ranges::binary_search(kKnown, key))
        json_schema::refuse(concat("'", key, "' beside 'enum' or 'const' is not supported"), path);
    const auto min = count_of(schema, "minLength", path), max = count_of(schema, "maxLength", path);
    std::vector<ByteDfa> patterns;
    try {
      for (const std::string& each : patterns_of(schema, path))
        patterns.emplace_back(make_nfa(search_pattern(parse_regex(each, true)), reader_.budget()),
                              reader_.budget());
    } catch (const RequestError& error) {
      json_schema::refuse(error.what(), path);
    }
    return [=, bounds = bounds_of(schema, path)](const Json& value) {
      if (value.is_string()) {
        const std::string& text = value.string();
        const auto size =
            static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
              return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
            }));
        return size >= min.value_or(0) && size <= max.value_or(size) &&
               std::all_of(patterns.begin(), patterns.end(), [&](const ByteDfa& dfa) {
                 const ByteDfa::StateId end = dfa.next(ByteDfa::kStart, text);
                 return end != ByteDfa::kDead && dfa.accepts(end);
               });
      }
      if (!value.is_number() && !value.is_big_integer()) return true;
      const ebnf::Decimal number = json_schema::decimal_of(value, "enum", "");
      const auto is_within = [&](const std::optional<ebnf::Decimal>& bound, bool is_exclusive,
                                 bool is_min) {
        if (!bound) return true;
        return number == *bound ? !is_exclusive : (number > *bound) == is_min;
      };
      return is_within(bounds.min, bounds.min_is_exclusive, true) &&
             is_within(bounds.max, bounds.max_is_exclusive, false);
    };
  }

  /// The pattern with (?=.*$) where it begins with a look-ahead for the length of the text, such as
  /// ^(?=.{1,253}$), which goes to `min` and `max`: lengths are counted, and not states. With \.?
  /// before the $ that last point is not counted as an additional one.
  [[nodiscard]] static std::string without_length(const std::string& pattern,
                                                  std::optional<std::size_t>& min,
                                                  std::optional<std::size_t>& max) {
    constexpr std::string_view kBegin = "^(?=.{";
    if (!pattern.starts_with(kBegin)) return pattern;
    std::size_t at = kBegin.size();
    const auto count = [&]() -> std::optional<std::size_t> {
      const std::size_t begin = at;
      while (at < pattern.size() && at - begin < 9 && pattern[at] >= '0' && pattern[at] <= '9')
        ++at;
      if (at == begin) return std::nullopt;
      return std::stoul(pattern.substr(begin, at - begin));
    };
    const std::optional<std::size_t> least = count();
    std::optional<std::size_t> most = least;
    if (least && pattern.substr(at, 1) == ",") ++at, most = count();
    const std::string rest = pattern.substr(at);
    const std::string_view end = rest.starts_with("}\\.?$)") ? "}\\.?$)" : "}$)";
    if (!least || !rest.starts_with(end)) return pattern;
    min = std::max(min.value_or(0), *least);
    if (most) max = std::min(max.value_or(*most), *most);
    return "^(?=.*$)" + rest.substr(end.size());
  }

  /// The tightest bounds. A boolean `exclusiveMinimum` says what `minimum` is, as in draft 4.
  [[nodiscard]] static ebnf::NumberBounds bounds_of(const Json& schema, const std::string& path) {
    ebnf::NumberBounds bounds;
    const auto tighten = [&](const std::string& key, const std::string& exclusive_key, bool is_min,
                             std::optional<ebnf::Decimal>& bound, bool& is_exclusive) {
      const Json* plain = schema.find(key);
      const Json* exclusive = schema.find(exclusive_key);
      if (plain) bound = json_schema::decimal_of(*plain, key, path);
      if (exclusive && exclusive->is_boolean()) {
        is_exclusive = exclusive->boolean();
      } else if (exclusive) {
        const ebnf::Decimal other = json_schema::decimal_of(*exclusive, exclusive_key, path);
        is_exclusive = !bound || (is_min ? other >= *bound : other <= *bound);
        if (is_exclusive) bound = other;
      }
    };
    tighten("minimum", "exclusiveMinimum", true, bounds.min, bounds.min_is_exclusive);
    tighten("maximum", "exclusiveMaximum", false, bounds.max, bounds.max_is_exclusive);
    return bounds;
  }

  /// Refuses bounds of which nothing is near enough to be written.
  static void check_near(bool is_near, const std::string& path) {
    if (is_near) return;
    json_schema::refuse(
        "bounds that leave only numbers from 10^40 on, or up to -10^40, are not supported", path);
  }

  /// Multiples of `step` within bounds.
  [[nodiscard]] static std::string multiples(long long step, const ebnf::NumberBounds& bounds,
                                             const std::string& path) {
    const std::string all = concat("$multiple{", step, "}");
    if (!bounds.min && !bounds.max) return all;
    const std::string within = ebnf::integers(bounds);
    if (within.empty() || !has_multiple(step, bounds)) return {};
    check_near(has_multiple(step, ebnf::detail::with_few_digits(bounds)), path);
    return concat("<", within, " & ", all, ">");
  }

  /// Whether a number between the bounds is a multiple of `step`, where the bounds are so near that
  /// it may be none.
  [[nodiscard]] static bool has_multiple(long long step, const ebnf::NumberBounds& bounds) {
    if (!bounds.min || !bounds.max) return true;
    ebnf::Decimal value = ebnf::ceiling(*bounds.min, bounds.min_is_exclusive);
    const ebnf::Decimal last = ebnf::floor(*bounds.max, bounds.max_is_exclusive);
    for (long long i = 0; i < step; ++i, value = ebnf::ceiling(value, true)) {
      if (value > last) return false;
      long long rest = 0;
      for (const char digit : value.whole) rest = (10 * rest + (digit - '0')) % step;
      if (rest == 0) return true;
    }
    return true;
  }

  SchemaReader& reader_;
};

}  // namespace nanovllm::detail
