#pragma once
/// The body of POST /v1/messages, Anthropic's, as a request for a chat completion.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/serve/request/text_requests.hpp"
#include "nanovllm/api/serve/request/translated_chat.hpp"

namespace nanovllm::serve {

/// Anthropic's names of a chat's fields.
inline constexpr std::array<FieldName, 5> kMessagesNames = {{
    {"stop", "stop_sequences"},
    {".function.parameters", ".input_schema"},
    {".function", ""},
    {"response_format", "output_config.format"},
    {"max_tokens", "max_tokens"},
}};

namespace detail {

/// Begins a line that coding agents put before their system prompt. It differs in each request, so
/// that no prefix of two prompts would be equal.
inline constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

/// `content`, a text or blocks of text, without that line.
inline Json system_content(const Json& content, const std::string& path) {
  check_content(content, path);
  const auto shortened = [](const std::string& text) {
    if (!text.starts_with(kBillingHeader)) return text;
    return text.substr(std::min(text.find('\n'), text.size() - 1) + 1);
  };
  if (content.is_string()) return shortened(content.string());
  Json parts = Json::array();
  for (const Json& part : content)
    if (std::string text = shortened(part["text"].string()); !text.empty())
      parts.push_back(text_part(std::move(text)));
  return parts;
}

inline Json tool_result_message(const RequestFields& block) {
  Json parts = Json::array();
  if (block.flag("is_error")) parts.push_back(text_part("Error:"));
  if (const Json* content = block.find("content")) {
    check_content(*content, block.path("content"));
    if (content->is_string()) parts.push_back(text_part(*content));
    for (const Json& part : content->elements()) parts.push_back(part);
  }
  Json message = chat_message("tool", std::move(parts));
  message["tool_call_id"] = text_at(block, "tool_use_id");
  return message;
}

/// The messages of a user's blocks: each result of a tool is one of its own.
inline void read_user_blocks(const Json& content, const std::string& path, Json& out) {
  Json parts = Json::array();
  const auto end_message = [&] {
    if (!parts.empty()) out.push_back(chat_message("user", parts));
    parts = Json::array();
  };
  for (std::size_t i = 0; i < content.size(); ++i) {
    const RequestFields block(content[i], element_path(path, i));
    if (word_at(block, "type", {"text", "tool_result"}, ", as this model reads nothing else") ==
        "text") {
      parts.push_back(text_part(text_at(block, "text")));
      continue;
    }
    end_message();
    out.push_back(tool_result_message(block));
  }
  end_message();
}

inline Json assistant_message(const Json& content, const std::string& path) {
  Json parts = Json::array(), calls = Json::array();
  std::string reasoning;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const RequestFields block(content[i], element_path(path, i));
    const std::string& type =
        word_at(block, "type", {"text", "thinking", "redacted_thinking", "tool_use"});
    if (type == "text") parts.push_back(text_part(text_at(block, "text")));
    if (type == "thinking") reasoning += text_at(block, "thinking");
    if (type != "tool_use") continue;
    const Json& input = block.required("input");
    if (!input.is_object()) wrong_field(block.path("input"), "an object", input);
    calls.push_back(chat_call(text_at(block, "id"), text_at(block, "name"), input));
  }
  Json message = chat_message("assistant", std::move(parts));
  if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

/// The messages of a chat.
inline Json messages_of(const RequestFields& body) {
  Json out = Json::array();
  const auto add_system = [&](const Json& content, const std::string& path) {
    Json read = system_content(content, path);
    if (!read.empty() && read != Json("")) out.push_back(chat_message("system", std::move(read)));
  };
  if (const Json* system = body.find("system")) add_system(*system, "system");
  (void)body.required("messages");
  const Json& list = *body.list("messages", kMaxMessages);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RequestFields message(list[i], element_path("messages", i));
    const std::string& role = word_at(message, "role", {"user", "assistant", "system"});
    const Json& content = message.required("content");
    const std::string path = message.path("content");
    if (!content.is_string() && !content.is_array())
      wrong_field(path, "a string or a list of blocks", content);
    if (content.is_array() && content.empty() && role == "user")
      refuse_field(path, "must not be empty");
    if (role == "system") {
      add_system(content, path);
    } else if (content.is_string()) {
      out.push_back(chat_message(role, content));
    } else if (role == "assistant") {
      out.push_back(assistant_message(content, path));
    } else {
      read_user_blocks(content, path, out);
    }
  }
  if (list.empty() || out.empty()) refuse_field("messages", "must not be empty");
  return out;
}

inline void read_thinking(const RequestFields& body, Json& chat) {
  const Json* value = body.find("thinking");
  if (value == nullptr) return;
  const RequestFields thinking(*value, "thinking");
  const std::string& type = word_at(thinking, "type", {"enabled", "disabled", "adaptive"});
  if (type != "adaptive") chat["enable_thinking"] = type == "enabled";
  if (type == "enabled")
    (void)integer_at(thinking.required("budget_tokens"), "thinking.budget_tokens", 1024, kMaxCount);
}

inline void read_message_tools(const RequestFields& body, Json& chat) {
  if (const Json* list = body.list("tools", kMaxTools)) {
    chat["tools"] = chat_tools(*list, "custom", "input_schema");
    for (std::size_t i = 0; i < list->size(); ++i)
      (void)RequestFields((*list)[i], element_path("tools", i)).required("input_schema");
  }
  const Json* value = body.find("tool_choice");
  if (value == nullptr) return;
  const RequestFields choice(*value, "tool_choice");
  const std::string& type = word_at(choice, "type", {"auto", "any", "tool", "none"});
  chat["tool_choice"] = type == "tool"  ? chosen_tool(choice)
                        : type == "any" ? "required"
                                        : Json(type);
  chat["parallel_tool_calls"] = !choice.flag("disable_parallel_tool_use");
}

inline void read_output_config(const RequestFields& body, Json& chat) {
  const Json* value = body.find("output_config");
  if (value == nullptr) return;
  const RequestFields config(*value, "output_config");
  if (config.has("effort"))
    chat["reasoning_effort"] = word_at(config, "effort", {"low", "medium", "high", "xhigh", "max"});
  if (const Json* found = config.find("format")) {
    const RequestFields format(*found, config.path("format"));
    chat["response_format"] = chat_format(format, word_at(format, "type", {"json_schema"}));
  }
}

}  // namespace detail

/// Reads a request of Messages. Members of a block that are not read, such as `cache_control`, are
/// ignored: every prefix is cached. Throws RequestError.
/// @param is_answered  false: only its tokens are counted, and it needs no max_tokens.
[[nodiscard]] inline ChatCompletionRequest parse_messages_request(const Json& json,
                                                                  bool is_answered = true) {
  const RequestFields body(json);
  Json chat = Json::object();
  if (is_answered || body.has("max_tokens")) chat["max_tokens"] = body.required("max_tokens");
  for (const char* name : {"mcp_servers", "container"})
    body.refuse(name, "is not supported: this server runs no tools");
  chat["messages"] = detail::messages_of(body);
  copy_shared_fields(body, chat);
  if (const Json* stop = body.list("stop_sequences", kMaxCount)) chat["stop"] = *stop;
  detail::read_thinking(body, chat);
  detail::read_message_tools(body, chat);
  detail::read_output_config(body, chat);
  const Json& last = chat["messages"][chat["messages"].size() - 1];
  if (last["role"] == "assistant" && !last.contains("tool_calls"))
    chat["continue_final_message"] = true;
  ChatCompletionRequest request = ChatCompletionRequest::parse(chat);
  if (request.constraint_field == "response_format")
    request.constraint_field = "output_config.format";
  return request;
}

}  // namespace nanovllm::serve
