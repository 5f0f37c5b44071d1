#pragma once
/// Reading of JSON Schemas: checks, references, types and counts, for all writers of their grammar.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_options.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// The schema without a keyword.
inline Json without(const Json& schema, std::string_view key) {
  Json out = Json::object();
  for (const auto& [name, value] : schema.items())
    if (name != key) out[name] = value;
  return out;
}

inline bool has_assertions(const Json& schema) {
  return std::any_of(schema.items().begin(), schema.items().end(), [](const Json::Member& member) {
    return !json_schema::is_annotation(member.key);
  });
}

inline bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// The number of values in `json`, including itself.
inline std::size_t num_values(const Json& json) {
  std::size_t count = 1;
  if (json.is_array())
    for (const Json& each : json) count += num_values(each);
  if (json.is_object())
    for (const auto& [key, each] : json.items()) count += num_values(each);
  return count;
}

/// The number that a keyword such as `maxLength` gives; unset without the keyword.
inline std::optional<std::size_t> count_of(const Json& schema, const char* key,
                                           const std::string& path) {
  const Json* found = schema.find(key);
  if (!found) return std::nullopt;
  const double count = found->is_number() ? found->get<double>() : -1;
  if (count < 0 || count != std::floor(count))
    json_schema::refuse(concat("'", key, "' is to be a whole number, not ", found->dump()), path);
  constexpr double kMax = 1 << 30;  // as much as the grammar counts
  if (std::string_view(key) == "maxLength") return static_cast<std::size_t>(std::min(count, kMax));
  if (count > kMax) json_schema::refuse(concat("'", key, "' is larger than 2^30"), path);
  return static_cast<std::size_t>(count);
}

/// The same for what the grammar writes out one by one, which is at most 100,000.
inline std::optional<std::size_t> small_count_of(const Json& schema, const char* key,
                                                 const std::string& path) {
  constexpr std::size_t kMax = 100'000;
  const auto count = count_of(schema, key, path);
  if (count && *count > kMax)
    json_schema::refuse(
        concat("'", key, "' above ", kMax, " is not supported, and is ", *count, ","), path);
  return count;
}

/// Reads schemas: refuses what is not a schema or not supported, follows references, merges parts.
/// `path` is where a schema is, for messages. All throw RequestError.
class SchemaReader {
 public:
  using Texts = std::vector<std::string>;

  SchemaReader(const Json& root, const JsonStyle& style, const JsonSchemaLimits& limits,
               CompileBudget budget)
      : root_(root), style_(style), limits_(limits), budget_(std::move(budget)) {}

  [[nodiscard]] const JsonStyle& style() const { return style_; }
  [[nodiscard]] const JsonSchemaLimits& limits() const { return limits_; }
  [[nodiscard]] const CompileBudget& budget() const { return budget_; }

  void work(std::size_t amount, const std::string& path) {
    work_ += amount;
    budget_.spend(kWorkCost * amount);
    if (work_ > limits_.max_work)
      json_schema::refuse(concat("to combine its parts takes more than ", limits_.max_work,
                                 " steps; the last one was"),
                          path);
  }

  /// Refuses what is not a schema, and keywords that are not enforced.
  static void check_keywords(const Json& schema, const std::string& path) {
    if (!schema.is_object())
      json_schema::refuse(
          concat("a schema is to be an object or a boolean, not ", schema.type_name()), path);
    const auto is_off = [&](std::string_view key) {
      if (key == "if") return !schema.contains("then") && !schema.contains("else");
      return (key == "then" || key == "else") && !schema.contains("if");
    };
    for (const auto& [key, keyword] : schema.items()) {
      for (const char* unsupported :
           {"$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired",
            "dependentSchemas", "disallow", "divisibleBy", "else", "extends", "if", "not", "then"})
        if (key == unsupported && !is_off(key))
          json_schema::refuse(concat("the keyword '", key, "' is not supported"), path);
    }
    const auto expect = [&](const char* key, bool is_right, const char* what) {
      if (const Json* found = schema.find(key); found && !is_right)
        json_schema::refuse(concat("'", key, "' is to be ", what, ", not ", found->type_name()),
                            path);
    };
    for (const char* key : {"properties", "patternProperties", "propertyNames"}) {
      const Json* found = schema.find(key);
      expect(key, found && (found->is_object() || key == std::string_view("propertyNames")),
             "an object");
    }
    for (const char* key : {"allOf", "anyOf", "oneOf", "prefixItems", "required", "enum"}) {
      const Json* found = schema.find(key);
      expect(key, found && found->is_array(), "an array");
    }
    for (const char* key : {"pattern", "format", "$ref"}) {
      const Json* found = schema.find(key);
      expect(key, found && found->is_string(), "a string");
    }
    // An inner `$id` changes what references mean.
    if (!path.empty() && schema.find("$id") && schema["$id"].is_string() &&
        !schema["$id"].string().starts_with("#"))
      json_schema::refuse("the keyword '$id' is not supported inside a schema", path);
  }

  /// Refuses lists that are too long to be combined and searched.
  void check_sizes(const Json& schema, const std::string& path) const {
    const std::pair<const char*, std::size_t> most[] = {
        {"allOf", limits_.max_parts},
        {"anyOf", limits_.max_branches},
        {"oneOf", limits_.max_branches},
        {"enum", limits_.max_listed_values},
        {"required", limits_.max_properties},
        {"properties", limits_.max_properties},
        {"patternProperties", limits_.max_name_patterns}};
    for (const auto& [key, limit] : most) {
      const Json* found = schema.find(key);
      if (found && (found->is_array() || found->is_object()) && found->size() > limit)
        json_schema::refuse(concat("'", key, "' has ", found->size(), " elements, and more than ",
                                   limit, " are not supported,"),
                            path);
    }
  }

  /// The types that a schema allows: by `type`, else those of its keywords, else all.
  [[nodiscard]] static Texts types(const Json& schema, const std::string& path) {
    if (const Json* type = schema.find("type")) return json_schema::type_list(*type, path);
    Texts out = implied_types(schema);
    if (out.empty()) out = {"null", "boolean", "number", "string", "array", "object"};
    return out;
  }

  /// What a `$ref` points to, within the schema.
  [[nodiscard]] const Json& target(const Json& schema, const std::string& path) {
    const std::string& ref = schema["$ref"].string();
    const auto fail = [&](const char* why) {
      json_schema::refuse(concat("'$ref' to '", ref, "' ", why), path);
    };
    if (!ref.starts_with("#")) fail("is not supported: it is no place within the schema (#/…)");
    if (ref.size() > 1 && ref[1] != '/') fail("is not supported: it is no path (#/…)");
    const Json* at = &root_;
    for (std::size_t begin = 1; begin < ref.size();) {
      const std::size_t end = std::min(ref.find('/', begin + 1), ref.size());
      std::string name;
      for (std::size_t i = begin + 1; i < end; ++i) {
        unsigned code = 0;
        if (ref[i] == '%') {
          if (std::sscanf(ref.c_str() + i, "%%%2x", &code) != 1)
            fail("has a '%' without two digits");
          name += static_cast<char>(code);
          i += 2;
        } else {
          name += ref[i];
        }
      }
      for (std::size_t i = 0; (i = name.find('~', i)) != name.npos; ++i)
        name.replace(i, 2, name.substr(i, 2) == "~1" ? "/" : "~");
      const bool is_index =
          !name.empty() && name.size() < 9 && name.find_first_not_of("0123456789") == name.npos;
      if (at->is_array() && is_index && std::stoul(name) < at->size()) {
        at = &(*at)[std::stoul(name)];
      } else {
        const Json* next = at->find(name);
        if (!next) fail("leads nowhere");
        at = next;
      }
      begin = end;
      if (at->is_object() && at->contains("$id") && begin < ref.size())
        fail("is not supported: it leads through a schema with an '$id' of its own");
    }
    return *at;
  }

  /// The schema merged with the target of its `$ref`.
  [[nodiscard]] Json without_ref(Json schema, const std::string& path) {
    while (schema.is_object() && schema.contains("$ref")) {
      check_keywords(schema, path);
      schema = merged(without(schema, "$ref"), target(schema, path), path);
    }
    return schema;
  }

  /// The schema merged with the targets of its `$ref` and with the parts of its `allOf`.
  [[nodiscard]] Json conjunction(const Json& schema, const std::string& path) {
    Json all = without_ref(schema, path);
    while (const Json* parts = all.find("allOf")) {
      Json rest = without(all, "allOf");
      for (const Json& part : *parts) rest = merged(rest, without_ref(part, path), path);
      all = without_ref(std::move(rest), path);
    }
    if (!all.is_boolean()) {
      check_keywords(all, path);
      check_sizes(all, path);
    }
    return all;
  }

  [[nodiscard]] Json merged(const Json& a, const Json& b, const std::string& path) {
    if (++num_merged_ > limits_.max_rules)
      json_schema::refuse("it leads back to itself, or has too many combinations,", path);
    for (const Json* schema : {&a, &b}) {
      if (schema->is_object()) check_sizes(*schema, path);
      work(num_values(*schema), path);
    }
    return json_schema::both(a, b, path);
  }

 private:
  static constexpr std::size_t kWorkCost = 30;  // of the budget's steps, for a value looked at

  [[nodiscard]] static Texts implied_types(const Json& schema) {
    Texts out;
    const auto add = [&](const char* type, std::initializer_list<const char*> keys) {
      if (std::any_of(keys.begin(), keys.end(),
                      [&](const char* key) { return schema.contains(key); }))
        out.emplace_back(type);
    };
    add("object", {"properties", "required", "additionalProperties", "patternProperties",
                   "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"});
    add("array",
        {"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems", "uniqueItems"});
    add("string", {"minLength", "maxLength", "pattern", "format"});
    add("number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
    return out;
  }

  const Json& root_;
  JsonStyle style_;
  JsonSchemaLimits limits_;
  CompileBudget budget_;
  std::size_t num_merged_ = 0, work_ = 0;
};

}  // namespace nanovllm::detail
