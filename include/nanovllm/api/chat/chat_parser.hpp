#pragma once
/// From an assistant's text, as it comes, to thoughts, content and tool calls.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/api/chat/reasoning_parser.hpp"
#include "nanovllm/api/chat/tool_call_parser.hpp"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

struct ChatParserOptions {
  Reasoning reasoning = Reasoning::none;
  ToolCallFormat tool_call_format = ToolCallFormat::none;
  Json tools = nullptr;  ///< as in ChatOptions; null or empty if not known: any name is taken then
  ToolCallMode mode = ToolCallMode::whole;
  /// Content is dropped: of an answer that is held to calls and cut off, it is scraps of tags.
  bool only_calls = false;
};

/// Takes the text of one answer piece by piece, for instance those of an engine's callback. What is
/// in a thought is thought, tool calls included. Law: the events, once neighbours of one kind and
/// call are joined, are the same however the text is split into pieces.
///
/// Linear time, in all; memory for what is held back, see ReasoningParser and ToolCallParser. An
/// event ends inside of a UTF-8 character only where a piece does.
class ChatParser {
 public:
  /// Throws RequestError unless the tools are a list of objects or null.
  explicit ChatParser(ChatParserOptions options)
      : reasoning_(options.reasoning),
        tool_calls_(options.tool_call_format, std::move(options.tools), options.mode),
        only_calls_(options.only_calls) {}

  /// The events that are certain now; no two neighbours could be joined.
  [[nodiscard]] std::vector<ChatEvent> push(std::string_view piece) {
    std::string reasoning, content;
    reasoning_.push(piece, reasoning, content);
    return events(std::move(reasoning), content);
  }

  /// What was held back; once, after the last piece. A text that ended by itself, with
  /// FinishReason::stop, may lack the tags at the end of its last call.
  [[nodiscard]] std::vector<ChatEvent> finish(FinishReason reason = FinishReason::stop) {
    std::string reasoning, content;
    reasoning_.finish(reasoning, content);
    std::vector<ChatEvent> out = events(std::move(reasoning), content);
    tool_calls_.finish(out, reason == FinishReason::stop);
    drop_content(out);
    return out;
  }

  /// Whether what has been pushed ends in reasoning, after it, or neither is known.
  [[nodiscard]] ReasoningParser::Part part() const { return reasoning_.part(); }

 private:
  [[nodiscard]] std::vector<ChatEvent> events(std::string reasoning, std::string_view content) {
    std::vector<ChatEvent> out;
    if (!reasoning.empty()) out.push_back({ChatEvent::Kind::reasoning, 0, std::move(reasoning)});
    tool_calls_.push(content, out);
    drop_content(out);
    return out;
  }
  void drop_content(std::vector<ChatEvent>& events) const {
    if (only_calls_)
      std::erase_if(events, [](const auto& e) { return e.kind == ChatEvent::Kind::content; });
  }

  ReasoningParser reasoning_;
  ToolCallParser tool_calls_;
  bool only_calls_;
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

/// What the answer to a prompt of a template looks like: whether the prompt begins a thought or
/// holds an empty one, and calls in the form that it asks for where it describes tools. Of a custom
/// template nothing is known: no thoughts, no calls.
[[nodiscard]] inline ChatParserOptions chat_parser_options(const ChatTemplate& chat_template,
                                                           const ChatOptions& options) {
  const AnswerForm form = answer_form(chat_template);
  ChatParserOptions out{.tools = options.tools};
  // If the prompt continues a message, the template has handled its reasoning. Without a generation
  // prompt the model writes the head of its message itself, and its thought.
  if (!options.continue_final_message) {
    out.reasoning = form.reasoning_of(options.enable_thinking);
    if (!options.add_generation_prompt && form.reasoning_of({}) != Reasoning::none)
      out.reasoning = Reasoning::optional;
  }
  if (!options.tools.empty()) out.tool_call_format = form.tool_call_format;
  return out;
}

/// The parts of a whole text, with calls that are whole, whatever `options.mode`. Content before,
/// between and after calls is joined. `reason` as in ChatParser::finish. Throws as ChatParser.
[[nodiscard]] inline ChatMessageParts parse_chat_message(std::string_view text,
                                                         ChatParserOptions options,
                                                         FinishReason reason = FinishReason::stop) {
  options.mode = ToolCallMode::whole;
  ChatParser parser(std::move(options));
  ChatMessageParts out;
  const auto add = [&out](const std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) {
      switch (event.kind) {
        case ChatEvent::Kind::reasoning: out.reasoning += event.text; break;
        case ChatEvent::Kind::content: out.content += event.text; break;
        case ChatEvent::Kind::tool_call_begin: out.tool_calls.emplace_back(); break;
        case ChatEvent::Kind::tool_call_name: out.tool_calls.back().name = event.text; break;
        case ChatEvent::Kind::tool_call_arguments:
          out.tool_calls.back().arguments += event.text;
          break;
        case ChatEvent::Kind::tool_call_end: break;
      }
    }
  };
  add(parser.push(text));
  add(parser.finish(reason));
  return out;
}

}  // namespace nanovllm
