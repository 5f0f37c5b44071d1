#pragma once
/// What a chat completion's request says of tools.

#include <cstddef>
#include <cstdint>
#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/output_constraint.hpp"
#include "nanovllm/serve/request_fields.hpp"

namespace nanovllm::serve {

/// Tools that a request may have, members of one, and bytes of a name.
inline constexpr std::size_t kMaxTools = 128;
inline constexpr std::size_t kMaxToolMembers = 64;
inline constexpr std::size_t kMaxToolNameBytes = 64;

/// Which tools the answer may call.
struct ToolChoice {
  enum class Kind : std::uint8_t {
    none,       ///< none; the prompt does not show any either
    automatic,  ///< "auto": as the model sees fit
    required,   ///< one or more
    named       ///< `name`, once
  };
  Kind kind = Kind::none;
  std::string name{};

  [[nodiscard]] friend bool operator==(const ToolChoice&, const ToolChoice&) = default;
};

/// What a request says of tools.
struct ToolFields {
  /// For the prompt: members in the order of OpenAI's documentation, `strict` left out. Null where
  /// none may be called.
  Json tools = nullptr;
  ToolChoice choice{};
  bool parallel = true;
  /// Kind::tool_calls where a call must come; Kind::free_tool_calls where one may, and a tool is
  /// `strict`; else Kind::none.
  OutputConstraint constraint{};
};

/// Reads tools, tool_choice and parallel_tool_calls. Throws ApiError, also for the fields that they
/// have replaced, functions and function_call.
[[nodiscard]] ToolFields parse_tool_fields(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/tool_fields.inc"
#endif
