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

/// Reads a call from behind the tag that begins it. Each byte is looked at once, and the first one
/// with which no call can go on is known as such.
class ToolCallReader {
 public:
  enum class Status : std::uint8_t { open, complete, malformed };

  virtual ~ToolCallReader() = default;

  /// Takes the next byte; none behind the call's end.
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

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES
#include "nanovllm/chat/tool_call_reader.inc"
#endif
