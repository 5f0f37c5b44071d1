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
#include "nanovllm/chat/tool_schemas.inc"
#endif
