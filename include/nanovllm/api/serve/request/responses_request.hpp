#pragma once
/// The body of POST /v1/responses, OpenAI's, as a request for a chat completion.

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "nanovllm/api/serve/request/text_requests.hpp"
#include "nanovllm/api/serve/request/translated_chat.hpp"

namespace nanovllm::serve {

/// The names that a chat's fields have in Responses.
inline constexpr std::array<FieldName, 6> kResponsesNames = {{
    {"tool_choice.allowed_tools", "tool_choice"},
    {"max_tokens", "max_output_tokens"},
    {"messages", "input"},
    {".function", ""},
    {"response_format", "text.format"},
    {"truncate_prompt_tokens", "truncation"},
}};

struct ResponsesRequest {
  /// Finds the conversation of an earlier response, which its argument names. Throws ApiError.
  using FindConversation = std::function<Json(const std::string& id)>;

  ChatCompletionRequest chat{};
  Json conversation = Json::array();  ///< the messages, but for `instructions`
  Json echo = Json::object();         ///< the members of the request that a response repeats

  /// @param find  empty: no responses are kept.
  /// Throws RequestError.
  [[nodiscard]] static ResponsesRequest parse(const Json& json, const FindConversation& find);
};

namespace detail {

/// A text, or the texts of a list of parts, for a message of a chat.
inline Json item_content(const RequestFields& item, const char* key) {
  const Json& content = item.required(key);
  if (content.is_string()) return content;
  if (!content.is_array()) wrong_field(item.path(key), "a string or a list of text parts", content);
  Json parts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    const RequestFields part(content[i], element_path(item.path(key), i));
    (void)word_at(part, "type", {"input_text", "output_text", "reasoning_text", "text"},
                  ", as this model reads nothing else");
    parts.push_back(text_part(text_at(part, "text")));
  }
  return parts;
}

/// Appends what an item of an input says. What the assistant thought, said and called in a turn is
/// one message, as chat templates print it.
inline void read_item(const RequestFields& item, Json& messages) {
  const std::string type =
      !item.has("type")
          ? "message"
          : word_at(item, "type",
                    {"message", "reasoning", "function_call", "function_call_output"});
  Json* last = messages.empty() ? nullptr : &messages[messages.size() - 1];
  if (last != nullptr && (*last)["role"] != "assistant") last = nullptr;
  if (type == "message") {
    const std::string& role = word_at(item, "role", {"user", "assistant", "system", "developer"});
    Json content = item_content(item, "content");
    if (role == "assistant" && last != nullptr && (*last)["content"] == "" &&
        !last->contains("tool_calls"))
      (*last)["content"] = std::move(content);
    else
      messages.push_back(chat_message(role, std::move(content)));
  } else if (type == "reasoning") {
    if (!item.has("content")) return;  // a summary is not what the model wrote
    Json message = chat_message("assistant", "");
    const Json content = item_content(item, "content");
    std::string text = content.is_string() ? content.string() : "";
    for (const Json& part : content.elements()) text += part["text"].string();
    message["reasoning_content"] = std::move(text);
    messages.push_back(std::move(message));
  } else if (type == "function_call") {
    Json call =
        chat_call(text_at(item, "call_id"), text_at(item, "name"), text_at(item, "arguments"));
    if (last == nullptr) messages.push_back(chat_message("assistant", ""));
    Json& calls = messages[messages.size() - 1]["tool_calls"];
    if (calls.is_null()) calls = Json::array();
    calls.push_back(std::move(call));
  } else {
    messages.push_back(chat_message("tool", item_content(item, "output")));
    messages[messages.size() - 1]["tool_call_id"] = text_at(item, "call_id");
  }
}

/// Appends the messages of `input`, a text or a list of items.
inline void read_input(const RequestFields& body, Json& messages) {
  const Json& input = body.required("input");
  if (input.is_string()) return messages.push_back(chat_message("user", input));
  if (!input.is_array()) wrong_field("input", "a string or a list of items", input);
  if (input.empty()) refuse_field("input", "must not be empty");
  const Json& items = *body.list("input", kMaxMessages);
  for (std::size_t i = 0; i < items.size(); ++i)
    read_item(RequestFields(items[i], element_path("input", i)), messages);
  if (messages.empty()) refuse_field("input", "must have an item besides thoughts without content");
}

inline void read_response_tools(const RequestFields& body, Json& chat) {
  if (const Json* list = body.list("tools", kMaxTools))
    chat["tools"] = chat_tools(*list, "function", "parameters");
  if (const Json* parallel = body.find("parallel_tool_calls"))
    chat["parallel_tool_calls"] = *parallel;
  const Json* value = body.find("tool_choice");
  if (value == nullptr) return;
  chat["tool_choice"] = *value;
  if (!value->is_object()) return;
  const RequestFields choice(*value, "tool_choice");
  if (word_at(choice, "type", {"function", "allowed_tools"}) == "function") {
    chat["tool_choice"] = chosen_tool(choice);
    return;
  }
  Json tools = Json::array();
  (void)choice.required("tools");
  const Json& list = *choice.list("tools", kMaxTools);
  for (std::size_t i = 0; i < list.size(); ++i)
    tools.push_back(chosen_tool(RequestFields(list[i], element_path("tool_choice.tools", i))));
  chat["tool_choice"]["allowed_tools"] =
      Json::object({{"mode", choice.required("mode")}, {"tools", std::move(tools)}});
}

inline void read_text_format(const RequestFields& body, Json& chat) {
  const Json* text = body.find("text");
  const Json* found = text == nullptr ? nullptr : RequestFields(*text, "text").find("format");
  if (found == nullptr) return;
  const RequestFields format(*found, "text.format");
  chat["response_format"] =
      chat_format(format, word_at(format, "type", {"text", "json_object", "json_schema"}));
}

/// What says that log-probabilities are wanted: `top_logprobs`, or an element of `include`.
inline void read_response_logprobs(const RequestFields& body, Json& chat) {
  if (const Json* top = body.find("top_logprobs")) {
    chat["top_logprobs"] = *top;
    if (*top != Json(0)) chat["logprobs"] = true;
  }
  if (const Json* include = body.list("include", kMaxTools))
    for (std::size_t i = 0; i < include->size(); ++i)
      if (string_at((*include)[i], element_path("include", i)) == "message.output_text.logprobs")
        chat["logprobs"] = true;
}

/// What a response repeats of its request, with the values that unset members have.
inline Json echo_of(const RequestFields& body) {
  Json echo = parse_json(R"({"instructions": null, "max_output_tokens": null, "metadata": {},
    "parallel_tool_calls": true, "previous_response_id": null,
    "reasoning": {"effort": null, "summary": null}, "temperature": null,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
    "top_p": null, "truncation": "disabled"})");
  const Json unset = echo;
  for (const auto& [name, value] : unset.items())
    if (const Json* found = body.find(name)) echo[name] = *found;
  return echo;
}

}  // namespace detail

inline ResponsesRequest ResponsesRequest::parse(const Json& json, const FindConversation& find) {
  const RequestFields body(json);
  ResponsesRequest request;
  if (body.flag("background"))
    refuse_field("background", "must be false: a response is made while its client waits");
  body.refuse("conversation", "is not supported; send the items as input, or previous_response_id");
  body.refuse("prompt", "is not supported: this server has no templates of prompts");
  if (const auto previous = body.string("previous_response_id")) {
    if (!find)
      refuse_field("previous_response_id",
                   "cannot be used, as this server keeps no responses: send the whole "
                   "conversation as input");
    request.conversation = find(*previous);
  }
  const bool is_stored = body.flag("store", true) && find;
  if (const Json* metadata = body.find("metadata"); metadata != nullptr && !metadata->is_object())
    wrong_field("metadata", "an object", *metadata);
  detail::read_input(body, request.conversation);
  Json chat = Json::object({{"messages", Json::array()}});
  if (const auto instructions = body.string("instructions"))
    chat["messages"].push_back(chat_message("system", *instructions));
  for (const Json& message : request.conversation) chat["messages"].push_back(message);
  copy_shared_fields(body, chat);
  if (const Json* limit = body.find("max_output_tokens")) chat["max_tokens"] = *limit;
  if (body.has("truncation") && word_at(body, "truncation", {"auto", "disabled"}) == "auto")
    chat["truncate_prompt_tokens"] = -1;
  if (const Json* reasoning = body.find("reasoning"))
    if (const RequestFields fields(*reasoning, "reasoning"); fields.has("effort"))
      chat["reasoning_effort"] =
          word_at(fields, "effort", {"none", "minimal", "low", "medium", "high", "xhigh"});
  detail::read_response_tools(body, chat);
  detail::read_text_format(body, chat);
  detail::read_response_logprobs(body, chat);
  request.chat = ChatCompletionRequest::parse(chat);
  request.chat.clips_max_tokens = chat.contains("truncate_prompt_tokens");
  if (request.chat.constraint_field == "response_format")
    request.chat.constraint_field = "text.format";
  request.echo = detail::echo_of(body);
  request.echo["store"] = is_stored;
  return request;
}

}  // namespace nanovllm::serve
