#pragma once
/// What the descriptions of tools say of their names and parameters.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/api/chat/scanners.hpp"
#include "nanovllm/api/chat/tool_calls/python_literal.hpp"
#include "nanovllm/api/chat/tool_calls/schema_types.hpp"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// The tools of a conversation.
class ToolSchemas {
 public:
  /// `tools` as in ChatOptions::tools: {"type": "function", "function": {…}} or what is inside.
  /// Throws RequestError unless it is a list or null.
  explicit ToolSchemas(Json tools);

  /// Whether a call may name this function; any, where there are no tools.
  [[nodiscard]] bool allows(std::string_view function) const;

  /// Whether the function may have a parameter of this name: any, where it is not among the tools
  /// or its schema lists none.
  [[nodiscard]] bool may_have(std::string_view function, std::string_view parameter) const;

  /// Whether a parameter can be nothing but a string, as where nothing is said of it.
  [[nodiscard]] bool is_string(std::string_view function, std::string_view parameter) const;

  /// The JSON of a parameter that was written without quotes: what can be read as JSON of the types
  /// that its schema allows is that. Where no string is allowed, a literal of Python is understood,
  /// and either in quotes. Everything else is a string.
  [[nodiscard]] std::string json_of(std::string_view function, std::string_view parameter,
                                    std::string_view text) const;

  /// The arguments of a call if they are a JSON object of the types in the function's schema;
  /// nothing if they are not. Where a parameter may be no string and is one, it is read as by
  /// `json_of`. All else stays as it is, byte for byte.
  [[nodiscard]] std::optional<std::string> checked(std::string_view function,
                                                   std::string_view arguments) const;

 private:
  [[nodiscard]] const Json* find(std::string_view function) const;
  /// The function's `parameters`; null where it has none.
  [[nodiscard]] const Json* parameters_of(std::string_view function) const;

  Json tools_;
};

inline ToolSchemas::ToolSchemas(Json tools) : tools_(parse_tools(tools)) {}

inline const Json* ToolSchemas::find(std::string_view function) const {
  for (const Json& tool : tools_) {
    const Json* inner = tool.find("function");
    const Json& description = inner ? *inner : tool;
    const Json* name = description.find("name");
    if (name && name->is_string() && name->string() == function) return &description;
  }
  return nullptr;
}

inline const Json* ToolSchemas::parameters_of(std::string_view function) const {
  const Json* description = find(function);
  const Json* parameters = description ? description->find("parameters") : nullptr;
  return parameters && parameters->is_object() ? parameters : nullptr;
}

inline bool ToolSchemas::allows(std::string_view function) const {
  return tools_.empty() || find(function) != nullptr;
}

inline bool ToolSchemas::may_have(std::string_view function, std::string_view parameter) const {
  const Json* schema = parameters_of(function);
  if (!schema) return find(function) == nullptr;
  const SchemaTypes types(*schema);
  return types.of_member(*schema, parameter) || !types.lists_members(*schema);
}

inline bool ToolSchemas::is_string(std::string_view function, std::string_view parameter) const {
  const Json* parameters = parameters_of(function);
  if (!parameters) return true;
  const SchemaTypes types(*parameters);
  const Json* schema = types.of_member(*parameters, parameter);
  return !schema || types.of(*schema) == JsonTypes::string;
}

/// `text` without the white space around it.
inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// The value that a JSON text stands for; nothing if it is none, or begins with a byte order mark,
/// which the reader would skip.
inline std::optional<Json> read_json_text(std::string_view text) {
  if (text.starts_with('\xEF')) return std::nullopt;
  try {
    return parse_json_value(text);
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

/// The JSON that a text is by a schema; nothing where it is none.
inline std::optional<std::string> json_by_schema(std::string_view text, const SchemaTypes& types,
                                                 const Json& schema) {
  const std::optional<Json> value = read_json_text(text);
  if (value && types.allow(*value, schema)) return std::string(text);
  if (types.of(schema) & JsonTypes::string) return std::nullopt;
  std::optional<std::string> literal = json_of_python_literal(text);
  const std::optional<Json> read = literal ? read_json_text(*literal) : std::nullopt;
  if (read && types.allow(*read, schema)) return literal;
  if (!read || !read->is_string()) return std::nullopt;
  const std::string_view inner = trimmed(read->string());  // the value in quotes
  if (inner.starts_with('"') || inner.starts_with('\'')) return std::nullopt;
  return json_by_schema(inner, types, schema);
}

inline std::string ToolSchemas::json_of(std::string_view function, std::string_view parameter,
                                        std::string_view text) const {
  if (const Json* parameters = parameters_of(function)) {
    const SchemaTypes types(*parameters);
    const Json* schema = types.of_member(*parameters, parameter);
    if (schema && types.of(*schema) != JsonTypes::string)
      if (auto json = json_by_schema(trimmed(text), types, *schema)) return *json;
  }
  std::string out;
  append_json_string(out, text);
  return out;
}

inline std::optional<std::string> ToolSchemas::checked(std::string_view function,
                                                       std::string_view arguments) const {
  constexpr std::size_t kMaxRepaired = 256;  // parameters: an object's members are found one by one
  const std::optional<Json> value = read_json_text(arguments);
  if (!value || !value->is_object()) return std::nullopt;
  const Json* schema = parameters_of(function);
  if (!schema) return std::string(arguments);
  const SchemaTypes types(*schema);
  if (types.allow(*value, *schema)) return std::string(arguments);
  if (value->size() > kMaxRepaired) return std::nullopt;
  Json repaired = Json::object();
  for (const auto& [key, member] : value->items()) {
    const Json* own = types.of_member(*schema, key);
    const bool is_right = !own || !member.is_string() || types.allow(member, *own);
    const auto json =
        is_right ? std::nullopt : json_by_schema(trimmed(member.string()), types, *own);
    repaired[key] = json ? parse_json_value(*json) : member;
  }
  if (!types.allow(repaired, *schema)) return std::nullopt;
  return repaired.dump();
}

}  // namespace nanovllm::detail
