#pragma once
/// What bodies of other protocols share that become a chat completion's: the fields that are taken
/// over as they are, and errors in the names of the protocol.

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/generation_fields.hpp"

namespace nanovllm::serve {

/// How a protocol calls a field of chat completions.
struct FieldName {
  std::string_view chat;  ///< a path, or a part of one that begins with '.'
  std::string_view own;
};

/// `error`, of a request that became a chat's, with the protocol's name of the field at fault. The
/// first name that fits is taken.
[[nodiscard]] inline ApiError in_names_of(const RequestError& error,
                                          std::span<const FieldName> names) {
  const ApiError found = ApiError::of(error);
  if (!found.param) return found;
  std::string field = *found.param, message = found.what();
  const auto fits = [&](const FieldName& name) {
    const std::size_t at = field.find(name.chat);
    if (at == field.npos || (at > 0 && name.chat.front() != '.')) return false;
    const std::size_t end = at + name.chat.size();
    return end == field.size() || field[end] == '.' || field[end] == '[';
  };
  const auto name = std::ranges::find_if(names, fits);
  if (name == names.end()) return found;
  field.replace(field.find(name->chat), name->chat.size(), name->own);
  if (message.starts_with(*found.param)) message.replace(0, found.param->size(), field);
  constexpr std::string_view kLimits = "'max_tokens' or 'max_completion_tokens'";
  if (const std::size_t at = message.find(kLimits); at != message.npos)
    message.replace(at, kLimits.size(), "'" + field + "'");
  return {found.status, message, field, found.code};
}

/// Calls `act`. Errors of requests that it throws have the protocol's names.
template <class Act>
auto with_names(std::span<const FieldName> names, Act act) {
  try {
    return act();
  } catch (const RequestError& error) {
    throw in_names_of(error, names);
  }
}

/// Whether such a protocol has the field of SamplingParams of that name, by that name.
[[nodiscard]] inline bool is_shared_field(std::string_view name) {
  constexpr std::array<std::string_view, 5> kOfChats = {"n", "logprobs", "prompt_logprobs",
                                                        "max_tokens", "stop"};
  return is_sampling_field_of(name, true) && std::ranges::find(kOfChats, name) == kOfChats.end();
}

/// Puts the fields into `chat` that a protocol has by the same names: the model, whether the answer
/// is streamed, and vLLM's and OpenAI's fields of sampling and prompts.
inline void copy_shared_fields(const RequestFields& body, Json& chat) {
  const auto copy = [&](std::string_view name) {
    if (const Json* value = body.find(name)) chat[std::string(name)] = *value;
  };
  for (const char* name : {"model", "stream", "cache_salt", "truncate_prompt_tokens",
                           "chat_template_kwargs", "add_special_tokens"})
    copy(name);
  for (const SamplingField& field : kSamplingFields)
    if (is_shared_field(field.name)) copy(field.name);
}

/// The text that `fields` must have.
[[nodiscard]] inline const std::string& text_at(const RequestFields& fields, std::string_view key) {
  return string_at(fields.required(key), fields.path(key));
}

/// The same, one of `words`. `note` is what an error adds to their list.
[[nodiscard]] inline const std::string& word_at(const RequestFields& fields, std::string_view key,
                                                std::initializer_list<std::string_view> words,
                                                std::string_view note = "") {
  const std::string& found = text_at(fields, key);
  if (std::ranges::find(words, found) != words.end()) return found;
  std::string list;
  for (const std::string_view& word : words)
    list += concat(list.empty() ? "" : &word + 1 == words.end() ? " or " : ", ", "'", word, "'");
  wrong_field(fields.path(key), list + std::string(note), found);
}

[[nodiscard]] inline Json text_part(Json text) {
  return Json::object({{"type", "text"}, {"text", std::move(text)}});
}

[[nodiscard]] inline Json chat_message(Json role, Json content) {
  return Json::object({{"role", std::move(role)}, {"content", std::move(content)}});
}

[[nodiscard]] inline Json chat_function(Json function) {
  return Json::object({{"type", "function"}, {"function", std::move(function)}});
}

/// A call in a message of the assistant.
[[nodiscard]] inline Json chat_call(Json id, Json name, Json arguments) {
  return Json::object({{"id", std::move(id)},
                       {"type", "function"},
                       {"function", Json::object({{"name", std::move(name)},
                                                  {"arguments", std::move(arguments)}})}});
}

/// The tools of a chat, from a list of {"type", "name", "description", SCHEMA, "strict"}.
/// @param type    what `type` has to be; it may be absent if that is "custom".
/// @param schema  what the member SCHEMA is called.
[[nodiscard]] inline Json chat_tools(const Json& list, const char* type, const char* schema) {
  Json tools = Json::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RequestFields tool(list[i], element_path("tools", i));
    if (tool.has("type") || type != std::string_view("custom"))
      (void)word_at(tool, "type", {type}, ", as this server has no tools of its own");
    Json function = Json::object({{"name", tool.required("name")}});
    for (const auto& [from, to] : {std::pair{"description", "description"},
                                   std::pair{schema, "parameters"}, std::pair{"strict", "strict"}})
      if (const Json* value = tool.find(from)) function[to] = *value;
    tools.push_back(chat_function(std::move(function)));
  }
  return tools;
}

/// A tool that a chat has to call.
[[nodiscard]] inline Json chosen_tool(const RequestFields& choice) {
  return chat_function(Json::object({{"name", choice.required("name")}}));
}

/// `format`, with the members `type` and `schema`, as a chat's response_format.
[[nodiscard]] inline Json chat_format(const RequestFields& format, const std::string& type) {
  Json out = Json::object({{"type", type}});
  if (type != "json_schema") return out;
  const Json& schema = format.required("schema");
  if (!schema.is_object()) wrong_field(format.path("schema"), "a JSON Schema, an object", schema);
  out[type] = Json::object({{"name", "output"}, {"schema", schema}});
  return out;
}

}  // namespace nanovllm::serve
