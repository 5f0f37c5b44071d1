#pragma once
/// Finds tags, and JSON values, in a text that comes byte by byte.

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// White space as JSON has it.
[[nodiscard]] constexpr bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/// What has come of a tag. Tags have a '<' at their beginning and nowhere else, so one that turns
/// out to be none has no other inside it.
class TagMatcher {
 public:
  enum class Status : std::uint8_t {
    partial,   ///< text() begins a tag
    complete,  ///< text() is a tag
    mismatch,  ///< no tag continues so; text() is as before
  };

  Status push(char c, std::span<const std::string_view> tags) {
    if (text_.empty() && c != '<') return Status::mismatch;
    text_ += c;
    for (const std::string_view tag : tags)
      if (tag.starts_with(text_))
        return tag.size() == text_.size() ? Status::complete : Status::partial;
    text_.pop_back();
    return Status::mismatch;
  }

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }
  void clear() { text_.clear(); }

 private:
  std::string text_;
};

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

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

namespace nanovllm::detail {

NANOVLLM_INLINE JsonScanner::Status JsonScanner::push(char c) {
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

NANOVLLM_INLINE JsonScanner::Status JsonScanner::begin_value(char c) {
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

NANOVLLM_INLINE JsonScanner::Status JsonScanner::begin_container(bool is_object) {
  if (depth_ == kMaxJsonDepth) return Status::malformed;
  is_object_[static_cast<std::size_t>(depth_++)] = is_object;
  return go(is_object ? State::first_key : State::first_element);
}

NANOVLLM_INLINE JsonScanner::Status JsonScanner::begin_literal(std::string_view word) {
  literal_ = word;
  return go(State::literal);
}

NANOVLLM_INLINE JsonScanner::Status JsonScanner::push_string(char c) {
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

NANOVLLM_INLINE JsonScanner::Status JsonScanner::push_number(char c) {
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

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
