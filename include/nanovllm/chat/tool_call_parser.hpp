#pragma once
/// Parts tool calls from what else an assistant's text says.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/chat/chat_event.hpp"
#include "nanovllm/chat/tag_matcher.hpp"
#include "nanovllm/chat/tool_call_format.hpp"
#include "nanovllm/chat/tool_call_reader.hpp"
#include "nanovllm/chat/tool_schemas.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// When the events of a call come.
enum class ToolCallMode : std::uint8_t {
  /// Once it is complete and valid: its tags are closed, its arguments are a JSON object as
  /// `parse_json` takes it, and its function is one of the tools if there are any. What begins as a
  /// call and is none is content, byte for byte.
  whole,
  /// As it comes, the name as soon as it is known; for calls that are held to the format. The
  /// events of one that is cut off or malformed have no `tool_call_end`, and what they do not stand
  /// for is content.
  incremental,
};

/// Takes a text piece by piece and gives content and tool calls as ChatEvents, neighbours of one
/// kind and call as one. Bytes that the next ones may make part of a call are held back: a tag's
/// beginning, a line feed, white space behind a call. So the events, once neighbours are joined,
/// are the same however the text is split.
///
/// A line feed right before a call, white space between calls, and white space behind the last call
/// where nothing else follows, are dropped: the chat templates write calls so.
class ToolCallParser {
 public:
  /// `tools` as in ChatOptions. Throws RequestError unless they are a list of objects or null.
  explicit ToolCallParser(ToolCallFormat format, Json tools = nullptr,
                          ToolCallMode mode = ToolCallMode::whole);

  /// Appends the events that are certain now. Linear time, in all; memory for what is held back.
  void push(std::string_view text, std::vector<ChatEvent>& out);

  /// Appends what was held back; once, behind the last piece.
  void finish(std::vector<ChatEvent>& out);

 private:
  using Events = std::vector<ChatEvent>;

  void push_text(char c, Events& out);
  void release(Events& out);
  void end_tag();
  void push_call(char c, Events& out);
  void emit_call_parts(Events& out);
  void end_call(Events& out);
  void break_call(Events& out);
  void add(ChatEvent::Kind kind, std::string_view text, Events& out) const;

  ToolCallFormat format_;
  ToolCallMode mode_;
  // Apart, because readers refer to it and a parser can be moved.
  std::unique_ptr<const detail::ToolSchemas> tools_;

  std::string blanks_;           // held back before the tag that may have begun
  detail::TagMatcher tag_;       // a tag that may have begun
  bool is_behind_call_ = false;  // there was nothing but blanks_ since a call
  bool may_close_ = false;       // a </tool_call> may follow, of Qwen3-Coder's form
  int num_calls_ = 0;

  std::unique_ptr<detail::ToolCallReader> reader_;  // of the call that is being read
  std::string call_text_;                           // of it what no event stands for
  bool has_begun_ = false;                          // tool_call_begin was emitted
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/tool_call_parser.inc"
#endif
