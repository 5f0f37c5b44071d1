#pragma once
/// What an assistant's text consists of: thoughts, content and tool calls.

#include <cstdint>
#include <string>

namespace nanovllm {

/// The next piece of an assistant's message.
struct ChatEvent {
  enum class Kind : std::uint8_t {
    reasoning,            ///< `text` of a thought
    content,              ///< `text` for the user
    tool_call_begin,      ///< a call begins
    tool_call_name,       ///< `text` is the whole name of its function
    tool_call_arguments,  ///< `text` is a piece of its arguments, a JSON object
    tool_call_end,        ///< the arguments are whole
  };
  Kind kind = Kind::content;
  int tool_call = 0;  ///< of calls: which of the message, from 0
  std::string text{};

  [[nodiscard]] friend bool operator==(const ChatEvent&, const ChatEvent&) = default;
};

}  // namespace nanovllm
