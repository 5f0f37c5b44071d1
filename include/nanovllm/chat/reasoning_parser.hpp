#pragma once
/// Parts the thought at the beginning of an assistant's text from what is behind it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// Whether a text has a thought.
enum class Reasoning : std::uint8_t {
  none,      ///< no; "<think>" is text as any other
  optional,  ///< if it begins with "<think>", white space before that allowed
  open,      ///< it begins inside of one, because the prompt ends with "<think>"
};

/// Takes a text piece by piece. The line feeds at both ends of a thought and those behind it belong
/// to neither part. A thought that never ends is all there is.
///
/// What a piece's last bytes belong to may depend on the next ones: line feeds in a thought, the
/// beginning of a tag, and white space that "<think>" may follow. They are held back until then, so
/// the two parts are the same however the text is split.
class ReasoningParser {
 public:
  explicit ReasoningParser(Reasoning reasoning);

  /// Appends what the text consists of so far. Linear time.
  void push(std::string_view piece, std::string& reasoning, std::string& content);

  /// What the text has come to. In white space that a thought may follow, nothing is known.
  enum class Part : std::uint8_t { unknown, thought, content };
  [[nodiscard]] Part part() const {
    if (state_ == State::begin) return Part::unknown;
    return state_ == State::thought ? Part::thought : Part::content;
  }

  /// Appends what was held back; once, behind the last piece.
  void finish(std::string& reasoning, std::string& content);

 private:
  enum class State : std::uint8_t { begin, thought, behind_thought, content };

  void push_begin(char c, std::string& reasoning, std::string& content);
  void push_thought(char c, std::string& reasoning);
  void leave_begin(std::string& reasoning, std::string& content);
  void release(std::string& reasoning);

  State state_;
  State without_tag_;             // the state of a text that does not begin with "<think>"
  bool is_thought_empty_ = true;  // leading line feeds do not count
  std::size_t num_matched_ = 0;   // bytes of the tag that may have begun
  std::size_t num_newlines_ = 0;  // of a thought, held back before that tag
  std::string begin_;             // what came in State::begin
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/reasoning_parser.inc"
#endif
