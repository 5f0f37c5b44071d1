#pragma once
/// Reads one tool call, byte by byte.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/scanners.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

inline constexpr std::string_view kToolCallBegin = "<tool_call>", kToolCallEnd = "</tool_call>",
                                  kFunctionBegin = "<function=", kFunctionEnd = "</function>",
                                  kParameterBegin = "<parameter=", kParameterEnd = "</parameter>";

/// Reads a call after the tag that begins it. Each byte is looked at once, but for the few that may
/// be a tag, and the first byte that no call can continue with is reported at once.
class ToolCallReader {
 public:
  enum class Status : std::uint8_t { open, complete, malformed };

  virtual ~ToolCallReader() = default;

  /// Takes the next byte; none after the call's end.
  [[nodiscard]] virtual Status push(char c) = 0;

  /// The text ends here by itself. Returns whether the call is complete: nothing but tags that end
  /// it is missing.
  [[nodiscard]] virtual bool finish() = 0;

  /// Of a complete call: the reader of another one that begins between the same tags, with the
  /// bytes of num_given_back(); null where there is none.
  [[nodiscard]] virtual std::unique_ptr<ToolCallReader> next() const { return nullptr; }

  /// The name of the function; empty until it is known, and then what it is for good.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// The arguments that came since this was last called. All of them, one after the other, are one
  /// JSON object if the call is complete.
  [[nodiscard]] std::string take_arguments() { return std::exchange(arguments_, {}); }

  /// How many of the bytes that came last neither name() nor the arguments stand for, while the
  /// name is known; those of num_given_back() among them.
  [[nodiscard]] std::size_t num_unread() const { return num_unread_; }

  /// How many of the bytes that came last are no part of the call, or, of one that is malformed,
  /// may be the beginning of something else.
  [[nodiscard]] std::size_t num_given_back() const { return num_given_back_; }

  /// Of a complete call: whether its "</tool_call>" has come.
  [[nodiscard]] bool is_closed() const { return is_closed_; }

 protected:
  Status break_off() {
    num_given_back_ = tag_.text().size() + 1;
    return Status::malformed;
  }

  std::string name_, arguments_;
  std::size_t num_unread_ = 0, num_given_back_ = 0;
  bool is_closed_ = false;
  TagMatcher tag_;
};

/// Whether `text` is a JSON document as `parse_json` takes it.
[[nodiscard]] inline bool is_json(std::string_view text) {
  try {
    static_cast<void>(parse_json_value(text));
    return true;
  } catch (const JsonError&) {
    return false;
  }
}

}  // namespace nanovllm::detail
