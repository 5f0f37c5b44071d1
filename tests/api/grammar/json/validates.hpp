#pragma once
/// A validator for a part of JSON Schema, independent of the grammars, for their tests.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace nanovllm_test {

inline bool is_of_type(const nlohmann::json& value, const std::string& type) {
  if (type == "integer")
    return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  if (type == "number") return value.is_number();
  return std::string(value.type_name()) == type;
}

/// Whether `value` is valid by `schema`. Of keywords it knows type, const, enum, properties,
/// required, additionalProperties, items, uniqueItems, minItems, maxItems, minimum, maximum,
/// multipleOf, anyOf, oneOf, allOf.
inline bool validates(const nlohmann::json& schema, const nlohmann::json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto count = [&](const char* key) {
    return std::count_if(schema[key].begin(), schema[key].end(),
                         [&](const auto& part) { return validates(part, value); });
  };
  if (schema.contains("type")) {
    const nlohmann::json types =
        schema["type"].is_array() ? schema["type"] : nlohmann::json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const nlohmann::json& type) {
          return is_of_type(value, type.get<std::string>());
        }))
      return false;
  }
  if (schema.contains("const") && schema["const"] != value) return false;
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (schema.contains("anyOf") && count("anyOf") == 0) return false;
  if (schema.contains("oneOf") && count("oneOf") != 1) return false;
  if (schema.contains("allOf") && static_cast<std::size_t>(count("allOf")) < schema["allOf"].size())
    return false;
  if (value.is_object()) {
    for (const auto& name : schema.value("required", nlohmann::json::array()))
      if (!value.contains(name.get<std::string>())) return false;
    const nlohmann::json properties = schema.value("properties", nlohmann::json::object());
    for (const auto& [name, member] : value.items()) {
      const bool is_named = properties.contains(name);
      if (!is_named && !schema.contains("additionalProperties")) continue;
      if (!validates(is_named ? properties[name] : schema["additionalProperties"], member))
        return false;
    }
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", 0u)) return false;
    if (value.size() > schema.value("maxItems", 1'000'000u)) return false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (schema.contains("items") && !validates(schema["items"], value[i])) return false;
      if (!schema.value("uniqueItems", false)) continue;
      for (std::size_t j = 0; j < i; ++j)
        if (value[i] == value[j]) return false;
    }
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
    if (schema.contains("multipleOf") && std::fmod(number, schema["multipleOf"].get<double>()) != 0)
      return false;
  }
  return true;
}

}  // namespace nanovllm_test
