#pragma once
/// Reads one tool call in Hermes' form, byte by byte.

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/scanners.hpp"
#include "nanovllm/api/chat/tool_calls/tool_call_reader.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// Says at each byte whether a JSON value (RFC 8259) can continue so, and where it ends. Looks at
/// the grammar only: bytes of strings may be anything but control characters, escaped surrogates
/// may be lone, numbers may be of any size. Nesting is bounded by kMaxJsonDepth. Constant memory.
class JsonScanner {
 public:
  enum class Status : std::uint8_t {
    open,
    complete,         ///< the byte was the value's last
    complete_before,  ///< the value, a number, had ended; the byte is not part of it
    malformed,
  };

  /// Takes the next byte; none after the end. Blanks before the value are skipped.
  Status push(char c);

 private:
  enum class State : std::uint8_t {
    value,
    first_element,
    first_key,
    key,
    colon,
    next,  // up to here blanks may come
    string,
    escape,
    hex,
    literal,
    minus,
    zero,
    integer,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
  };

  Status go(State state) {
    state_ = state;
    return Status::open;
  }
  Status begin_value(char c);
  Status begin_container(bool is_object);
  Status begin_literal(std::string_view word);
  Status end_value() { return depth_ == 0 ? Status::complete : go(State::next); }
  Status end_container() {
    --depth_;
    return end_value();
  }
  Status push_string(char c);
  Status push_number(char c);

  State state_ = State::value;
  bool is_key_ = false;  // of the string being read
  int num_hex_ = 0;      // digits of \uXXXX that are still to come
  std::string_view literal_;
  int depth_ = 0;
  std::bitset<kMaxJsonDepth> is_object_;  // of the containers being read, outermost first
};

inline JsonScanner::Status JsonScanner::push(char c) {
  if (state_ <= State::next && is_blank(c)) return Status::open;
  switch (state_) {
    case State::value: return begin_value(c);
    case State::first_element: return c == ']' ? end_container() : begin_value(c);
    case State::first_key:
      if (c == '}') return end_container();
      [[fallthrough]];
    case State::key: is_key_ = true; return c == '"' ? go(State::string) : Status::malformed;
    case State::colon: return c == ':' ? go(State::value) : Status::malformed;
    case State::next: {
      const bool is_object = is_object_[static_cast<std::size_t>(depth_ - 1)];
      if (c == ',') return go(is_object ? State::key : State::value);
      return c == (is_object ? '}' : ']') ? end_container() : Status::malformed;
    }
    case State::string:
    case State::escape:
    case State::hex: return push_string(c);
    case State::literal:
      if (c != literal_.front()) return Status::malformed;
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value() : Status::open;
    default: return push_number(c);
  }
}

inline JsonScanner::Status JsonScanner::begin_value(char c) {
  switch (c) {
    case '{': return begin_container(true);
    case '[': return begin_container(false);
    case '"': is_key_ = false; return go(State::string);
    case 't': return begin_literal("rue");
    case 'f': return begin_literal("alse");
    case 'n': return begin_literal("ull");
    case '-': return go(State::minus);
    case '0': return go(State::zero);
    default: return c >= '1' && c <= '9' ? go(State::integer) : Status::malformed;
  }
}

inline JsonScanner::Status JsonScanner::begin_container(bool is_object) {
  if (depth_ == kMaxJsonDepth) return Status::malformed;
  is_object_[static_cast<std::size_t>(depth_++)] = is_object;
  return go(is_object ? State::first_key : State::first_element);
}

inline JsonScanner::Status JsonScanner::begin_literal(std::string_view word) {
  literal_ = word;
  return go(State::literal);
}

inline JsonScanner::Status JsonScanner::push_string(char c) {
  if (state_ == State::string) {
    if (c == '\\') return go(State::escape);
    if (c == '"') return is_key_ ? go(State::colon) : end_value();
    return static_cast<unsigned char>(c) < 0x20 ? Status::malformed : Status::open;
  }
  if (state_ == State::escape) {
    if (c != 'u') {
      const bool is_known = std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
      return is_known ? go(State::string) : Status::malformed;
    }
    num_hex_ = 4;
    return go(State::hex);
  }
  const bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  if (!is_hex) return Status::malformed;
  return --num_hex_ == 0 ? go(State::string) : Status::open;
}

inline JsonScanner::Status JsonScanner::push_number(char c) {
  const bool is_digit = c >= '0' && c <= '9', is_e = c == 'e' || c == 'E';
  switch (state_) {
    case State::minus:
      if (is_digit) return go(c == '0' ? State::zero : State::integer);
      return Status::malformed;
    case State::point: return is_digit ? go(State::fraction) : Status::malformed;
    case State::exponent:
      if (c == '+' || c == '-') return go(State::exponent_sign);
      [[fallthrough]];
    case State::exponent_sign: return is_digit ? go(State::exponent_digits) : Status::malformed;
    case State::integer:
      if (is_digit) return Status::open;
      [[fallthrough]];
    case State::zero:
      if (c == '.') return go(State::point);
      if (is_e) return go(State::exponent);
      break;
    case State::fraction:
      if (is_e) return go(State::exponent);
      [[fallthrough]];
    default:
      if (is_digit) return Status::open;
      break;
  }
  // After a whole number.
  if (depth_ == 0) return Status::complete_before;
  state_ = State::next;
  return push(c);
}

/// {"name": …, "arguments": {…}} and </tool_call>. The members may come in any order, "arguments"
/// may be called "parameters" and may be a string that holds an object; where there are none or
/// null they are {}. Other members are read and dropped.
///
/// Another such object may follow, after a comma or not, or the first begin a list of them; then
/// next() reads it. A call also ends before "<tool_call>", and, outside of a list, with the text.
class HermesCallReader : public ToolCallReader {
 public:
  HermesCallReader() = default;

  Status push(char c) override;
  bool finish() override;
  std::unique_ptr<ToolCallReader> next() const override;

 private:
  enum class State : std::uint8_t {
    begin,
    between,
    first_key,
    next_key,
    key,
    colon,
    value_begin,
    value,
    behind_value,
    behind_object,
    behind_comma,
    behind_list
  };
  enum class Member : std::uint8_t { name, arguments, other };

  /// Of a call after another one.
  explicit HermesCallReader(bool is_in_list) : state_(State::between), is_in_list_(is_in_list) {}

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
  Status push_behind_object(char c);

  State state_ = State::begin;
  bool is_in_list_ = false;
  std::size_t num_behind_ = 0;  // bytes after the object
  Member member_ = Member::other;
  bool has_arguments_ = false;
  bool is_object_ = false;  // of the arguments' value
  JsonScanner scanner_;     // of the key or the value
  std::string text_;        // it, as far as it is needed as a whole
};

/// The text that a JSON string stands for; nothing where it is not UTF-8 or has a lone surrogate.
inline std::optional<std::string> unquoted(std::string_view json) {
  try {
    return parse_json_value(json).string();
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

inline ToolCallReader::Status HermesCallReader::push(char c) {
  ++num_unread_;
  switch (state_) {
    case State::key: {
      text_ += c;
      const auto status = scanner_.push(c);
      if (status == JsonScanner::Status::complete) return end_key();
      return status == JsonScanner::Status::open ? Status::open : break_off();
    }
    case State::value: return push_value(c);
    case State::behind_object:
    case State::behind_comma:
    case State::behind_list: return push_behind_object(c);
    default: break;
  }
  if (is_blank(c)) return Status::open;
  switch (state_) {
    case State::begin:
      if (c == '[' && !std::exchange(is_in_list_, true)) return Status::open;
      return c == '{' ? go(State::first_key) : break_off();
    case State::between:
      if (c == ',') return Status::open;
      return c == '{' ? go(State::first_key) : break_off();
    case State::first_key: return c == '}' ? end_object() : begin_key(c);
    case State::next_key: return begin_key(c);
    case State::colon: return c == ':' ? go(State::value_begin) : break_off();
    case State::value_begin: return begin_value(c);
    default: return push_behind_value(c);
  }
}

inline ToolCallReader::Status HermesCallReader::begin_key(char c) {
  if (c != '"') return break_off();
  text_ = c;
  scanner_ = {};
  static_cast<void>(scanner_.push(c));
  return go(State::key);
}

inline ToolCallReader::Status HermesCallReader::end_key() {
  const std::optional<std::string> key = unquoted(text_);
  if (!key) return break_off();
  if (*key == "name") {
    member_ = Member::name;
    if (!name_.empty()) return break_off();
  } else if (*key == "arguments" || *key == "parameters") {
    member_ = Member::arguments;
    if (std::exchange(has_arguments_, true)) return break_off();
  } else {
    member_ = Member::other;
  }
  return go(State::colon);
}

inline ToolCallReader::Status HermesCallReader::begin_value(char c) {
  if (member_ == Member::name && c != '"') return break_off();
  if (member_ == Member::arguments && c != '{' && c != '"' && c != 'n') return break_off();
  is_object_ = c == '{';
  text_.clear();
  scanner_ = {};
  state_ = State::value;
  return push_value(c);
}

inline ToolCallReader::Status HermesCallReader::push_value(char c) {
  const auto status = scanner_.push(c);
  if (status == JsonScanner::Status::malformed) return break_off();
  if (status == JsonScanner::Status::complete_before)
    return end_value() ? push_behind_value(c) : break_off();
  if (member_ == Member::arguments && is_object_) {
    arguments_ += c;
    if (!name_.empty()) num_unread_ = 0;
  } else {
    text_ += c;
  }
  if (status == JsonScanner::Status::open) return Status::open;
  return end_value() ? go(State::behind_value) : break_off();
}

/// Takes the value of which text_ is the whole. Returns whether it is what it must be.
inline bool HermesCallReader::end_value() {
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

inline ToolCallReader::Status HermesCallReader::push_behind_value(char c) {
  if (is_blank(c)) return go(State::behind_value);
  if (c == ',') return go(State::next_key);
  return c == '}' ? end_object() : break_off();
}

inline ToolCallReader::Status HermesCallReader::end_object() {
  if (name_.empty()) return break_off();
  if (!has_arguments_) {
    arguments_ = "{}";
    num_unread_ = 0;
  }
  return go(State::behind_object);
}

/// After the object come the end of the list, the end tag, or another call.
inline ToolCallReader::Status HermesCallReader::push_behind_object(char c) {
  ++num_behind_;
  if (tag_.empty()) {
    if (is_blank(c)) return Status::open;
    if (c == '{' && state_ != State::behind_list) {
      num_given_back_ = num_behind_;
      return Status::complete;
    }
    if (c == ',' && state_ == State::behind_object) return go(State::behind_comma);
    if (c == ']' && is_in_list_ && state_ == State::behind_object) {
      is_in_list_ = false;
      return go(State::behind_list);
    }
  }
  if (is_in_list_ || state_ == State::behind_comma) return break_off();
  constexpr std::string_view kTags[] = {kToolCallEnd, kToolCallBegin};
  switch (tag_.push(c, kTags)) {
    case TagMatcher::Status::partial: return Status::open;
    case TagMatcher::Status::complete: break;
    case TagMatcher::Status::mismatch: return break_off();
  }
  is_closed_ = tag_.text() == kToolCallEnd;
  if (!is_closed_) num_given_back_ = num_behind_;
  return Status::complete;
}

inline bool HermesCallReader::finish() {
  return (state_ == State::behind_object || state_ == State::behind_list) && !is_in_list_ &&
         kToolCallEnd.starts_with(tag_.text());
}

inline std::unique_ptr<ToolCallReader> HermesCallReader::next() const {
  if (num_given_back_ == 0 || !tag_.empty()) return nullptr;
  return std::unique_ptr<ToolCallReader>(new HermesCallReader(is_in_list_));
}

}  // namespace nanovllm::detail
