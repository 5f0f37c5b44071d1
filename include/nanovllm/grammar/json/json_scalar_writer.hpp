#pragma once
/// Strings and numbers of JSON Schemas as pieces of a grammar.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/grammar/ebnf/number_text.hpp"
#include "nanovllm/grammar/ebnf/string_content.hpp"
#include "nanovllm/grammar/json/json_formats.hpp"
#include "nanovllm/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/grammar/json/json_schema_merge.hpp"
#include "nanovllm/grammar/json/json_schema_reader.hpp"

namespace nanovllm::detail {

/// Writes strings, numbers and listed values.
class ScalarWriter {
 public:
  explicit ScalarWriter(SchemaReader& reader) : reader_(reader) {}

  [[nodiscard]] std::string listed(const Json& schema, const Json& values,
                                   const std::string& path) {
    for (const auto& [key, keyword] : schema.items()) {
      if (!json_schema::is_annotation(key) && key != "enum" && key != "const" && key != "type")
        json_schema::refuse(concat("'", key, "' beside 'enum' or 'const' is not supported"), path);
    }
    if (values.size() > reader_.limits().max_listed_values)
      json_schema::refuse(
          concat("'enum' has more than ", reader_.limits().max_listed_values, " values"), path);
    const Texts all = reader_.types(schema, path);
    Texts options;
    for (const Json& each : values) {
      const bool fits = std::any_of(all.begin(), all.end(), [&](const std::string& type) {
        return json_schema::is_of_type(each, type);
      });
      if (fits) options.push_back(ebnf::literal(each.dump()));
    }
    return GrammarRules::terminal(ebnf::either(options));
  }

  /// @param one_text_each whether it must be one terminal with one text for each value.
  [[nodiscard]] std::string string(const Json& schema, const std::string& path,
                                   bool one_text_each = false) {
    const auto min = count_of(schema, "minLength", path), max = count_of(schema, "maxLength", path);
    Texts patterns;
    if (const Json* pattern = schema.find("pattern")) patterns.push_back(pattern->string());
    if (const Json* format = schema.find("format")) {
      const std::optional<std::string> text = json_schema::format_pattern(format->string());
      if (text && text->empty())
        json_schema::refuse(concat("the format '", format->string(), "' is not supported"), path);
      if (text) patterns.push_back("^(" + *text + ")$");
    }
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
    for (const std::string& each : patterns)
      all += (all.empty() ? "" : " & ") +
             ebnf::sequence({"\"\\\"\"", ebnf::string_content(each), "\"\\\"\""});
    if (!of_length.empty()) all += " & " + of_length;
    return concat("<@", ebnf::literal(name), " ", all, ">");
  }

  [[nodiscard]] std::string number(const Json& schema, bool is_integer, const std::string& path) {
    ebnf::NumberBounds bounds;
    const auto tighten = [&](const char* key, std::optional<double>& bound, bool& is_exclusive,
                             int sign) {
      const Json* found = schema.find(key);
      if (!found) return;
      if (!found->is_number()) {
        json_schema::refuse(
            concat("'", key, "' is to be a number of at most 64 bits, not ", found->dump()), path);
      }
      const double next = found->get<double>();
      const bool exclusive = std::string_view(key).starts_with("exclusive");
      if (bound && (sign * next < sign * *bound || (next == *bound && !exclusive))) return;
      bound = next;
      is_exclusive = exclusive;
    };
    tighten("minimum", bounds.min, bounds.min_is_exclusive, 1);
    tighten("exclusiveMinimum", bounds.min, bounds.min_is_exclusive, 1);
    tighten("maximum", bounds.max, bounds.max_is_exclusive, -1);
    tighten("exclusiveMaximum", bounds.max, bounds.max_is_exclusive, -1);
    const Json* step = schema.find("multipleOf");
    if (!is_integer && !step) {
      if (!bounds.min && !bounds.max) return "number";
      try {
        return GrammarRules::terminal(ebnf::numbers(bounds));
      } catch (const RequestError& error) {
        json_schema::refuse(error.what(), path);
      }
    }
    // Integers, and what is a multiple of one.
    std::optional<long long> min, max;
    for (const auto* bound : {&bounds.min, &bounds.max}) {
      if (*bound && std::abs(**bound) > 9e15)
        json_schema::refuse("a bound of an integer beyond 9e15 is not supported", path);
    }
    if (bounds.min) {
      min = static_cast<long long>(std::ceil(*bounds.min));
      if (bounds.min_is_exclusive && static_cast<double>(*min) == *bounds.min) ++*min;
    }
    if (bounds.max) {
      max = static_cast<long long>(std::floor(*bounds.max));
      if (bounds.max_is_exclusive && static_cast<double>(*max) == *bounds.max) --*max;
    }
    if (step) {
      const double size = step->is_number() ? step->get<double>() : 0;
      if (size != std::floor(size) || size < 1 || size > 1000)
        json_schema::refuse(
            concat("'multipleOf' is supported for whole numbers from 1 to 1000, and is ",
                   step->dump(), ","),
            path);
      if (size > 1) return multiples(static_cast<long long>(size), min, max);
    }
    return !min && !max ? "integer" : GrammarRules::terminal(ebnf::integers(min, max));
  }

 private:
  using Texts = SchemaReader::Texts;

  /// Multiples of `step` within bounds.
  [[nodiscard]] static std::string multiples(long long step, std::optional<long long> min,
                                             std::optional<long long> max) {
    const std::string all = concat("$multiple{", step, "}");
    if (!min && !max) return all;
    if (min && max) {
      const long long rest = *max % step;
      const long long last = *max - (rest < 0 ? rest + step : rest);
      if (last < *min) return {};
    }
    return concat("<", ebnf::integers(min, max), " & ", all, ">");
  }

  SchemaReader& reader_;
};

}  // namespace nanovllm::detail
