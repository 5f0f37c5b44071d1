#pragma once
/// Read one tool call, byte by byte.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/chat/json_scanner.hpp"
#include "nanovllm/chat/tag_matcher.hpp"
#include "nanovllm/chat/tool_schemas.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm::detail {

inline constexpr std::string_view kToolCallBegin = "<tool_call>", kToolCallEnd = "</tool_call>",
                                  kFunctionBegin = "<function=", kFunctionEnd = "</function>",
                                  kParameterBegin = "<parameter=", kParameterEnd = "</parameter>";

/// Reads a call after the tag that begins it. Each byte is looked at once, and the first byte that
/// no call can continue with is reported at once.
class ToolCallReader {
 public:
  enum class Status : std::uint8_t { open, complete, malformed };

  virtual ~ToolCallReader() = default;

  /// Takes the next byte; none after the call's end.
  [[nodiscard]] virtual Status push(char c) = 0;

  /// The name of the function; empty until it is known, and then what it is for good.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// The arguments that came since this was last called. All of them, one after the other, are one
  /// JSON object if the call is complete.
  [[nodiscard]] std::string take_arguments() { return std::exchange(arguments_, {}); }

  /// How many of the bytes that came last neither name() nor the arguments stand for, while the
  /// name is known.
  [[nodiscard]] std::size_t num_unread() const { return num_unread_; }

  /// Of a malformed call: how many of the bytes that came last may be the beginning of something
  /// else, at least 1.
  [[nodiscard]] std::size_t num_given_back() const { return tag_.text().size() + 1; }

 protected:
  std::string name_, arguments_;
  std::size_t num_unread_ = 0;
  TagMatcher tag_;
};

/// {"name": …, "arguments": {…}} and </tool_call>. The members may come in any order, "arguments"
/// may be called "parameters" and may be a string that holds an object; where there are none or
/// null they are {}. Other members are read and dropped.
class HermesCallReader : public ToolCallReader {
 public:
  Status push(char c) override;

 private:
  enum class State : std::uint8_t {
    begin,
    first_key,
    next_key,
    key,
    colon,
    value_begin,
    value,
    behind_value,
    behind_object
  };
  enum class Member : std::uint8_t { name, arguments, other };

  Status go(State state) {
    state_ = state;
    return Status::open;
  }
  Status begin_key(char c);
  Status end_key();
  Status begin_value(char c);
  Status push_value(char c);
  bool end_value();
  Status push_behind_value(char c);
  Status end_object();

  State state_ = State::begin;
  Member member_ = Member::other;
  bool has_arguments_ = false;
  bool is_object_ = false;  // of the arguments' value
  JsonScanner scanner_;     // of the key or the value
  std::string text_;        // it, as far as it is needed as a whole
};

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

[[nodiscard]] bool is_json(std::string_view text);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <optional>
#include <span>

namespace nanovllm::detail {

/// The text that a JSON string stands for; nothing where it is not UTF-8 or has a lone surrogate.
NANOVLLM_INLINE std::optional<std::string> unquoted(std::string_view json) {
  try {
    return parse_json_value(json).string();
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

NANOVLLM_INLINE bool is_json(std::string_view text) {
  try {
    static_cast<void>(parse_json_value(text));
    return true;
  } catch (const JsonError&) {
    return false;
  }
}

/// Appends to the inside of a JSON string.
NANOVLLM_INLINE void append_escaped(std::string& out, std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  out += std::string_view(quoted).substr(1, quoted.size() - 2);
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::push(char c) {
  ++num_unread_;
  switch (state_) {
    case State::key: {
      text_ += c;
      const auto status = scanner_.push(c);
      if (status == JsonScanner::Status::complete) return end_key();
      return status == JsonScanner::Status::open ? Status::open : Status::malformed;
    }
    case State::value: return push_value(c);
    case State::behind_object:
      if (tag_.empty() && is_blank(c)) return Status::open;
      switch (tag_.push(c, std::span(&kToolCallEnd, 1))) {
        case TagMatcher::Status::partial: return Status::open;
        case TagMatcher::Status::complete: return Status::complete;
        case TagMatcher::Status::mismatch: return Status::malformed;
      }
      break;
    default: break;
  }
  if (is_blank(c)) return Status::open;
  switch (state_) {
    case State::begin: return c == '{' ? go(State::first_key) : Status::malformed;
    case State::first_key: return c == '}' ? end_object() : begin_key(c);
    case State::next_key: return begin_key(c);
    case State::colon: return c == ':' ? go(State::value_begin) : Status::malformed;
    case State::value_begin: return begin_value(c);
    default: return push_behind_value(c);
  }
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::begin_key(char c) {
  if (c != '"') return Status::malformed;
  text_ = c;
  scanner_ = {};
  static_cast<void>(scanner_.push(c));
  return go(State::key);
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::end_key() {
  const std::optional<std::string> key = unquoted(text_);
  if (!key) return Status::malformed;
  if (*key == "name") {
    member_ = Member::name;
    if (!name_.empty()) return Status::malformed;
  } else if (*key == "arguments" || *key == "parameters") {
    member_ = Member::arguments;
    if (std::exchange(has_arguments_, true)) return Status::malformed;
  } else {
    member_ = Member::other;
  }
  return go(State::colon);
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::begin_value(char c) {
  if (member_ == Member::name && c != '"') return Status::malformed;
  if (member_ == Member::arguments && c != '{' && c != '"' && c != 'n') return Status::malformed;
  is_object_ = c == '{';
  text_.clear();
  scanner_ = {};
  state_ = State::value;
  return push_value(c);
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::push_value(char c) {
  const auto status = scanner_.push(c);
  if (status == JsonScanner::Status::malformed) return Status::malformed;
  if (status == JsonScanner::Status::complete_before)
    return end_value() ? push_behind_value(c) : Status::malformed;
  if (member_ == Member::arguments && is_object_) {
    arguments_ += c;
    if (!name_.empty()) num_unread_ = 0;
  } else {
    text_ += c;
  }
  if (status == JsonScanner::Status::open) return Status::open;
  return end_value() ? go(State::behind_value) : Status::malformed;
}

/// Takes the value of which text_ is the whole. Returns whether it is what it must be.
NANOVLLM_INLINE bool HermesCallReader::end_value() {
  if (member_ == Member::other) return is_json(text_);
  if (member_ == Member::arguments && is_object_) return true;
  if (member_ == Member::arguments && text_ == "null") {
    arguments_ = "{}";
  } else {
    const std::optional<std::string> text = unquoted(text_);
    if (!text || text->empty()) return false;
    if (member_ == Member::name) {
      name_ = *text;
    } else {
      const std::size_t begin = text->find('{');
      if (text->find_first_not_of(" \n\t\r") != begin || !is_json(*text)) return false;
      arguments_ = text->substr(begin, text->rfind('}') + 1 - begin);
    }
  }
  num_unread_ = 0;
  return true;
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::push_behind_value(char c) {
  if (is_blank(c)) return go(State::behind_value);
  if (c == ',') return go(State::next_key);
  return c == '}' ? end_object() : Status::malformed;
}

NANOVLLM_INLINE ToolCallReader::Status HermesCallReader::end_object() {
  if (name_.empty()) return Status::malformed;
  if (!has_arguments_) {
    arguments_ = "{}";
    num_unread_ = 0;
  }
  return go(State::behind_object);
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
