#pragma once
/// Chat messages as chat templates see them, and what else a template may be told.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// One message of a conversation: a JSON object with a string `role` and whatever else a template
/// looks at, such as `content` (a string, null or a list of parts), `reasoning_content` and
/// `tool_calls`. A field that is absent differs from one that is null, as it does in Jinja.
class ChatMessage {
 public:
  /// {"role": role, "content": content}; `content` is mostly a string.
  ChatMessage(std::string role, Json content) {
    fields_["role"] = std::move(role);
    fields_["content"] = std::move(content);
  }

  /// Takes a whole message. Throws RequestError unless it is an object with a string `role`.
  [[nodiscard]] static ChatMessage from_json(Json fields);

  /// Sets a further field, `reasoning_content` or `tool_calls` for instance.
  ChatMessage& set(const std::string& name, Json value);

  /// The value of a field, or nullptr where it is absent.
  [[nodiscard]] const Json* find(std::string_view name) const { return fields_.find(name); }

  [[nodiscard]] const std::string& role() const { return fields_["role"].string(); }
  [[nodiscard]] const Json& fields() const { return fields_; }

 private:
  explicit ChatMessage(Json&& fields) : fields_(std::move(fields)) {}

  Json fields_ = Json::object();
};

/// What a chat template gets in addition to the messages.
struct ChatOptions {
  Json tools = nullptr;      ///< a list of tool descriptions; null or empty for none
  Json documents = nullptr;  ///< a list of texts to answer from, for templates that show them
  std::optional<bool> enable_thinking = std::nullopt;  ///< false asks a hybrid model not to think
  Json template_kwargs = Json::object();  ///< further variables of the template, by name
  bool add_generation_prompt = true;      ///< end with the head of the assistant's next message
  /// End within the last message, which must be the assistant's and without tool calls, so that the
  /// model continues it. No other message begins then, whatever `add_generation_prompt` says.
  bool continue_final_message = false;
};

/// Reads a list of messages. Throws RequestError naming the message that is malformed.
[[nodiscard]] std::vector<ChatMessage> parse_messages(const Json& list);

/// Reads a list of tools. Throws RequestError unless it is a list of objects, or null.
[[nodiscard]] Json parse_tools(const Json& list);

/// Replaces content that is a list of text parts, as OpenAI's API allows, by the texts joined with
/// newlines, which is what vLLM does. Few templates of models that read text print such content.
/// Throws RequestError for parts that are not text.
void join_text_parts(std::vector<ChatMessage>& messages);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE ChatMessage ChatMessage::from_json(Json fields) {
  check<RequestError>(fields.is_object(), "a message must be an object, got ", fields.type_name());
  const Json* role = fields.find("role");
  check<RequestError>(role != nullptr, "a message must have a 'role'");
  check<RequestError>(role->is_string(), "'role' must be a string, got ", role->type_name());
  return ChatMessage(std::move(fields));
}

NANOVLLM_INLINE ChatMessage& ChatMessage::set(const std::string& name, Json value) {
  check<RequestError>(name != "role" || value.is_string(), "'role' must be a string, got ",
                      value.type_name());
  fields_[name] = std::move(value);
  return *this;
}

NANOVLLM_INLINE std::vector<ChatMessage> parse_messages(const Json& list) {
  check<RequestError>(list.is_array(), "messages must be a list, got ", list.type_name());
  std::vector<ChatMessage> messages;
  messages.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    try {
      messages.push_back(ChatMessage::from_json(list[i]));
    } catch (const RequestError& error) {
      throw RequestError(concat("messages[", i, "]: ", error.what()));
    }
  }
  return messages;
}

NANOVLLM_INLINE Json parse_tools(const Json& list) {
  check<RequestError>(list.is_array() || list.is_null(), "tools must be a list, got ",
                      list.type_name());
  for (std::size_t i = 0; i < list.elements().size(); ++i) {
    check<RequestError>(list[i].is_object(), "tools[", i, "] must be an object, got ",
                        list[i].type_name());
  }
  return list;
}

NANOVLLM_INLINE void join_text_parts(std::vector<ChatMessage>& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json* content = messages[i].find("content");
    if (content == nullptr || !content->is_array()) continue;
    std::string text;
    const char* separator = "";
    for (const Json& part : *content) {
      const Json* type = part.find("type");
      const Json* part_text = part.find("text");
      const bool is_text = type != nullptr && type->is_string() && type->string() == "text" &&
                           part_text != nullptr && part_text->is_string();
      check<RequestError>(is_text, "messages[", i,
                          "]: a content part must be {\"type\": \"text\", ",
                          "\"text\": string}; this engine reads nothing but text");
      (text += separator) += part_text->string();
      separator = "\n";
    }
    messages[i].set("content", std::move(text));
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
