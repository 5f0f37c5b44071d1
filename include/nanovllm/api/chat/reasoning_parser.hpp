#pragma once
/// Separates the reasoning at the beginning of an assistant's text from the rest.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/scanners.hpp"

namespace nanovllm {

/// Whether a text has a thought.
enum class Reasoning : std::uint8_t {
  none,      ///< no; "<think>" is text as any other
  optional,  ///< if it begins with "<think>", white space before that allowed
  open,      ///< it begins inside of one, because the prompt ends with "<think>"
};

namespace detail {
inline constexpr std::string_view kThinkBegin = "<think>", kThinkEnd = "</think>";
}  // namespace detail

/// Takes a text piece by piece. The line feeds at both ends of a thought and those after it belong
/// to neither part. A thought that never ends is all there is.
///
/// What a piece's last bytes belong to may depend on the next ones: line feeds in a thought, the
/// beginning of a tag, and white space that "<think>" may follow. They are held back until then, so
/// the two parts are the same however the text is split.
class ReasoningParser {
 public:
  explicit ReasoningParser(Reasoning reasoning)
      : state_(reasoning == Reasoning::none ? State::content : State::begin),
        without_tag_(reasoning == Reasoning::open ? State::thought : State::content) {}

  /// Appends what the text consists of so far. Linear time.
  void push(std::string_view piece, std::string& reasoning, std::string& content) {
    while (!piece.empty()) {
      if (state_ == State::content) {
        content += piece;
        return;
      }
      const char c = piece.front();
      piece.remove_prefix(1);
      switch (state_) {
        case State::begin: push_begin(c, reasoning, content); break;
        case State::thought: push_thought(c, reasoning); break;
        case State::behind_thought:
          if (c == '\n') break;
          content += c;
          [[fallthrough]];
        case State::content: state_ = State::content; break;
      }
    }
  }

  /// What the text has come to. In white space that a thought may follow, nothing is known.
  enum class Part : std::uint8_t { unknown, thought, content };
  [[nodiscard]] Part part() const {
    if (state_ == State::begin) return Part::unknown;
    return state_ == State::thought ? Part::thought : Part::content;
  }

  /// Appends what was held back; once, after the last piece.
  void finish(std::string& reasoning, std::string& content) {
    if (state_ == State::begin) leave_begin(reasoning, content);
    if (state_ == State::thought) release(reasoning);
  }

 private:
  enum class State : std::uint8_t { begin, thought, behind_thought, content };

  void push_begin(char c, std::string& reasoning, std::string& content) {
    begin_ += c;
    if (num_matched_ == 0 && detail::is_blank(c)) return;
    if (c != detail::kThinkBegin[num_matched_]) return leave_begin(reasoning, content);
    if (++num_matched_ < detail::kThinkBegin.size()) return;
    state_ = State::thought;
    begin_.clear();
    num_matched_ = 0;
  }

  void push_thought(char c, std::string& reasoning) {
    if (c == detail::kThinkEnd[num_matched_]) {
      if (++num_matched_ == detail::kThinkEnd.size()) state_ = State::behind_thought;
      return;
    }
    if (num_matched_ > 0) {
      release(reasoning);
      return push_thought(c, reasoning);  // it may begin another tag
    }
    if (c == '\n') {
      if (!is_thought_empty_) ++num_newlines_;
      return;
    }
    release(reasoning);
    reasoning += c;
  }

  void leave_begin(std::string& reasoning, std::string& content) {
    state_ = without_tag_;
    num_matched_ = 0;
    push(std::exchange(begin_, {}), reasoning, content);
  }

  void release(std::string& reasoning) {
    reasoning.append(std::exchange(num_newlines_, 0), '\n');
    reasoning += detail::kThinkEnd.substr(0, std::exchange(num_matched_, 0));
    is_thought_empty_ = false;
  }

  State state_;
  State without_tag_;             // the state of a text that does not begin with "<think>"
  bool is_thought_empty_ = true;  // leading line feeds do not count
  std::size_t num_matched_ = 0;   // bytes of the tag that may have begun
  std::size_t num_newlines_ = 0;  // of a thought, held back before that tag
  std::string begin_;             // what came in State::begin
};

}  // namespace nanovllm
