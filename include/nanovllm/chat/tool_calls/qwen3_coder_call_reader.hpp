#pragma once
/// Reads one tool call in Qwen3-Coder's form, byte by byte.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "nanovllm/chat/tool_calls/tool_call_reader.hpp"
#include "nanovllm/chat/tool_calls/tool_schemas.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm::detail {

/// <function=…>, parameters and </function>. A value that may be nothing but a string comes as it
/// is read, others when they are whole.
class Qwen3CoderCallReader : public ToolCallReader {
 public:
  /// `tools` outlives the reader. `first_tag` is the one that was read, kToolCallBegin or
  /// kFunctionBegin.
  Qwen3CoderCallReader(const ToolSchemas& tools, std::string_view first_tag)
      : tools_(tools), state_(first_tag == kToolCallBegin ? State::begin : State::function_name) {}

  Status push(char c) override;

 private:
  enum class State : std::uint8_t {
    begin,
    function_name,
    between,
    parameter_name,
    value_begin,
    value
  };

  Status go(State state) {
    state_ = state;
    tag_.clear();
    return Status::open;
  }
  Status push_name(char c);
  Status push_between(char c);
  Status begin_parameter();
  Status push_value(char c);
  void append_to_value(std::string_view text);
  Status end_parameter();
  Status end_function();

  const ToolSchemas& tools_;
  State state_;
  std::string text_;                  // the name or the value that is being read
  std::set<std::string> parameters_;  // those that came
  unsigned types_ = 0;                // JsonTypes of the value
  bool has_newline_ = false;  // one held back in a value, before the tag that may have begun
};

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <span>
#include <utility>

#include "nanovllm/chat/tag_matcher.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// Appends to the inside of a JSON string.
NANOVLLM_INLINE void append_escaped(std::string& out, std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  out += std::string_view(quoted).substr(1, quoted.size() - 2);
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::push(char c) {
  ++num_unread_;
  switch (state_) {
    case State::begin:
    case State::between: return push_between(c);
    case State::function_name:
    case State::parameter_name: return push_name(c);
    case State::value_begin:
      state_ = State::value;
      if (c == '\n') return Status::open;
      break;
    case State::value: break;
  }
  return push_value(c);
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::push_name(char c) {
  if (c == '<' || c == '\n' || (c == '>' && text_.empty())) return Status::malformed;
  if (c != '>') {
    text_ += c;
    return Status::open;
  }
  if (state_ == State::parameter_name) return begin_parameter();
  name_ = std::exchange(text_, {});
  num_unread_ = 0;
  return go(State::between);
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::push_between(char c) {
  if (tag_.empty() && is_blank(c)) return Status::open;
  constexpr std::string_view kBegin[] = {kFunctionBegin}, kNext[] = {kParameterBegin, kFunctionEnd};
  const auto status = state_ == State::begin ? tag_.push(c, kBegin) : tag_.push(c, kNext);
  if (status == TagMatcher::Status::mismatch) return Status::malformed;
  if (status == TagMatcher::Status::partial) return Status::open;
  if (tag_.text() == kFunctionBegin) return go(State::function_name);
  return tag_.text() == kParameterBegin ? go(State::parameter_name) : end_function();
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::begin_parameter() {
  const auto [parameter, is_new] = parameters_.insert(std::exchange(text_, {}));
  if (!is_new) return Status::malformed;
  types_ = tools_.types_of(name_, *parameter);
  arguments_ += parameters_.size() == 1 ? "{" : ", ";
  append_json_string(arguments_, *parameter);
  arguments_ += ": ";
  if (types_ == JsonTypes::string) arguments_ += '"';
  num_unread_ = 0;
  return go(State::value_begin);
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::push_value(char c) {
  switch (tag_.push(c, std::span(&kParameterEnd, 1))) {
    case TagMatcher::Status::partial: return Status::open;
    case TagMatcher::Status::complete: return end_parameter();
    case TagMatcher::Status::mismatch: break;
  }
  if (!tag_.empty() || has_newline_) {
    append_to_value(has_newline_ ? "\n" : "");
    append_to_value(tag_.text());
    has_newline_ = false;
    tag_.clear();
    if (types_ == JsonTypes::string) num_unread_ = 1;
    if (c == '<') return push_value(c);
  }
  has_newline_ = c == '\n';
  if (!has_newline_) append_to_value(std::string_view(&c, 1));
  if (types_ == JsonTypes::string) num_unread_ = has_newline_;
  return Status::open;
}

NANOVLLM_INLINE void Qwen3CoderCallReader::append_to_value(std::string_view text) {
  if (types_ == JsonTypes::string)
    append_escaped(arguments_, text);
  else
    text_ += text;
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::end_parameter() {
  if (types_ == JsonTypes::string)
    arguments_ += '"';
  else
    arguments_ += json_of_bare_value(std::exchange(text_, {}), types_);
  has_newline_ = false;
  num_unread_ = 0;
  return go(State::between);
}

NANOVLLM_INLINE ToolCallReader::Status Qwen3CoderCallReader::end_function() {
  arguments_ += parameters_.empty() ? "{}" : "}";
  num_unread_ = 0;
  return Status::complete;
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
