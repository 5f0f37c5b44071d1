#pragma once
/// The fields of a conversation: its messages, and the options of the chat template.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/chat/chat_message.hpp"

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

}  // namespace nanovllm::serve
