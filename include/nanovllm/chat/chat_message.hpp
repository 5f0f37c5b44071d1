#pragma once
/// Chat messages as chat templates see them, and what else a template may be told.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
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

/// What a chat template is told beside the messages.
struct ChatOptions {
  Json tools = nullptr;  ///< a list of tool descriptions; null or empty for none
  std::optional<bool> enable_thinking = std::nullopt;  ///< false asks a hybrid model not to think
  bool add_generation_prompt = true;  ///< end with the head of the assistant's next message
  /// End within the last message, which must be the assistant's and without tool calls, so that the
  /// model goes on with it. No other message begins then, whatever `add_generation_prompt` says.
  bool continue_final_message = false;
};

/// Reads a list of messages. Throws RequestError naming the message that is malformed.
[[nodiscard]] std::vector<ChatMessage> parse_messages(const Json& list);

/// Reads a list of tools. Throws RequestError unless it is a list of objects, or null.
[[nodiscard]] Json parse_tools(const Json& list);

/// Replaces content that is a list of text parts, as OpenAI's API allows, by the texts joined with
/// newlines, which is what vLLM does. The Qwen3 templates themselves print such content as nothing.
/// Throws RequestError for parts that are not text.
void join_text_parts(std::vector<ChatMessage>& messages);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/chat_message.inc"
#endif
