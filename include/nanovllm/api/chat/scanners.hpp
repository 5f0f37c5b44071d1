#pragma once
/// Finds tags in a text that comes byte by byte.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

}  // namespace nanovllm::detail
