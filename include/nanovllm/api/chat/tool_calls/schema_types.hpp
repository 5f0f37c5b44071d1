#pragma once
/// The types that a JSON Schema allows: less than validation, and enough to refuse a call whose
/// arguments are of the wrong kind.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// The kinds of JSON values, as bits. An integral value is an integer, also where it is written
/// with a point, as JSON Schema has it.
struct JsonTypes {
  enum : unsigned {
    null = 1,
    boolean = 2,
    integer = 4,
    fraction = 8,
    number = integer | fraction,
    string = 16,
    array = 32,
    object = 64
  };
  static constexpr unsigned kAll = 127;
};

/// Types by `type`, OpenAPI's `nullable`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` and a `$ref`
/// into the same document. What is not understood forbids nothing.
///
/// A schema is a user's: it may refer to itself, or have a tree of alternatives. So a question ends
/// after kMaxSteps schemas, or those that are nested too deeply.
class SchemaTypes {
 public:
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 18;

  /// `document` is what `$ref` refers to, and outlives this.
  explicit SchemaTypes(const Json& document) : document_(document) {}

  /// The JsonTypes that a value may have; all where nothing is said, nothing is allowed, or the
  /// steps do not suffice.
  [[nodiscard]] unsigned of(const Json& schema) const;

  /// Whether `value`, its members and its elements have types that are allowed: those in
  /// `properties`, `additionalProperties`, `items` and `prefixItems`. Whether a member is required
  /// or may come, and which values and lengths are allowed, is not looked at. False where the steps
  /// do not suffice.
  [[nodiscard]] bool allow(const Json& value, const Json& schema) const;

  /// The schema of a member, in `properties` or else `additionalProperties`; null where there is
  /// none.
  [[nodiscard]] const Json* of_member(const Json& schema, std::string_view name) const;

  /// Whether the schema names any members.
  [[nodiscard]] bool lists_members(const Json& schema) const;

 private:
  /// How far a question has come.
  struct Walk {
    std::size_t steps = 0;
    int depth = 0;
  };
  static constexpr int kMaxDepth = 4 * kMaxJsonDepth;

  [[nodiscard]] unsigned of(const Json& schema, Walk& walk) const;
  [[nodiscard]] bool allow(const Json& value, const Json& schema, Walk& walk) const;
  [[nodiscard]] bool allow_here(const Json& value, const Json& schema, Walk& walk) const;
  [[nodiscard]] bool allow_inside(const Json& value, const Json& schema, Walk& walk) const;
  template <class Take>
  bool any_members(const Json& schema, const Take& take, Walk& walk) const;
  [[nodiscard]] const Json* target_of(const Json& schema) const;

  const Json& document_;
};

inline unsigned type_of(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::null: return JsonTypes::null;
    case Json::Kind::boolean: return JsonTypes::boolean;
    case Json::Kind::string: return JsonTypes::string;
    case Json::Kind::array: return JsonTypes::array;
    case Json::Kind::object: return JsonTypes::object;
    case Json::Kind::real: {
      const double x = value.get<double>();
      return x == std::floor(x) ? JsonTypes::integer : JsonTypes::fraction;
    }
    default: return JsonTypes::integer;
  }
}

/// The types that "type" names; all for a word that is not known.
inline unsigned type_called(const Json& word) {
  constexpr std::pair<std::string_view, unsigned> kTypes[] = {
      {"null", JsonTypes::null},       {"boolean", JsonTypes::boolean},
      {"integer", JsonTypes::integer}, {"number", JsonTypes::number},
      {"string", JsonTypes::string},   {"array", JsonTypes::array},
      {"object", JsonTypes::object}};
  if (word.is_string())
    for (const auto& [type, bits] : kTypes)
      if (word.string() == type) return bits;
  return JsonTypes::kAll;
}

/// The types by `type`, `enum` and `const` of this very schema.
inline unsigned own_types(const Json& schema) {
  unsigned types = JsonTypes::kAll;
  if (const Json* type = schema.find("type")) {
    types = type->is_array() && !type->empty() ? 0 : type_called(*type);
    for (const Json& word : *type) types |= type_called(word);
    const Json* nullable = schema.find("nullable");
    if (nullable && *nullable == Json(true)) types |= JsonTypes::null;
  }
  if (const Json* values = schema.find("enum")) {
    unsigned listed = 0;
    for (const Json& value : *values) listed |= type_of(value);
    if (listed) types &= listed;
  }
  if (const Json* value = schema.find("const")) types &= type_of(*value);
  return types;
}

/// What a `$ref` of the schema points at, "#/$defs/name" for instance; null if it has none, or
/// points elsewhere.
inline const Json* SchemaTypes::target_of(const Json& schema) const {
  const Json* reference = schema.find("$ref");
  if (!reference || !reference->is_string()) return nullptr;
  std::string_view rest = reference->string();
  if (!rest.starts_with('#')) return nullptr;
  rest.remove_prefix(1);
  const Json* at = &document_;
  while (at && rest.starts_with('/')) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    std::string key;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const bool is_coded = part[i] == '~' && i + 1 < part.size();
      key += is_coded ? (part[++i] == '0' ? '~' : '/') : part[i];
    }
    at = at->find(key);
  }
  return rest.empty() ? at : nullptr;
}

inline unsigned SchemaTypes::of(const Json& schema) const {
  Walk walk;
  const unsigned types = of(schema, walk);
  return types ? types : unsigned{JsonTypes::kAll};
}

inline unsigned SchemaTypes::of(const Json& schema, Walk& walk) const {
  if (++walk.steps > kMaxSteps || walk.depth == kMaxDepth) return JsonTypes::kAll;
  ++walk.depth;
  unsigned types = own_types(schema);
  if (const Json* target = target_of(schema)) types &= of(*target, walk);
  if (const Json* parts = schema.find("allOf"))
    for (const Json& part : *parts) types &= of(part, walk);
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* schemas = schema.find(key);
    if (!schemas || schemas->empty()) continue;
    unsigned any = 0;
    for (const Json& alternative : *schemas) any |= of(alternative, walk);
    types &= any;
  }
  --walk.depth;
  return types;
}

inline bool SchemaTypes::allow(const Json& value, const Json& schema) const {
  Walk walk;
  return allow(value, schema, walk);
}

inline bool SchemaTypes::allow(const Json& value, const Json& schema, Walk& walk) const {
  if (++walk.steps > kMaxSteps || walk.depth == kMaxDepth) return false;
  ++walk.depth;
  const bool is_allowed = (type_of(value) & own_types(schema)) && allow_here(value, schema, walk) &&
                          allow_inside(value, schema, walk);
  --walk.depth;
  return is_allowed;
}

/// By the schemas that say more of the same value.
inline bool SchemaTypes::allow_here(const Json& value, const Json& schema, Walk& walk) const {
  const auto allows = [&](const Json& part) { return allow(value, part, walk); };
  if (const Json* target = target_of(schema); target && !allows(*target)) return false;
  if (const Json* parts = schema.find("allOf"); parts && !std::ranges::all_of(*parts, allows))
    return false;
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* schemas = schema.find(key);
    if (schemas && !schemas->empty() && !std::ranges::any_of(*schemas, allows)) return false;
  }
  return true;
}

/// By the schemas of members and elements.
inline bool SchemaTypes::allow_inside(const Json& value, const Json& schema, Walk& walk) const {
  if (value.is_object()) {
    const Json* properties = schema.find("properties");
    const Json* others =
        schema.contains("patternProperties") ? nullptr : schema.find("additionalProperties");
    if (properties) walk.steps += value.size() * properties->size() / 16;
    for (const auto& [key, member] : value.items()) {
      const Json* own = properties ? properties->find(key) : nullptr;
      if (!own) own = others;
      if (own && !allow(member, *own, walk)) return false;
    }
  }
  if (value.is_array()) {
    const Json* items = schema.find("items");
    const Json* first = items && items->is_array() ? items : schema.find("prefixItems");
    std::size_t i = 0;
    for (const Json& element : value) {
      const Json* own = first && i < first->size() ? &first->elements()[i] : items;
      if (own && !allow(element, *own, walk)) return false;
      ++i;
    }
  }
  return true;
}

/// Whether `take(properties, additionalProperties)` of the schema, or of one that says more of the
/// same object, is true. Each may be null.
template <class Take>
bool SchemaTypes::any_members(const Json& schema, const Take& take, Walk& walk) const {
  if (++walk.steps > kMaxSteps || walk.depth == kMaxDepth) return false;
  if (take(schema.find("properties"), schema.find("additionalProperties"))) return true;
  ++walk.depth;
  const Json* target = target_of(schema);
  bool found = target && any_members(*target, take, walk);
  if (const Json* parts = schema.find("allOf"))
    for (const Json& part : *parts) found = found || any_members(part, take, walk);
  --walk.depth;
  return found;
}

inline const Json* SchemaTypes::of_member(const Json& schema, std::string_view name) const {
  const Json *own = nullptr, *other = nullptr;
  const auto take = [&](const Json* properties, const Json* others) {
    if (properties) own = properties->find(name);
    if (!other && others && others->is_object()) other = others;
    return own != nullptr;
  };
  Walk walk;
  any_members(schema, take, walk);
  return own ? own : other;
}

inline bool SchemaTypes::lists_members(const Json& schema) const {
  Walk walk;
  return any_members(
      schema, [](const Json* properties, const Json*) { return properties != nullptr; }, walk);
}

}  // namespace nanovllm::detail
