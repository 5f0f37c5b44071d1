#pragma once
/// JSON Schemas that exclude each other.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_reader.hpp"

namespace nanovllm::detail {

/// Tells whether two schemas can have a value in common.
class SchemaExclusion {
 public:
  explicit SchemaExclusion(SchemaReader& reader) : reader_(reader) {}

  /// Whether no value that is written for `a` is valid by `b`.
  [[nodiscard]] bool excludes(const Json& a, const Json& b, const std::string& path, int depth) {
    reader_.work(1, path);
    if (a.is_boolean() || b.is_boolean()) return a == Json(false) || b == Json(false);
    if (!a.is_object() || !b.is_object() || depth > 8) return false;
    if (a.contains("$ref") || b.contains("$ref"))
      return excludes(reader_.without_ref(a, path), reader_.without_ref(b, path), path, depth + 1);
    if (parts_exclude(a, b, path, depth) || excludes_parts(a, b, path, depth)) return true;
    const Json left = json_schema::listed_values(a, path);
    const Json right = json_schema::listed_values(b, path);
    const Texts all{"null", "boolean", "number", "string", "array", "object"};
    const auto has_parts = [](const Json& schema) {
      return schema.contains("anyOf") || schema.contains("oneOf") || schema.contains("allOf");
    };
    const Texts of_a = has_parts(a) && !a.contains("type") ? all : reader_.types(a, path);
    const Texts of_b = b.contains("type") ? reader_.types(b, path) : all;
    if (!left.is_null()) {
      reader_.work(left.size() * (right.is_null() ? 1 : right.size()) / 64, path);
      return std::all_of(left.begin(), left.end(), [&](const Json& each) {
        const bool has_type = std::any_of(of_b.begin(), of_b.end(), [&](const std::string& type) {
          return json_schema::is_of_type(each, type);
        });
        return !has_type ||
               (!right.is_null() && std::find(right.begin(), right.end(), each) == right.end());
      });
    }
    const auto is_numeric = [](const std::string& type) {
      return type == "number" || type == "integer";
    };
    for (const std::string& type : of_a) {
      const bool is_shared =
          contains(of_b, type) ||
          (is_numeric(type) && std::any_of(of_b.begin(), of_b.end(), is_numeric));
      if (!is_shared) continue;
      const bool other_lists =
          !right.is_null() && std::none_of(right.begin(), right.end(), [&](const Json& each) {
            return json_schema::is_of_type(each, is_numeric(type) ? "number" : type);
          });
      if (other_lists || (type == "object" && object_excludes(a, b, path, depth))) continue;
      return false;
    }
    return true;
  }

  /// Schemas for values of `a` that are not valid by `b`: without a property that `b` requires,
  /// with a property that `b` does not accept, or without the listed values that both have. Each of
  /// them excludes `b`.
  [[nodiscard]] std::vector<Json> apart(const Json& a, const Json& b, const std::string& path) {
    std::vector<Json> out;
    if (!a.is_object() || !b.is_object()) return out;
    const auto add = [&](Json part) {
      if (excludes(part, b, path, 0)) out.push_back(std::move(part));
    };
    const Json left = json_schema::listed_values(a, path);
    const Json right = json_schema::listed_values(b, path);
    if (!left.is_null()) {
      if (!right.is_null()) add(with(without(a, "const"), "enum", difference(left, right)));
      return out;
    }
    static const Json kNone = Json::object(), kNoNames = Json::array();
    const Json &in_a = get(a, "properties", kNone), &in_b = get(b, "properties", kNone);
    const Json &needs_a = get(a, "required", kNoNames), &needs_b = get(b, "required", kNoNames);
    reader_.work(in_a.size() + in_b.size() + needs_b.size() * (1 + needs_a.size()), path);
    for (const Json& name : needs_b)  // without a property that b requires
      if (name.is_string() && std::find(needs_a.begin(), needs_a.end(), name) == needs_a.end())
        add(with_property(a, name.string(), false));
    for (const auto& [name, schema] : in_a.items()) {
      // With a property that b does not accept. Listed values that both accept are removed.
      Json required = needs_a;
      if (std::find(needs_a.begin(), needs_a.end(), Json(name)) == needs_a.end())
        required.push_back(name);
      const Json with_name = with(a, "required", required);
      const Json* other = in_b.find(name);
      if (other && schema.is_object() && other->is_object()) {
        const Json mine = json_schema::listed_values(schema, path);
        const Json theirs = json_schema::listed_values(*other, path);
        if (!mine.is_null() && !theirs.is_null()) {
          add(with_property(with_name, name,
                            with(without(schema, "const"), "enum", difference(mine, theirs))));
          continue;
        }
      }
      if (required.size() > needs_a.size()) add(with_name);
    }
    return out;
  }

 private:
  using Texts = SchemaReader::Texts;

  /// Whether each branch of `a` excludes `b`, or the parts that must hold together do. What is
  /// written for a branch has the properties of the schema around it as well.
  [[nodiscard]] bool parts_exclude(const Json& a, const Json& b, const std::string& path,
                                   int depth) {
    if (a.contains("allOf")) return excludes(reader_.conjunction(a, path), b, path, depth + 1);
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json* parts = a.find(key);
      if (!parts || !parts->is_array()) continue;
      const Json rest = without(a, key);
      const bool is_plain = !has_assertions(rest);
      if (std::all_of(parts->begin(), parts->end(), [&](const Json& part) {
            const Json all =
                is_plain ? part : reader_.merged(rest, reader_.without_ref(part, path), path);
            return excludes(all, b, path, depth + 1);
          }))
        return true;
    }
    return false;
  }

  /// Whether `a` excludes each branch of `b`, or a part of it that must hold.
  [[nodiscard]] bool excludes_parts(const Json& a, const Json& b, const std::string& path,
                                    int depth) {
    const auto is_excluded = [&](const Json& part) { return excludes(a, part, path, depth + 1); };
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json* parts = b.find(key);
      if (parts && parts->is_array() && std::all_of(parts->begin(), parts->end(), is_excluded))
        return true;
    }
    const Json* parts = b.find("allOf");
    return parts && parts->is_array() && std::any_of(parts->begin(), parts->end(), is_excluded);
  }

  [[nodiscard]] static const Json& get(const Json& schema, const char* key, const Json& other) {
    const Json* found = schema.find(key);
    return found ? *found : other;
  }

  [[nodiscard]] static Json with(Json schema, const char* key, Json value) {
    schema[key] = std::move(value);
    return schema;
  }

  /// The schema with another schema for one property. An object stays as open as it was.
  [[nodiscard]] static Json with_property(Json schema, const std::string& name, Json property) {
    const bool is_open = !schema.contains("properties") && !schema.contains("patternProperties") &&
                         !schema.contains("additionalProperties") &&
                         !schema.contains("unevaluatedProperties");
    if (is_open) schema["additionalProperties"] = true;
    Json properties = schema.contains("properties") ? schema["properties"] : Json::object();
    properties[name] = std::move(property);
    schema["properties"] = std::move(properties);
    return schema;
  }

  /// Those of `values` that are none of `others`.
  [[nodiscard]] static Json difference(const Json& values, const Json& others) {
    Json out = Json::array();
    for (const Json& value : values)
      if (std::find(others.begin(), others.end(), value) == others.end()) out.push_back(value);
    return out;
  }

  /// The same for objects: they differ in a property that one of the two requires.
  [[nodiscard]] bool object_excludes(const Json& a, const Json& b, const std::string& path,
                                     int depth) {
    static const Json kNone = Json::object(), kNoNames = Json::array();
    const Json &in_a = get(a, "properties", kNone), &in_b = get(b, "properties", kNone);
    const auto is_closed = [](const Json& schema) {
      const Json* rest = schema.find("additionalProperties");
      return rest && *rest == Json(false) && !schema.contains("patternProperties");
    };
    const bool a_names_all =
        is_closed(a) || (reader_.style().strict && a.contains("properties") &&
                         !a.contains("additionalProperties") && !a.contains("patternProperties") &&
                         !a.contains("unevaluatedProperties"));
    const auto differs = [&](const Json& name) {
      if (!name.is_string()) return false;
      const Json *left = in_a.find(name.string()), *right = in_b.find(name.string());
      if ((left && *left == Json(false)) || (right && *right == Json(false))) return true;
      return left && right && excludes(*left, *right, path, depth + 1);
    };
    const Json &needs_a = get(a, "required", kNoNames), &needs_b = get(b, "required", kNoNames);
    reader_.work(needs_a.size() + needs_b.size() + needs_a.size() * needs_b.size() / 64, path);
    return std::any_of(needs_a.begin(), needs_a.end(),
                       [&](const Json& name) {
                         return differs(name) ||
                                (is_closed(b) && name.is_string() && !in_b.contains(name.string()));
                       }) ||
           std::any_of(needs_b.begin(), needs_b.end(), [&](const Json& name) {
             const bool is_written =
                 !name.is_string() || !a_names_all || in_a.contains(name.string()) ||
                 std::find(needs_a.begin(), needs_a.end(), name) != needs_a.end();
             return !is_written || differs(name);
           });
  }

  SchemaReader& reader_;
};

}  // namespace nanovllm::detail
