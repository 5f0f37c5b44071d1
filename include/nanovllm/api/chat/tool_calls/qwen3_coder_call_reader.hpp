#pragma once
/// Reads one tool call in Qwen3-Coder's form, byte by byte.

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/scanners.hpp"
#include "nanovllm/api/chat/tool_calls/tool_call_reader.hpp"
#include "nanovllm/api/chat/tool_calls/tool_schemas.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// <function=…>, parameters and </function>. A value that may be nothing but a string comes as it
/// is read, others when they are whole.
///
/// Tags that end something may be missing. A value also ends
/// - before <parameter=NAME>, if the function may have such a parameter and it has not come yet; if
///   not, the call is malformed,
/// - before </function> where </tool_call>, another call or the end of the text follows,
/// - before </tool_call> where another call or the end of the text follows,
/// each at the beginning of a line, perhaps indented, or, if the value began after its tag without
/// a line feed, anywhere. After a value the call ends with </function>, with </tool_call>, before
/// another call, and with the text.
class Qwen3CoderCallReader : public ToolCallReader {
 public:
  /// `tools` outlives the reader. `first_tag` is the one that was read, kToolCallBegin or
  /// kFunctionBegin.
  Qwen3CoderCallReader(const ToolSchemas& tools, std::string_view first_tag)
      : tools_(tools),
        is_tagged_(first_tag == kToolCallBegin),
        state_(is_tagged_ ? State::begin : State::function_name) {}

  Status push(char c) override;
  bool finish() override;

 private:
  enum class State : std::uint8_t {
    begin,
    function_name,
    between,
    parameter_name,
    value_begin,
    value,
    // After what may be a tag that ends the value:
    next_parameter_name,
    behind_function_end,
    behind_call_end
  };

  Status go(State state) {
    state_ = state;
    tag_.clear();
    num_blanks_ = 0;
    return Status::open;
  }
  Status push_name(char c);
  Status push_between(char c);
  Status begin_parameter();
  Status push_in_value(char c);
  Status push_value(char c);
  Status push_next_name(char c);
  Status push_behind_end(char c);
  Status end_value_with_tag();
  void read_again(char c);
  void append_to_value(std::string_view text);
  void release_held();
  void end_value();
  Status end_function(std::size_t num_given_back);
  [[nodiscard]] bool may_end_unclosed() const { return is_tagged_ || !parameters_.empty(); }

  const ToolSchemas& tools_;
  const bool is_tagged_;
  State state_;
  std::size_t num_blanks_ = 0;        // since the last tag
  std::string text_;                  // the name or the value that is being read
  std::set<std::string> parameters_;  // those that came

  // Of the value:
  std::string parameter_;
  bool is_string_ = false;    // it can be nothing else
  bool is_inline_ = false;    // it began without a line feed
  bool may_end_ = false;      // tags but </parameter> count here
  std::string held_;          // what is part of it only if something else follows, without tag_
  std::size_t num_held_ = 0;  // of held_, up to the end of the tag that may end the value
};

/// Appends to the inside of a JSON string.
inline void append_escaped(std::string& out, std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  out += std::string_view(quoted).substr(1, quoted.size() - 2);
}

inline ToolCallReader::Status Qwen3CoderCallReader::push(char c) {
  ++num_unread_;
  switch (state_) {
    case State::begin:
    case State::between: return push_between(c);
    case State::function_name:
    case State::parameter_name: return push_name(c);
    case State::value_begin:
      state_ = State::value;
      is_inline_ = c != '\n';
      may_end_ = true;
      if (!is_inline_) return Status::open;
      break;
    default: break;
  }
  const Status status = push_in_value(c);
  if (is_string_ && state_ >= State::value && status == Status::open)
    num_unread_ = held_.size() + tag_.text().size();
  return status;
}

inline ToolCallReader::Status Qwen3CoderCallReader::push_name(char c) {
  if (c == '<' || c == '\n' || (c == '>' && text_.empty())) return break_off();
  if (c != '>') {
    text_ += c;
    return Status::open;
  }
  if (state_ == State::parameter_name) return begin_parameter();
  name_ = std::exchange(text_, {});
  num_unread_ = 0;
  return go(State::between);
}

inline ToolCallReader::Status Qwen3CoderCallReader::push_between(char c) {
  if (tag_.empty() && is_blank(c)) {
    ++num_blanks_;
    return Status::open;
  }
  constexpr std::string_view kBegin[] = {kFunctionBegin};
  constexpr std::string_view kNext[] = {kParameterBegin, kFunctionEnd, kToolCallEnd, kToolCallBegin,
                                        kFunctionBegin};
  const auto status = state_ == State::begin
                          ? tag_.push(c, kBegin)
                          : tag_.push(c, std::span(kNext).first(may_end_unclosed() ? 5 : 3));
  if (status == TagMatcher::Status::mismatch) return break_off();
  if (status == TagMatcher::Status::partial) return Status::open;
  const std::string_view tag = tag_.text();
  if (state_ == State::begin) return go(State::function_name);
  if (tag == kParameterBegin) return go(State::parameter_name);
  is_closed_ = tag == kToolCallEnd;
  return end_function(tag == kFunctionEnd || is_closed_ ? 0 : num_blanks_ + tag.size());
}

inline ToolCallReader::Status Qwen3CoderCallReader::begin_parameter() {
  const auto [parameter, is_new] = parameters_.insert(std::exchange(text_, {}));
  if (!is_new) return break_off();
  is_string_ = tools_.is_string(name_, *parameter);
  parameter_ = *parameter;
  arguments_ += parameters_.size() == 1 ? "{" : ", ";
  append_json_string(arguments_, *parameter);
  arguments_ += ": ";
  if (is_string_) arguments_ += '"';
  num_unread_ = 0;
  return go(State::value_begin);
}

inline ToolCallReader::Status Qwen3CoderCallReader::push_in_value(char c) {
  switch (state_) {
    case State::next_parameter_name: return push_next_name(c);
    case State::behind_function_end:
    case State::behind_call_end: return push_behind_end(c);
    default: return push_value(c);
  }
}

inline ToolCallReader::Status Qwen3CoderCallReader::push_value(char c) {
  constexpr std::string_view kTags[] = {kParameterEnd, kParameterBegin, kFunctionEnd, kToolCallEnd};
  switch (tag_.push(c, std::span(kTags).first(may_end_ ? 4 : 1))) {
    case TagMatcher::Status::partial: return Status::open;
    case TagMatcher::Status::complete: return end_value_with_tag();
    case TagMatcher::Status::mismatch: break;
  }
  if (!tag_.empty()) {
    release_held();
    return push_value(c);  // it may begin another tag
  }
  const bool is_indentation = may_end_ && !is_inline_ && (c == ' ' || c == '\t');
  if (!is_indentation) release_held();
  if (c == '\n') may_end_ = true;
  if (c == '\n' || is_indentation)
    held_ += c;
  else
    append_to_value(std::string_view(&c, 1));
  return Status::open;
}

/// What was held back is part of the value, the tag that may have begun as well.
inline void Qwen3CoderCallReader::release_held() {
  append_to_value(held_);
  append_to_value(tag_.text());
  held_.clear();
  tag_.clear();
  may_end_ = is_inline_;
}

inline ToolCallReader::Status Qwen3CoderCallReader::end_value_with_tag() {
  const std::string_view tag = tag_.text();
  if (tag == kParameterEnd) {
    if (held_ != "\n") append_to_value(held_);
    end_value();
    return go(State::between);
  }
  state_ = tag == kParameterBegin ? State::next_parameter_name
           : tag == kFunctionEnd  ? State::behind_function_end
                                  : State::behind_call_end;
  held_ += tag;
  num_held_ = held_.size();
  tag_.clear();
  return Status::open;
}

inline ToolCallReader::Status Qwen3CoderCallReader::push_next_name(char c) {
  const bool is_empty = held_.size() == num_held_;
  if (c == '<' || c == '\n' || (c == '>' && is_empty)) {
    read_again(c);
    return Status::open;
  }
  if (c != '>') {
    held_ += c;
    return Status::open;
  }
  std::string parameter = held_.substr(num_held_);
  if (parameters_.contains(parameter) || !tools_.may_have(name_, parameter)) return break_off();
  end_value();
  text_ = std::move(parameter);
  return begin_parameter();
}

inline ToolCallReader::Status Qwen3CoderCallReader::push_behind_end(char c) {
  if (tag_.empty() && is_blank(c)) {
    held_ += c;
    return Status::open;
  }
  constexpr std::string_view kTags[] = {kToolCallBegin, kFunctionBegin, kToolCallEnd};
  const bool is_function_end = state_ == State::behind_function_end;
  switch (tag_.push(c, std::span(kTags).first(is_function_end ? 3 : 2))) {
    case TagMatcher::Status::partial: return Status::open;
    case TagMatcher::Status::mismatch: read_again(c); return Status::open;
    case TagMatcher::Status::complete: break;
  }
  const bool ends = tag_.text() == kToolCallEnd;
  is_closed_ = ends || !is_function_end;
  const std::size_t num_behind = ends ? 0 : held_.size() - num_held_ + tag_.text().size();
  end_value();
  return end_function(num_behind);
}

/// What was held back up to the end of a tag is part of the value. What came after that, and c,
/// may hold another tag.
inline void Qwen3CoderCallReader::read_again(char c) {
  const std::string rest = held_.substr(num_held_) + tag_.text() + c;
  held_.resize(num_held_);
  tag_.clear();
  release_held();
  state_ = State::value;
  // None is whole in it: what has matched a tag so far does not match one of a value to its end.
  for (const char again : rest) static_cast<void>(push_value(again));
}

inline void Qwen3CoderCallReader::append_to_value(std::string_view text) {
  if (is_string_)
    append_escaped(arguments_, text);
  else
    text_ += text;
}

inline void Qwen3CoderCallReader::end_value() {
  if (is_string_)
    arguments_ += '"';
  else
    arguments_ += tools_.json_of(name_, parameter_, std::exchange(text_, {}));
  held_.clear();
  num_unread_ = 0;
}

inline ToolCallReader::Status Qwen3CoderCallReader::end_function(std::size_t num_given_back) {
  arguments_ += parameters_.empty() ? "{}" : "}";
  num_unread_ = num_given_back_ = num_given_back;
  return Status::complete;
}

inline bool Qwen3CoderCallReader::finish() {
  if (!kFunctionEnd.starts_with(tag_.text()) && !kToolCallEnd.starts_with(tag_.text()))
    return false;
  const bool is_between = state_ == State::between && may_end_unclosed();
  const bool is_behind_end =
      state_ == State::behind_function_end || state_ == State::behind_call_end;
  if (is_behind_end) end_value();
  if (is_between || is_behind_end) static_cast<void>(end_function(0));
  return is_between || is_behind_end;
}

}  // namespace nanovllm::detail
