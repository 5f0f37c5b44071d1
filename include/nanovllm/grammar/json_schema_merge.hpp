#pragma once
/// JSON Schemas as conjunctions: one schema for what two ask for together.

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::json_schema {

/// What a message says of a place in a schema: "… at /properties/x", or at the root.
[[nodiscard]] std::string place(std::string_view path);

/// Throws RequestError: "the JSON Schema is refused: WHAT at PATH".
[[noreturn]] void refuse(std::string_view what, std::string_view path);

/// Whether a keyword says nothing of what is valid: titles, descriptions, definitions, and all that
/// no draft of JSON Schema knows.
[[nodiscard]] bool is_annotation(std::string_view keyword);

/// A schema for the values that are valid by both; keywords that say nothing of them are left out.
/// Throws RequestError where two keywords cannot be combined into one. `path` is for its message.
[[nodiscard]] Json both(const Json& a, const Json& b, std::string_view path);

/// The values that `enum` and `const` leave, as an array; null without either keyword.
[[nodiscard]] Json listed_values(const Json& schema, std::string_view path);

/// The types that a `type` keyword names. Throws RequestError for what is no type.
[[nodiscard]] std::vector<std::string> type_list(const Json& type, std::string_view path);

/// Whether a value is of a type: "integer", "number", "string" and so on.
[[nodiscard]] bool is_of_type(const Json& value, std::string_view type);

}  // namespace nanovllm::json_schema

#if NANOVLLM_BODIES
#include "nanovllm/grammar/json_schema_merge.inc"
#endif
