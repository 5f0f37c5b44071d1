#pragma once
/// What the descriptions of tools say of their names and parameters.

#include <string>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// The kinds of JSON values that a schema allows, as bits.
struct JsonTypes {
  enum : unsigned { null = 1, boolean = 2, number = 4, string = 8, array = 16, object = 32 };
  static constexpr unsigned kAll = 63;
};

/// The tools of a conversation.
class ToolSchemas {
 public:
  /// `tools` as in ChatOptions::tools: {"type": "function", "function": {…}} or what is inside.
  /// Throws RequestError unless it is a list or null.
  explicit ToolSchemas(Json tools);

  /// Whether a call may name this function; any, where there are no tools.
  [[nodiscard]] bool allows(std::string_view function) const;

  /// JsonTypes of a parameter. A string, where nothing is said of the function or the parameter.
  [[nodiscard]] unsigned types_of(std::string_view function, std::string_view parameter) const;

 private:
  [[nodiscard]] const Json* find(std::string_view function) const;

  Json tools_;
};

/// The JSON of a value that was written without quotes, by its types: what can be read as JSON of
/// one of them is that, with Python's True, False and None understood where no string may be;
/// everything else is a string. Where none may be, any other JSON is taken as it is.
[[nodiscard]] std::string json_of_bare_value(std::string_view text, unsigned types);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <utility>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/tag_matcher.hpp"

namespace nanovllm::detail {

NANOVLLM_INLINE unsigned type_of(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::null: return JsonTypes::null;
    case Json::Kind::boolean: return JsonTypes::boolean;
    case Json::Kind::string: return JsonTypes::string;
    case Json::Kind::array: return JsonTypes::array;
    case Json::Kind::object: return JsonTypes::object;
    default: return JsonTypes::number;
  }
}

/// The types that "type" names; all for a word that is not known.
NANOVLLM_INLINE unsigned type_called(const Json& word) {
  constexpr std::pair<std::string_view, unsigned> kTypes[] = {
      {"null", JsonTypes::null},      {"boolean", JsonTypes::boolean},
      {"integer", JsonTypes::number}, {"number", JsonTypes::number},
      {"string", JsonTypes::string},  {"array", JsonTypes::array},
      {"object", JsonTypes::object}};
  if (word.is_string())
    for (const auto& [type, bits] : kTypes)
      if (word.string() == type) return bits;
  return JsonTypes::kAll;
}

/// The types that a schema allows, by its `type`, `enum` or `const`, or those of its alternatives;
/// all where it has none of these.
NANOVLLM_INLINE unsigned types_of_schema(const Json& schema, int depth) {
  unsigned types = 0;
  if (const Json* type = schema.find("type")) {
    if (!type->is_array()) return type_called(*type);
    for (const Json& word : *type) types |= type_called(word);
  } else if (const Json* values = schema.find("enum")) {
    for (const Json& value : *values) types |= type_of(value);
  } else if (const Json* value = schema.find("const")) {
    types = type_of(*value);
  } else if (depth < kMaxJsonDepth) {
    for (const char* key : {"anyOf", "oneOf"})
      if (const Json* schemas = schema.find(key))
        for (const Json& alternative : *schemas) types |= types_of_schema(alternative, depth + 1);
  }
  return types ? types : JsonTypes::kAll;
}

NANOVLLM_INLINE ToolSchemas::ToolSchemas(Json tools) : tools_(parse_tools(tools)) {}

NANOVLLM_INLINE const Json* ToolSchemas::find(std::string_view function) const {
  for (const Json& tool : tools_) {
    const Json* inner = tool.find("function");
    const Json& description = inner ? *inner : tool;
    const Json* name = description.find("name");
    if (name && name->is_string() && name->string() == function) return &description;
  }
  return nullptr;
}

NANOVLLM_INLINE bool ToolSchemas::allows(std::string_view function) const {
  return tools_.empty() || find(function) != nullptr;
}

NANOVLLM_INLINE unsigned ToolSchemas::types_of(std::string_view function,
                                               std::string_view parameter) const {
  const Json* schema = find(function);
  for (const std::string_view key :
       {std::string_view("parameters"), std::string_view("properties"), parameter})
    if (schema) schema = schema->find(key);
  return schema ? types_of_schema(*schema, 0) : unsigned{JsonTypes::string};
}

NANOVLLM_INLINE std::string json_of_bare_value(std::string_view text, unsigned types) {
  std::string_view trimmed = text;
  while (!trimmed.empty() && is_blank(trimmed.front())) trimmed.remove_prefix(1);
  while (!trimmed.empty() && is_blank(trimmed.back())) trimmed.remove_suffix(1);
  const bool may_be_string = types & JsonTypes::string;
  if (!may_be_string) {
    if (trimmed == "True" && types & JsonTypes::boolean) return "true";
    if (trimmed == "False" && types & JsonTypes::boolean) return "false";
    if (trimmed == "None" && types & JsonTypes::null) return "null";
  }
  const bool has_byte_order_mark = trimmed.starts_with('\xEF');  // which the reader would skip
  if (types != JsonTypes::string && !has_byte_order_mark) {
    try {
      const unsigned type = type_of(parse_json_value(trimmed));
      // A text in quotes is a JSON string where other types would be written as JSON, too.
      if (!may_be_string || (type & types)) return std::string(trimmed);
    } catch (const JsonError&) {
      // A string, then.
    }
  }
  std::string out;
  append_json_string(out, text);
  return out;
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
