#pragma once
/// What a chat completion's request says of tools.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/io/json.hpp"

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
  /// Names of the tools that `automatic` and `required` may call; empty: all.
  std::vector<std::string> allowed{};

  /// Whether a tool of this name may be called.
  [[nodiscard]] bool allows(const std::string& tool) const {
    if (kind == Kind::named) return tool == name;
    return kind != Kind::none &&
           (allowed.empty() || std::find(allowed.begin(), allowed.end(), tool) != allowed.end());
  }
  [[nodiscard]] friend bool operator==(const ToolChoice&, const ToolChoice&) = default;
};

/// What a request says of tools.
struct ToolFields {
  /// For the prompt: members in the order of OpenAI's documentation, `strict` left out. Null where
  /// none may be called.
  Json tools = nullptr;
  ToolChoice choice{};
  bool parallel = true;
  /// Of the tools that may be called. Kind::tool_calls where a call must come;
  /// Kind::free_tool_calls where one may, and a tool is `strict` or not all are allowed; else
  /// Kind::none.
  OutputConstraint constraint{};
};

namespace detail {

/// A tool of a request.
struct Tool {
  std::string name;
  Json for_prompt;
  Json for_grammar;  ///< {"type": "function", "function": {"name", "parameters"}}
  bool is_strict = false;
};

inline bool is_tool_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

/// `object` with the members in `first` before the others, and without those in `dropped`. Models
/// were trained on one order, and prompts of one order share their prefix.
inline Json in_order(const Json& object, const std::string& path,
                     std::initializer_list<std::string_view> first, std::string_view dropped) {
  if (object.size() > kMaxToolMembers)
    refuse_field(path,
                 concat("must have at most ", kMaxToolMembers, " members, got ", object.size()));
  Json out = Json::object();
  for (const std::string_view key : first) {
    if (const Json* value = object.find(key)) out[key] = *value;
  }
  for (const auto& [key, value] : object.items()) {
    if (key != dropped && std::find(first.begin(), first.end(), key) == first.end())
      out[key] = value;
  }
  return out;
}

inline Tool read_tool(const Json& value, const std::string& path) {
  const RequestFields fields(value, path);
  const Json& type = fields.required("type");
  if (!type.is_string() || type.string() != "function")
    wrong_field(fields.path("type"), "'function'", type);
  const RequestFields function(fields.required("function"), fields.path("function"));
  Tool tool;
  tool.name = string_at(function.required("name"), function.path("name"));
  if (!is_tool_name(tool.name))
    wrong_field(function.path("name"),
                concat("1 to ", kMaxToolNameBytes, " of the characters a-z, A-Z, 0-9, _, . and -"),
                tool.name);
  (void)function.string("description");
  tool.is_strict = function.flag("strict");
  Json parameters = Json::object({{"type", "object"}, {"properties", Json::object()}});
  if (const Json* found = function.find("parameters")) {
    if (!found->is_object())
      wrong_field(function.path("parameters"), "a JSON Schema, an object", *found);
    parameters = *found;
  }
  tool.for_grammar = Json::object(
      {{"type", "function"},
       {"function", Json::object({{"name", tool.name}, {"parameters", std::move(parameters)}})}});
  tool.for_prompt = in_order(value, path, {"type", "function"}, "");
  tool.for_prompt["function"] = in_order(value["function"], path + ".function",
                                         {"name", "description", "parameters"}, "strict");
  return tool;
}

inline std::vector<Tool> read_tools(const RequestFields& body) {
  std::vector<Tool> tools;
  const Json* list = body.list("tools", kMaxTools);
  if (list == nullptr) return tools;
  std::set<std::string> names;
  for (const Json& value : *list) {
    const std::string path = element_path("tools", tools.size());
    tools.push_back(read_tool(value, path));
    if (!names.insert(tools.back().name).second)
      refuse_field(
          path + ".function.name",
          concat("must be unique, but an earlier tool is called '", tools.back().name, "'"));
  }
  return tools;
}

/// The name in {"type": "function", "function": {"name"}}, which must be that of a tool.
inline const std::string& chosen_name(const RequestFields& fields, const std::vector<Tool>& tools) {
  const Json& type = fields.required("type");
  if (!type.is_string() || type.string() != "function")
    wrong_field(fields.path("type"), "'function'", type);
  const RequestFields function(fields.required("function"), fields.path("function"));
  const std::string& name = string_at(function.required("name"), function.path("name"));
  const bool is_known =
      std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; });
  if (!is_known) wrong_field(function.path("name"), "the name of one of the tools", name);
  return name;
}

/// {"mode", "tools"}: some of the tools.
inline ToolChoice allowed_choice(const RequestFields& fields, const std::vector<Tool>& tools) {
  const Json& mode = fields.required("mode");
  const bool is_required = mode == Json("required");
  if (!is_required && mode != Json("auto"))
    wrong_field(fields.path("mode"), "'auto' or 'required'", mode);
  const Json& list = fields.required("tools");
  const std::string path = fields.path("tools");
  if (!list.is_array() || list.empty() || list.size() > kMaxTools)
    wrong_field(path, concat("a list of 1 to ", kMaxTools, " tools"), list);
  ToolChoice choice{is_required ? ToolChoice::Kind::required : ToolChoice::Kind::automatic};
  for (const Json& tool : list) {
    const RequestFields element(tool, element_path(path, choice.allowed.size()));
    choice.allowed.push_back(chosen_name(element, tools));
  }
  return choice;
}

inline ToolChoice read_choice(const RequestFields& body, const std::vector<Tool>& tools) {
  using Kind = ToolChoice::Kind;
  const Json* value = body.find("tool_choice");
  if (value == nullptr) return {tools.empty() ? Kind::none : Kind::automatic};
  const auto is = [&](std::string_view word) {
    return value->is_string() && value->string() == word;
  };
  if (is("none")) return {};
  if (is("auto")) return {tools.empty() ? Kind::none : Kind::automatic};
  if (!is("required") && !value->is_object())
    wrong_field("tool_choice",
                "'none', 'auto', 'required' or an object of type 'function' or 'allowed_tools'",
                *value);
  if (tools.empty()) refuse_field("tool_choice", "needs tools to choose from");
  if (is("required")) return {Kind::required};
  const RequestFields fields(*value, "tool_choice");
  const Json& type = fields.required("type");
  if (type == Json("allowed_tools")) {
    const char* key = "allowed_tools";
    return allowed_choice(RequestFields(fields.required(key), fields.path(key)), tools);
  }
  if (type != Json("function"))
    wrong_field(fields.path("type"), "'function' or 'allowed_tools'", type);
  return {Kind::named, chosen_name(fields, tools)};
}

inline OutputConstraint tool_constraint(const std::vector<Tool>& tools, const ToolChoice& choice,
                                        bool parallel) {
  using Kind = ToolChoice::Kind;
  const bool any_strict =
      std::any_of(tools.begin(), tools.end(), [](const Tool& tool) { return tool.is_strict; });
  const bool any_refused = std::any_of(tools.begin(), tools.end(),
                                       [&](const Tool& tool) { return !choice.allows(tool.name); });
  if (choice.kind == Kind::none) return {};
  if (choice.kind == Kind::automatic && !any_strict && !any_refused) return {};
  OutputConstraint constraint{.kind = choice.kind == Kind::automatic
                                          ? OutputConstraint::Kind::free_tool_calls
                                          : OutputConstraint::Kind::tool_calls};
  constraint.tools = Json::array();
  for (const Tool& tool : tools) {
    if (choice.allows(tool.name)) constraint.tools.push_back(tool.for_grammar);
  }
  constraint.parallel_tool_calls = parallel && choice.kind != Kind::named;
  return constraint;
}

}  // namespace detail

/// Reads tools, tool_choice and parallel_tool_calls. Throws RequestError, also for the fields that
/// they have replaced, functions and function_call.
[[nodiscard]] inline ToolFields parse_tool_fields(const RequestFields& body) {
  for (const char* name : {"functions", "function_call"}) {
    if (body.has(name))
      refuse_field(name, "is not supported; send 'tools' and 'tool_choice', which replace it");
  }
  const std::vector<detail::Tool> tools = detail::read_tools(body);
  ToolFields out;
  out.choice = detail::read_choice(body, tools);
  out.parallel = body.flag("parallel_tool_calls", true);
  out.constraint = detail::tool_constraint(tools, out.choice, out.parallel);
  if (out.choice.kind == ToolChoice::Kind::none) return out;
  out.tools = Json::array();
  for (const detail::Tool& tool : tools) out.tools.push_back(tool.for_prompt);
  return out;
}

}  // namespace nanovllm::serve
