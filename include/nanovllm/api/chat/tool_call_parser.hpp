#pragma once
/// Parts tool calls from what else an assistant's text says.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/api/chat/scanners.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

namespace detail {
class ToolCallReader;  // api/chat/tool_calls/tool_call_reader.hpp
class ToolSchemas;     // api/chat/tool_calls/tool_schemas.hpp
}  // namespace detail

/// The next piece of an assistant's message: of a thought, of content or of a tool call.
struct ChatEvent {
  enum class Kind : std::uint8_t {
    reasoning,            ///< `text` of a thought
    content,              ///< `text` for the user
    tool_call_begin,      ///< a call begins
    tool_call_name,       ///< `text` is the whole name of its function
    tool_call_arguments,  ///< `text` is a piece of its arguments, a JSON object
    tool_call_end,        ///< the arguments are whole
  };
  Kind kind = Kind::content;
  int tool_call = 0;  ///< of calls: which of the message, from 0
  std::string text{};

  [[nodiscard]] friend bool operator==(const ChatEvent&, const ChatEvent&) = default;
};

/// When the events of a call come.
enum class ToolCallMode : std::uint8_t {
  /// Once it is complete and valid: its function is one of the tools if there are any, and its
  /// arguments are a JSON object as `parse_json` takes it, of the types in the tool's schema. What
  /// begins as a call and is none is content, byte for byte.
  whole,
  /// As it comes, the name as soon as it is known; for calls that are held to the format and the
  /// schemas, which begin with "<tool_call>". The events of one that is cut off or malformed have
  /// no `tool_call_end`, and what they do not stand for is content.
  incremental,
};

/// Takes a text piece by piece and gives content and tool calls as ChatEvents, neighbours of one
/// kind and call as one. Bytes that the next ones may make part of a call are held back: a tag's
/// beginning, a line feed, white space after a call. So the events, once neighbours are joined,
/// are the same however the text is split.
///
/// Tags that end a call may be missing, see the readers in tool_calls/. A line feed right before a
/// call, white space between calls, and white space after the last call where nothing else
/// follows, are dropped: the chat templates write calls so.
class ToolCallParser {
 public:
  /// `tools` as in ChatOptions. Throws RequestError unless they are a list of objects or null.
  explicit ToolCallParser(ToolCallFormat format, Json tools = nullptr,
                          ToolCallMode mode = ToolCallMode::whole);
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(ToolCallParser&&) noexcept;
  ~ToolCallParser();

  /// Appends the events that are certain now. Linear time, in all; memory for what is held back.
  void push(std::string_view text, std::vector<ChatEvent>& out);

  /// Appends what was held back; once, after the last piece. If the text ended by itself and was
  /// not cut off, a call that lacks nothing but tags at its end is one.
  void finish(std::vector<ChatEvent>& out, bool ended_by_itself = true);

 private:
  using Events = std::vector<ChatEvent>;

  void push_text(char c, Events& out);
  void release(Events& out);
  void end_tag();
  void push_call(char c, Events& out);
  void emit_call_parts(Events& out);
  void end_call(Events& out);
  void break_call(Events& out);
  void add(ChatEvent::Kind kind, std::string_view text, Events& out) const;

  ToolCallFormat format_;
  ToolCallMode mode_;
  // Apart, because readers refer to it and a parser can be moved.
  std::unique_ptr<const detail::ToolSchemas> tools_;

  std::string blanks_;           // held back before the tag that may have begun
  detail::TagMatcher tag_;       // a tag that may have begun
  bool is_behind_call_ = false;  // only blanks_ since a call
  bool may_close_ = false;       // a </tool_call> may follow, of Qwen3-Coder's form
  int num_calls_ = 0;

  std::unique_ptr<detail::ToolCallReader> reader_;  // of the call that is being read
  std::string call_text_;                           // of it what no event stands for
  bool is_streamed_ = false;                        // its events come before its end
  bool has_begun_ = false;                          // tool_call_begin was emitted
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <span>
#include <utility>

#include "nanovllm/api/chat/tool_calls/hermes_call_reader.hpp"
#include "nanovllm/api/chat/tool_calls/qwen3_coder_call_reader.hpp"
#include "nanovllm/api/chat/tool_calls/tool_call_reader.hpp"
#include "nanovllm/api/chat/tool_calls/tool_schemas.hpp"

namespace nanovllm {

NANOVLLM_INLINE ToolCallParser::ToolCallParser(ToolCallFormat format, Json tools, ToolCallMode mode)
    : format_(format),
      mode_(mode),
      tools_(std::make_unique<const detail::ToolSchemas>(std::move(tools))) {}
NANOVLLM_INLINE ToolCallParser::ToolCallParser(ToolCallParser&&) noexcept = default;
NANOVLLM_INLINE ToolCallParser& ToolCallParser::operator=(ToolCallParser&&) noexcept = default;
NANOVLLM_INLINE ToolCallParser::~ToolCallParser() = default;

NANOVLLM_INLINE void ToolCallParser::add(ChatEvent::Kind kind, std::string_view text,
                                         Events& out) const {
  using Kind = ChatEvent::Kind;
  const bool is_content = kind == Kind::content;
  if (text.empty() && (is_content || kind == Kind::tool_call_arguments)) return;
  const int call = is_content ? 0 : num_calls_;
  if (out.empty() || out.back().kind != kind || out.back().tool_call != call)
    out.push_back({kind, call, {}});
  out.back().text += text;
}

NANOVLLM_INLINE void ToolCallParser::push(std::string_view text, Events& out) {
  if (format_ == ToolCallFormat::none) return add(ChatEvent::Kind::content, text, out);
  for (const char c : text) {
    if (reader_)
      push_call(c, out);
    else
      push_text(c, out);
  }
}

NANOVLLM_INLINE void ToolCallParser::push_text(char c, Events& out) {
  using detail::TagMatcher;
  constexpr std::string_view kHermes[] = {detail::kToolCallBegin};
  constexpr std::string_view kCoder[] = {detail::kToolCallBegin, detail::kFunctionBegin,
                                         detail::kToolCallEnd};
  std::span<const std::string_view> tags = kHermes;
  if (format_ == ToolCallFormat::qwen3_coder)
    tags = std::span(kCoder).first(is_behind_call_ && may_close_ ? 3 : 2);
  switch (tag_.push(c, tags)) {
    case TagMatcher::Status::partial: return;
    case TagMatcher::Status::complete: return end_tag();
    case TagMatcher::Status::mismatch: break;
  }
  if (!tag_.empty()) {
    release(out);
    return push_text(c, out);  // it may begin another tag
  }
  if (is_behind_call_ && detail::is_blank(c)) {
    blanks_ += c;
    return;
  }
  release(out);
  if (c == '\n')
    blanks_ = c;
  else
    add(ChatEvent::Kind::content, std::string_view(&c, 1), out);
}

/// What was held back is no part of a call.
NANOVLLM_INLINE void ToolCallParser::release(Events& out) {
  add(ChatEvent::Kind::content, blanks_, out);
  add(ChatEvent::Kind::content, tag_.text(), out);
  blanks_.clear();
  tag_.clear();
  is_behind_call_ = false;
}

NANOVLLM_INLINE void ToolCallParser::end_tag() {
  const std::string tag = tag_.text();
  tag_.clear();
  if (tag == detail::kToolCallEnd) {
    blanks_.clear();
    may_close_ = false;
    return;
  }
  call_text_ = std::exchange(blanks_, {}) + tag;
  is_streamed_ = mode_ == ToolCallMode::incremental && tag == detail::kToolCallBegin;
  has_begun_ = false;
  if (format_ == ToolCallFormat::qwen3_coder)
    reader_ = std::make_unique<detail::Qwen3CoderCallReader>(*tools_, tag);
  else
    reader_ = std::make_unique<detail::HermesCallReader>();
}

NANOVLLM_INLINE void ToolCallParser::push_call(char c, Events& out) {
  using Status = detail::ToolCallReader::Status;
  call_text_ += c;
  const Status status = reader_->push(c);
  if (is_streamed_ && !reader_->name().empty()) emit_call_parts(out);
  if (status == Status::complete) end_call(out);
  if (status == Status::malformed) break_call(out);
}

NANOVLLM_INLINE void ToolCallParser::emit_call_parts(Events& out) {
  if (!std::exchange(has_begun_, true)) {
    add(ChatEvent::Kind::tool_call_begin, {}, out);
    add(ChatEvent::Kind::tool_call_name, reader_->name(), out);
  }
  add(ChatEvent::Kind::tool_call_arguments, reader_->take_arguments(), out);
  call_text_.erase(0, call_text_.size() - reader_->num_unread());
}

/// The call is complete. It is content if it is not valid. What is no part of it may begin another.
NANOVLLM_INLINE void ToolCallParser::end_call(Events& out) {
  const std::unique_ptr<detail::ToolCallReader> reader = std::move(reader_);
  const std::size_t kept = call_text_.size() - reader->num_given_back();
  std::string text = std::exchange(call_text_, {});
  const std::string rest = text.substr(kept);
  text.resize(kept);
  bool is_valid = is_streamed_;
  if (!is_streamed_ && tools_->allows(reader->name())) {
    const auto arguments = tools_->checked(reader->name(), reader->take_arguments());
    is_valid = arguments.has_value();
    if (is_valid) {
      add(ChatEvent::Kind::tool_call_begin, {}, out);
      add(ChatEvent::Kind::tool_call_name, reader->name(), out);
      add(ChatEvent::Kind::tool_call_arguments, *arguments, out);
    }
  }
  if (is_valid)
    add(ChatEvent::Kind::tool_call_end, {}, out);
  else
    add(ChatEvent::Kind::content, text, out);
  num_calls_ += is_valid;
  is_behind_call_ = is_valid;
  may_close_ = !reader->is_closed();
  has_begun_ = false;
  reader_ = reader->next();
  push(rest, out);
}

/// The call is none. Its last bytes may begin another.
NANOVLLM_INLINE void ToolCallParser::break_call(Events& out) {
  const std::size_t kept = call_text_.size() - reader_->num_given_back();
  add(ChatEvent::Kind::content, std::string_view(call_text_).substr(0, kept), out);
  const std::string rest = std::exchange(call_text_, {}).substr(kept);
  reader_.reset();
  if (has_begun_) ++num_calls_;
  is_behind_call_ = false;
  push(rest, out);
}

NANOVLLM_INLINE void ToolCallParser::finish(Events& out, bool ended_by_itself) {
  if (reader_ && ended_by_itself && reader_->finish()) {
    if (is_streamed_) emit_call_parts(out);
    end_call(out);
  } else if (reader_) {
    add(ChatEvent::Kind::content, call_text_, out);
    reader_.reset();
  } else if (!is_behind_call_ || !tag_.empty()) {
    release(out);
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
