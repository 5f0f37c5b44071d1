#pragma once
/// JSON Schemas as conjunctions: one schema for what two ask for together.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/ebnf/number_text.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::json_schema {

/// What a message says of a place in a schema: "… at /properties/x", or at the root.
[[nodiscard]] inline std::string place(std::string_view path) {
  return path.empty() ? "at its root" : concat("at ", path);
}

/// Throws RequestError: "the JSON Schema is refused: WHAT at PATH".
[[noreturn]] inline void refuse(std::string_view what, std::string_view path) {
  throw RequestError(concat("the JSON Schema is refused: ", what, " ", place(path)));
}

/// Whether a keyword says nothing of what is valid: titles, descriptions, definitions, and all that
/// no draft of JSON Schema knows.
[[nodiscard]] inline bool is_annotation(std::string_view keyword) {
  static constexpr auto kAssertions = std::to_array<std::string_view>({
      "$dynamicRef",
      "$recursiveRef",
      "$ref",
      "additionalItems",
      "additionalProperties",
      "allOf",
      "anyOf",
      "const",
      "contains",
      "dependencies",
      "dependentRequired",
      "dependentSchemas",
      "disallow",
      "divisibleBy",
      "else",
      "enum",
      "exclusiveMaximum",
      "exclusiveMinimum",
      "extends",
      "format",
      "if",
      "items",
      "maxContains",
      "maxItems",
      "maxLength",
      "maxProperties",
      "maximum",
      "minContains",
      "minItems",
      "minLength",
      "minProperties",
      "minimum",
      "multipleOf",
      "not",
      "oneOf",
      "pattern",
      "patternProperties",
      "prefixItems",
      "properties",
      "propertyNames",
      "required",
      "then",
      "type",
      "unevaluatedItems",
      "unevaluatedProperties",
      "uniqueItems",
  });
  static_assert(std::ranges::is_sorted(kAssertions));
  return !std::ranges::binary_search(kAssertions, keyword);
}

/// The schema without keywords that are null, `const` aside: many serialisers write what is not set
/// so. They count as absent, within all schemas in it.
[[nodiscard]] inline Json without_nulls(const Json& schema) {
  if (schema.is_array()) {
    Json out = Json::array();
    for (const Json& each : schema) out.push_back(without_nulls(each));
    return out;
  }
  if (!schema.is_object()) return schema;
  Json out = Json::object();
  for (const auto& [key, value] : schema.items()) {
    const bool is_value = key == "const" || key == "enum" || key == "default" || key == "examples";
    const bool has_names =
        key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
    if (value.is_null() && key != "const") continue;
    if (has_names && value.is_object()) {  // whose keys are no keywords
      Json& named = out[key] = Json::object();
      for (const auto& [name, each] : value.items()) named[name] = without_nulls(each);
    } else {
      out[key] = is_value ? value : without_nulls(value);
    }
  }
  return out;
}

/// Whether a value is of a type: "integer", "number", "string" and so on.
[[nodiscard]] inline bool is_of_type(const Json& value, std::string_view type) {
  if (type == "integer") {
    if (value.is_number_float()) return std::floor(value.get<double>()) == value.get<double>();
    return value.is_number_integer() || value.is_big_integer();
  }
  return value.type_name() == type;
}

/// The types that a `type` keyword names. Throws RequestError for what is no type.
[[nodiscard]] inline std::vector<std::string> type_list(const Json& type, std::string_view path) {
  std::vector<std::string> names;
  const auto add = [&](const Json& name) {
    static constexpr auto kTypes = std::to_array<std::string_view>(
        {"array", "boolean", "integer", "null", "number", "object", "string"});
    if (!name.is_string() || !std::ranges::binary_search(kTypes, name.string()))
      refuse(concat("'type' is ", name.dump(), ", which is no type of JSON Schema"), path);
    if (std::find(names.begin(), names.end(), name.string()) == names.end())
      names.push_back(name.string());
  };
  if (type.is_array()) {
    for (const Json& name : type) add(name);
  } else {
    add(type);
  }
  return names;
}

/// The number that a bound is, exact. Throws RequestError where it is none.
[[nodiscard]] inline ebnf::Decimal decimal_of(const Json& value, std::string_view key,
                                              std::string_view path) {
  if (value.is_number_float()) return ebnf::Decimal(value.get<double>());
  if (!value.is_number() && !value.is_big_integer())
    refuse(concat("'", key, "' is to be a number, not ", value.dump()), path);
  return ebnf::Decimal(std::string_view(value.dump()));
}

namespace detail {

inline Json common_types(const Json& a, const Json& b, std::string_view path) {
  Json out = Json::array();
  const std::vector<std::string> left = type_list(a, path), right = type_list(b, path);
  const auto has = [](const std::vector<std::string>& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& name : left) {
    if (has(right, name)) {
      out.push_back(name);
    } else if (name == "integer" && has(right, "number")) {
      out.push_back(name);
    } else if (name == "number" && has(right, "integer") && !has(left, "integer")) {
      out.push_back("integer");
    }
  }
  return out;
}

/// What holds for values and items that both schemas speak of: one of the two where it is the only
/// one.
inline Json all_of(const Json& a, const Json& b) {
  if (a == b || (b.is_boolean() && b.boolean())) return a;
  if (a.is_boolean() && a.boolean()) return b;
  Json out = Json::object();
  out["allOf"] = Json::array({a, b});
  return out;
}

/// `properties` and `additionalProperties` of two schemas, each of which may say something of the
/// other's names.
inline void merge_properties(Json& out, const Json& a, const Json& b, std::string_view path) {
  static const Json kNone = Json::object(), kAny = true;
  const auto get = [](const Json& schema, std::string_view key, const Json& other) {
    const Json* found = schema.find(key);
    return found ? *found : other;
  };
  const Json left = get(a, "properties", kNone), right = get(b, "properties", kNone);
  const Json left_rest = get(a, "additionalProperties", kAny);
  const Json right_rest = get(b, "additionalProperties", kAny);
  for (const Json* schema : {&a, &b}) {
    const Json& other = schema == &a ? b : a;
    if (schema->contains("patternProperties") &&
        (other.contains("patternProperties") || other.contains("properties") ||
         other.contains("additionalProperties")))
      refuse("'patternProperties' cannot be combined with the properties of another schema", path);
  }
  Json properties = Json::object();
  for (const auto& [name, schema] : left.items()) {
    const Json* other = right.find(name);
    properties[name] = all_of(schema, other ? *other : right_rest);
  }
  for (const auto& [name, schema] : right.items())
    if (!left.contains(name)) properties[name] = all_of(schema, left_rest);
  if (!properties.empty() || a.contains("properties") || b.contains("properties"))
    out["properties"] = properties;
  if (a.contains("additionalProperties") || b.contains("additionalProperties"))
    out["additionalProperties"] = all_of(left_rest, right_rest);
}

inline bool is_lower_bound(std::string_view key) {
  return key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
         key == "minProperties";
}

inline bool is_upper_bound(std::string_view key) {
  return key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" ||
         key == "maxProperties";
}

/// One value for a keyword that two schemas have.
inline Json merge_keyword(std::string_view key, const Json& a, const Json& b,
                          std::string_view path) {
  if (a == b) return a;
  if (key == "type") return common_types(a, b, path);
  if ((is_lower_bound(key) || is_upper_bound(key)) && !a.is_boolean() && !b.is_boolean()) {
    const bool is_less = decimal_of(a, key, path) < decimal_of(b, key, path);
    return is_less == is_lower_bound(key) ? b : a;
  }
  if (key == "required" && a.is_array() && b.is_array()) {
    Json out = a;
    for (const Json& name : b)
      if (std::find(a.begin(), a.end(), name) == a.end()) out.push_back(name);
    return out;
  }
  if (key == "items" && !a.is_array() && !b.is_array()) return all_of(a, b);
  if (key == "uniqueItems") return true;
  // Two patterns are kept with a byte between them that no text has.
  if (key == "pattern" && a.is_string() && b.is_string()) return a.string() + '\xFF' + b.string();
  if (key == "allOf" && a.is_array() && b.is_array()) {
    Json out = a;
    for (const Json& schema : b) out.push_back(schema);
    return out;
  }
  refuse(concat("two different values of '", key, "' cannot be combined"), path);
}

}  // namespace detail

/// The values that `enum` and `const` leave, as an array; null without either keyword.
[[nodiscard]] inline Json listed_values(const Json& schema, std::string_view path) {
  const Json* values = schema.find("enum");
  const Json* value = schema.find("const");
  if (values && !values->is_array())
    refuse(concat("'enum' is to be an array, not ", values->type_name()), path);
  if (!value) return values ? *values : Json(nullptr);
  Json out = Json::array();
  if (!values || std::find(values->begin(), values->end(), *value) != values->end())
    out.push_back(*value);
  return out;
}

/// A schema for the values that are valid by both; keywords that say nothing of them are left out.
/// Throws RequestError where two keywords cannot be combined into one. `path` is for its message.
[[nodiscard]] inline Json both(const Json& a, const Json& b, std::string_view path) {
  if (a.is_boolean()) return a.boolean() ? b : a;
  if (b.is_boolean()) return b.boolean() ? a : b;
  for (const Json* schema : {&a, &b}) {
    if (!schema->is_object())
      refuse(concat("a schema is to be an object or a boolean, not ", schema->type_name()), path);
    const Json& other = schema == &a ? b : a;
    // What counts as evaluated is what the schema itself looks at, and so cannot move to another.
    for (const char* key : {"unevaluatedProperties", "unevaluatedItems"})
      if (b.contains(key))
        refuse(concat("'", key, "' is not supported in a part of a schema"), path);
    for (const char* key : {"prefixItems", "additionalItems"}) {
      if (schema->contains(key) && (other.contains("items") || other.contains("prefixItems")))
        refuse(concat("'", key, "' cannot be combined with the items of another schema"), path);
    }
  }
  Json out = Json::object();
  const Json left = listed_values(a, path), right = listed_values(b, path);
  if (!left.is_null() || !right.is_null()) {
    Json values = Json::array();
    for (const Json& value : left.is_null() ? right : left)
      if (right.is_null() || std::find(right.begin(), right.end(), value) != right.end())
        values.push_back(value);
    out["enum"] = values;
  }
  detail::merge_properties(out, a, b, path);
  for (const Json* schema : {&a, &b}) {
    for (const auto& [key, value] : schema->items()) {
      if (is_annotation(key) || out.contains(key) || key == "const") continue;
      const Json* other = (schema == &a ? b : a).find(key);
      out[key] = other ? detail::merge_keyword(key, value, *other, path) : value;
    }
  }
  return out;
}

}  // namespace nanovllm::json_schema
