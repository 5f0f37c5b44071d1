#pragma once
/// Objects of JSON Schemas as pieces of a grammar.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/api/grammar/json/json_scalar_writer.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_reader.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::detail {

/// Writes objects.
class ObjectWriter {
 public:
  /// Writes the value of a member: an expression for a schema and its place.
  using Value = std::function<std::string(const Json& schema, const std::string& path)>;

  ObjectWriter(SchemaReader& reader, GrammarRules& rules, ScalarWriter& scalars, Value value)
      : reader_(reader), rules_(rules), scalars_(scalars), inner_value_(std::move(value)) {}

  [[nodiscard]] std::string object(const Json& written, const std::string& path) {
    const Json schema = with_listed_names(written, path);
    static const Json kNone = Json::object(), kAny = true, kNothing = false;
    const Json* properties = schema.find("properties");
    const Json* patterns = schema.find("patternProperties");
    const Json* rest = schema.find("additionalProperties");
    if (!rest) rest = schema.find("unevaluatedProperties");
    const bool closes_itself = reader_.style().strict && (properties || patterns) && !rest;
    const Json& others = rest ? *rest : closes_itself ? kNothing : kAny;

    Texts required;
    if (const Json* names = schema.find("required")) {
      for (const Json& name : *names) {
        if (!name.is_string())
          json_schema::refuse(concat("'required' has ", name.dump(), ", which is no name"), path);
        if (!contains(required, name.string())) required.push_back(name.string());
      }
    }
    Texts names;
    std::vector<Property> list;
    const auto add = [&](const std::string& name, const Json& of, const std::string& at) {
      names.push_back(name);
      const bool is_required = contains(required, name);
      const std::string text = inner_value_(of, at);
      if (text.empty()) return !is_required;
      list.push_back(
          {rules_.rule(rules_.member(ebnf::literal(Json(name).dump()), text)), is_required});
      return true;
    };
    if (properties && properties->size() > reader_.limits().max_properties)
      json_schema::refuse(
          concat("an object has more than ", reader_.limits().max_properties, " properties"), path);
    reader_.work(
        (properties ? properties->size() : 0) * (1 + required.size() / 64) + required.size(), path);
    for (const auto& [name, of] : (properties ? *properties : kNone).items())
      if (!add(name, of, concat(path, "/properties/", name))) return {};
    for (const std::string& name : required) {
      if (contains(names, name)) continue;
      if (patterns || schema.contains("propertyNames"))
        json_schema::refuse(concat("the required property '", name,
                                   "' is not one of 'properties', "
                                   "which is not supported beside patterns of names,"),
                            path);
      if (!add(name, rest ? *rest : kAny, path + "/additionalProperties")) return {};
    }

    const auto min = small_count_of(schema, "minProperties", path);
    const auto max = small_count_of(schema, "maxProperties", path);
    Others free;
    if (patterns && !patterns->empty()) {
      free = pattern_members(*patterns, schema, path);
    } else if (others != Json(false)) {
      free = other_member(schema, names, others, path);
    }
    return members(list, free, min.value_or(0), max, path);
  }

 private:
  using Texts = SchemaReader::Texts;

  /// The schema without `propertyNames` where any name is valid by it, or where it lists the names
  /// and `properties` or `required` speak of some: then all become `properties`.
  [[nodiscard]] Json with_listed_names(const Json& schema, const std::string& path) {
    const Json* found = schema.find("propertyNames");
    if (!found) return schema;
    const Json of_names = reader_.conjunction(*found, path + "/propertyNames");
    if (of_names.is_boolean())
      return of_names.boolean() ? without(schema, "propertyNames") : schema;
    if (of_names.contains("type") && !contains(reader_.types(of_names, path), "string"))
      return schema;
    const Json rest_of_names = without(of_names, "type");
    if (!has_assertions(rest_of_names)) return without(schema, "propertyNames");
    if (has_assertions(without(without(rest_of_names, "enum"), "const"))) return schema;
    const Json names = json_schema::listed_values(of_names, path + "/propertyNames");
    const Json* known = schema.find("properties");
    const Json* required = schema.find("required");
    if (names.is_null() || schema.contains("patternProperties") ||
        (!known && (!required || required->empty())))
      return schema;
    const Json* rest = schema.find("additionalProperties");
    if (!rest) rest = schema.find("unevaluatedProperties");
    const bool closes_itself = reader_.style().strict && known && !rest;
    Json properties = Json::object();
    for (const Json& name : names) {
      if (!name.is_string()) continue;
      const Json* own = known ? known->find(name.string()) : nullptr;
      if (own || !closes_itself) properties[name.string()] = own ? *own : rest ? *rest : Json(true);
    }
    Json out = without(without(schema, "propertyNames"), "unevaluatedProperties");
    out["properties"] = properties;
    out["additionalProperties"] = false;
    return out;
  }

  struct Property {
    std::string member;  ///< the name and the value
    bool is_required;
  };

  /// Members that `properties` does not name.
  struct Others {
    std::string member;               ///< any of them; empty where there are none
    std::optional<std::size_t> most;  ///< how many keys they have; unset if there is no limit
  };

  /// The members of an object: `properties` in order, each at most once, then any of `others`,
  /// `min` to `max` in all. Dynamic programming from the last property: what may follow when
  /// `written` members were written.
  [[nodiscard]] std::string members(const std::vector<Property>& properties, const Others& others,
                                    std::size_t min, std::optional<std::size_t> max,
                                    const std::string& path) {
    const std::string& other = others.member;
    const std::size_t n = properties.size();
    const auto num_required = static_cast<std::size_t>(std::count_if(
        properties.begin(), properties.end(), [](const Property& p) { return p.is_required; }));
    if (max && *max < std::max(num_required, min)) return {};
    if (n - num_required > reader_.limits().max_optional_properties)
      json_schema::refuse(concat("an object has more than ",
                                 reader_.limits().max_optional_properties, " optional properties"),
                          path);
    if (min <= num_required) min = 0;
    if (max && other.empty() && *max >= n) max.reset();
    // The largest count that has to be distinguished.
    const std::size_t cap = max ? std::min(*max, n + 1) : std::min(min, n + 1);
    if ((n + 1) * (cap + 1) > reader_.limits().max_rules)
      json_schema::refuse(
          "'minProperties' or 'maxProperties' of so many properties is not supported", path);
    const std::size_t most = max.value_or(std::numeric_limits<std::size_t>::max());
    // next: after a comma, where a member must follow. follows: after a member.
    Texts next(cap + 1), follows(cap + 1);
    for (std::size_t written = 0; written <= cap; ++written) {
      follows[written] = more_others(others, min, max, written, 0);
      const std::string more = more_others(others, min, max, written + 1, 1);
      if (!other.empty() && written < most && !more.empty())
        next[written] = rules_.rule(ebnf::sequence({other, more}));
    }
    bool may_end = true;  // no required member is left
    for (std::size_t i = n; i-- > 0;) {
      const auto& [text, is_required] = properties[i];
      may_end = may_end && !is_required;
      for (std::size_t written = 0; written <= cap; ++written) {
        Texts options;
        const std::string& after = follows[std::min(written + 1, cap)];
        if (written < most && !after.empty()) options.push_back(ebnf::sequence({text, after}));
        if (!is_required && !next[written].empty()) options.push_back(next[written]);
        next[written] = rules_.rule(ebnf::either(options));
      }
      // The loop above reads `follows` of the next property, so it is updated afterwards.
      for (std::size_t written = 0; written <= cap; ++written) {
        Texts options;
        if (!next[written].empty())
          options.push_back(ebnf::sequence({rules_.comma(), next[written]}));
        if (may_end && written >= min) options.emplace_back("\"\"");
        follows[written] = rules_.rule(ebnf::either(options));
      }
    }
    const std::string all = rules_.bracketed("{", next[0], num_required == 0 && min == 0, "}");
    return all.empty() || other.empty() ? rules_.rule(all) : rules_.rule("$scope " + all);
  }

  /// What may follow when `written` members were written, of which the last `num_others` are of
  /// `others`: more of these, each after a comma, so that there are `min` to `max` members.
  [[nodiscard]] std::string more_others(const Others& others, std::size_t min,
                                        std::optional<std::size_t> max, std::size_t written,
                                        std::size_t num_others) {
    const std::size_t least = min > written ? min - written : 0;
    if (others.member.empty()) return least > 0 ? "" : "\"\"";
    std::optional<std::size_t> left;
    if (max) left = *max - std::min(*max, written);
    if (others.most) left = std::min(left.value_or(*others.most), *others.most - num_others);
    if (left && *left < least) return {};
    return ebnf::repeat(rules_.rule(ebnf::sequence({rules_.comma(), others.member})),
                        static_cast<long long>(least), left ? static_cast<long long>(*left) : -1);
  }

  /// Members that the schema does not name.
  [[nodiscard]] Others other_member(const Json& schema, const Texts& names, const Json& rest,
                                    const std::string& path) {
    const std::string text = inner_value_(rest, path + "/additionalProperties");
    const Json* of_names = schema.find("propertyNames");
    if (text.empty() || (of_names && *of_names == Json(false))) return {};
    if (!of_names)
      return {rules_.rule(rules_.member(GrammarRules::unused(names, "$key"), text)), std::nullopt};
    if (!names.empty())
      json_schema::refuse("'propertyNames' beside 'properties' or 'required' is not supported",
                          path);
    const std::string key = name(*of_names, path + "/propertyNames");
    if (key.empty()) return {};
    return {rules_.rule(rules_.member(GrammarRules::unused({}, key), text)), rules_.num_texts(key)};
  }

  /// A key by a schema of names, as one automaton.
  [[nodiscard]] std::string name(const Json& schema, const std::string& path) {
    Json strings = Json::object();
    strings["type"] = "string";
    const Json all = reader_.merged(reader_.conjunction(schema, path), strings, path);
    if (all.is_boolean()) return "";
    for (const char* key : {"anyOf", "oneOf"})
      if (all.contains(key))
        json_schema::refuse(concat("'", key, "' of names of properties is not supported"), path);
    if (const Json values = json_schema::listed_values(all, path); !values.is_null())
      return scalars_.listed(all, values, path);
    return scalars_.string(all, path, true);
  }

  /// Members whose names match one of the patterns. No name may match two patterns, or a pattern
  /// and one of `properties`.
  [[nodiscard]] Others pattern_members(const Json& patterns, const Json& schema,
                                       const std::string& path) {
    for (const char* key : {"additionalProperties", "unevaluatedProperties"})
      if (const Json* rest = schema.find(key); rest && *rest != Json(false))
        json_schema::refuse(
            concat("'patternProperties' beside '", key, "' that is not false is not supported"),
            path);
    if (schema.contains("propertyNames"))
      json_schema::refuse("'patternProperties' beside 'propertyNames' is not supported", path);
    Texts options;
    std::optional<std::size_t> most = 0;
    std::vector<ByteDfa> found;  // of all names that a pattern matches
    for (const auto& [pattern, of] : patterns.items()) {
      const std::string place = concat(path, "/patternProperties/", pattern);
      try {
        found.emplace_back(make_nfa(search_pattern(parse_regex(pattern, true)), reader_.budget()),
                           reader_.budget());
        const ByteDfa& dfa = found.back();
        if (const Json* properties = schema.find("properties")) {
          for (const auto& [name, ignored] : properties->items()) {
            const ByteDfa::StateId end = dfa.next(ByteDfa::kStart, name);
            check<RequestError>(end == ByteDfa::kDead || !dfa.accepts(end), "the property '", name,
                                "' matches a pattern of names, which is not supported");
          }
        }
        for (std::size_t i = 0; i + 1 < found.size(); ++i)
          check<RequestError>(!have_common_text(found[i], dfa, reader_.budget()),
                              "two patterns that a name may match both are not supported");
        const std::string text = inner_value_(of, place);
        if (text.empty()) continue;
        const std::string key = ScalarWriter::matching({pattern}, "");
        const std::optional<std::size_t> count = rules_.num_texts(key);
        most = most && count ? std::optional(*most + *count) : std::nullopt;
        options.push_back(rules_.rule(rules_.member(GrammarRules::unused({}, key), text)));
      } catch (const RequestError& error) {
        if (std::string_view(error.what()).starts_with("the JSON Schema")) throw;
        json_schema::refuse(error.what(), place);
      }
    }
    return {rules_.rule(ebnf::either(options)), most};
  }

  SchemaReader& reader_;
  GrammarRules& rules_;
  ScalarWriter& scalars_;
  Value inner_value_;
};

}  // namespace nanovllm::detail
