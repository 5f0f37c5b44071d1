#pragma once
/// The fields of a conversation: its messages, the options of the chat template, and its tools.

#include <algorithm>
#include <array>
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
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// Messages that a request may have.
inline constexpr std::size_t kMaxMessages = 16384;

namespace detail {

inline std::string read_role(const RequestFields& message) {
  const std::string& role = string_at(message.required("role"), message.path("role"));
  if (role == "developer") return "system";
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end())
    wrong_field(message.path("role"), "'system', 'developer', 'user', 'assistant' or 'tool'", role);
  return role;
}

/// Throws RequestError unless `content` is a text or a list of parts that are.
inline void check_content(const Json& content, const std::string& path) {
  if (content.is_string()) return;
  if (!content.is_array()) wrong_field(path, "a string or a list of text parts", content);
  for (std::size_t i = 0; i < content.size(); ++i) {
    const RequestFields part(content[i], element_path(path, i));
    const std::string& type = string_at(part.required("type"), part.path("type"));
    if (type != "text")
      wrong_field(part.path("type"), "'text', as this model reads nothing else", type);
    (void)string_at(part.required("text"), part.path("text"));
  }
}

/// Arguments as templates print them. Text that is not an object stays as it is: a malformed call
/// of a model does not end the conversation.
inline Json read_arguments(const Json& value, const std::string& path) {
  if (value.is_object()) return value;
  const std::string& text = string_at(value, path);
  if (text.empty()) return Json::object();
  try {
    Json arguments = parse_json_value(text);
    if (arguments.is_object()) return arguments;
  } catch (const JsonError&) {
  }
  return value;
}

inline Json read_tool_calls(const Json& list, const std::string& path) {
  if (!list.is_array()) wrong_field(path, "a list of tool calls", list);
  Json calls = list;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RequestFields call(list[i], element_path(path, i));
    const RequestFields function(call.required("function"), call.path("function"));
    (void)string_at(function.required("name"), function.path("name"));
    const Json* arguments = function.find("arguments");
    calls[i]["function"]["arguments"] =
        arguments == nullptr ? Json::object()
                             : read_arguments(*arguments, function.path("arguments"));
  }
  return calls;
}

inline ChatMessage read_message(const Json& value, const std::string& path) {
  const RequestFields fields(value, path);
  const std::string role = read_role(fields);
  if (!value.contains("content") && role != "assistant")
    refuse_field(fields.path("content"), "is missing");
  const Json* content = fields.find("content");
  if (content != nullptr) check_content(*content, fields.path("content"));

  ChatMessage message = ChatMessage::from_json(value);
  message.set("role", role);
  message.set("content", content == nullptr ? Json("") : *content);
  if (const Json* calls = fields.find("tool_calls"))
    message.set("tool_calls", read_tool_calls(*calls, fields.path("tool_calls")));
  for (const char* name : {"reasoning", "reasoning_content"}) {
    if (const auto reasoning = fields.string(name)) message.set("reasoning_content", *reasoning);
  }
  return message;
}

}  // namespace detail

/// Reads `messages` and prepares them for a template. The role 'developer' becomes 'system'. Text
/// parts are joined. Content that is null, or that a message of the assistant lacks, becomes "".
/// Arguments of tool calls that are the text of an object become the object. `reasoning` is used if
/// there is no `reasoning_content`. Other members stay as they are. Throws RequestError, also for
/// content that is not text.
[[nodiscard]] inline std::vector<ChatMessage> parse_chat_messages(const RequestFields& body) {
  (void)body.required("messages");
  const Json& list = *body.list("messages", kMaxMessages);
  if (list.empty()) refuse_field("messages", "must not be empty");
  std::vector<ChatMessage> messages;
  messages.reserve(list.size());
  for (const Json& value : list)
    messages.push_back(detail::read_message(value, element_path("messages", messages.size())));
  join_text_parts(messages);
  return messages;
}

/// Reads add_generation_prompt, continue_final_message and whether to think:
/// chat_template_kwargs.enable_thinking, else enable_thinking, else a reasoning_effort of 'none'.
/// Other kwargs, and reasoning_effort, become variables of the template, as `documents` does.
/// Throws RequestError, also for chat_template: a template is a program, and requests are not
/// trusted with one.
[[nodiscard]] inline ChatOptions parse_chat_options(const RequestFields& body) {
  body.refuse("chat_template",
              "is not supported: conversations are rendered by the template of the model");
  ChatOptions options;
  if (const Json* documents = body.list("documents", kMaxMessages)) {
    for (std::size_t i = 0; i < documents->size(); ++i)
      (void)RequestFields((*documents)[i], element_path("documents", i));
    options.documents = *documents;
  }
  options.continue_final_message = body.flag("continue_final_message");
  options.add_generation_prompt =
      body.flag("add_generation_prompt", !options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt)
    refuse_field("add_generation_prompt", "cannot be true together with continue_final_message");
  if (const auto effort = body.string("reasoning_effort")) {
    if (*effort == "none") options.enable_thinking = false;
    options.template_kwargs["reasoning_effort"] = *effort;
  }
  if (const auto thinking = body.boolean("enable_thinking")) options.enable_thinking = thinking;
  if (const Json* value = body.find("chat_template_kwargs")) {
    const RequestFields kwargs(*value, "chat_template_kwargs");
    if (const auto thinking = kwargs.boolean("enable_thinking")) options.enable_thinking = thinking;
    for (const auto& [name, kwarg] : value->items()) {
      for (const char* own : {"messages", "tools", "documents", "add_generation_prompt"})
        if (name == own) refuse_field(kwargs.path(own), "is a field of the request itself");
      if (name != "enable_thinking") options.template_kwargs[name] = kwarg;
    }
  }
  return options;
}

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
