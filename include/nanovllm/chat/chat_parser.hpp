#pragma once
/// From an assistant's text, as it comes, to thoughts, content and tool calls.

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/chat/chat_event.hpp"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/reasoning_parser.hpp"
#include "nanovllm/chat/tool_call_format.hpp"
#include "nanovllm/chat/tool_call_parser.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

struct ChatParserOptions {
  Reasoning reasoning = Reasoning::none;
  ToolCallFormat tool_call_format = ToolCallFormat::none;
  Json tools = nullptr;  ///< as in ChatOptions; null or empty if not known: any name is taken then
  ToolCallMode mode = ToolCallMode::whole;
};

/// What the answer to a prompt of a native template looks like: whether the prompt begins a thought
/// or holds an empty one, and calls in the form that it asks for where it describes tools. Of a
/// custom template nothing is known: no thoughts, no calls.
[[nodiscard]] ChatParserOptions chat_parser_options(ChatTemplateKind kind,
                                                    const ChatOptions& options);

/// Takes the text of one answer piece by piece, for instance those of an engine's callback. What is
/// in a thought is thought, tool calls included. Law: the events, once neighbours of one kind and
/// call are joined, are the same however the text is split into pieces.
///
/// Linear time, in all; memory for what is held back, see ReasoningParser and ToolCallParser. An
/// event ends inside of a UTF-8 character only where a piece does.
class ChatParser {
 public:
  /// Throws RequestError unless the tools are a list of objects or null.
  explicit ChatParser(ChatParserOptions options);

  /// The events that are certain now; no two neighbours could be joined.
  [[nodiscard]] std::vector<ChatEvent> push(std::string_view piece);

  /// What was held back; once, behind the last piece.
  [[nodiscard]] std::vector<ChatEvent> finish();

  /// Whether what has been pushed ends in a thought, behind one, or neither is known.
  [[nodiscard]] ReasoningParser::Part part() const { return reasoning_.part(); }

 private:
  [[nodiscard]] std::vector<ChatEvent> events(std::string reasoning, std::string_view content);

  ReasoningParser reasoning_;
  ToolCallParser tool_calls_;
};

struct ChatToolCall {
  std::string name{};
  std::string arguments{};  ///< a JSON object
  [[nodiscard]] friend bool operator==(const ChatToolCall&, const ChatToolCall&) = default;
};

/// The parts of an assistant's message.
struct ChatMessageParts {
  std::string reasoning{}, content{};
  std::vector<ChatToolCall> tool_calls{};
  [[nodiscard]] friend bool operator==(const ChatMessageParts&, const ChatMessageParts&) = default;
};

/// The parts of a whole text, with calls that are whole, whatever `options.mode`. Content before,
/// between and behind calls is joined. Throws as ChatParser does.
[[nodiscard]] ChatMessageParts parse_chat_message(std::string_view text, ChatParserOptions options);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/chat_parser.inc"
#endif
