#pragma once
/// Follows a JSON value that comes byte by byte.

#include <bitset>
#include <cstdint>
#include <string_view>

#include "nanovllm/chat/tag_matcher.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// Says at each byte whether a JSON value (RFC 8259) can go on so, and where it ends. Looks at the
/// grammar alone: bytes of strings may be anything but control characters, escaped surrogates may
/// be lone, numbers may be of any size. Nesting is bounded by kMaxJsonDepth. Constant memory.
class JsonScanner {
 public:
  enum class Status : std::uint8_t {
    open,
    complete,         ///< the byte was the value's last
    complete_before,  ///< the value, a number, had ended; the byte is not part of it
    malformed,
  };

  /// Takes the next byte; none behind the end. Blanks before the value are skipped.
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
#include "nanovllm/chat/json_scanner.inc"
#endif
