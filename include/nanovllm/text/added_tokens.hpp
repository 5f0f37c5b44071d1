#pragma once
/// Tokens that are found in the text before anything else looks at it: `<|im_end|>`, `<think>`, …

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/text/check_stop.hpp"
#include "nanovllm/text/unicode.hpp"

namespace nanovllm {

/// One entry of tokenizer.json's "added_tokens".
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  ///< not where a word character stands directly before or after
  bool lstrip = false;       ///< swallows the white space before
  bool rstrip = false;       ///< swallows the white space after
  bool normalized = false;   ///< is searched, normalised, in the normalised text
  bool special = false;      ///< is left out of decoded text on request
};

/// Finds a set of added tokens in text: leftmost first, of those the longest, without overlap.
/// Immutable and thread-safe. The time is linear in the text, times the longest token at worst.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;

  /// Throws LoadError when a content is empty. Of two equal contents the first counts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    sort_stably(tokens_, [](const auto& a, const auto& b) { return a.content < b.content; });
    for (const AddedToken& token : tokens_) {
      check<LoadError>(!token.content.empty(), "added token ", token.id, " has no content");
      starts_[static_cast<unsigned char>(token.content[0])] = true;
    }
    if (std::count(starts_.begin(), starts_.end(), true) == 1) only_start_ = tokens_[0].content[0];
  }

  /// Cuts `text`, valid UTF-8, at the tokens. Calls, from left to right, `found(id)` for each token
  /// and `between(std::string_view)` for each non-empty stretch of other text. Throws Cancelled if
  /// a stop is requested meanwhile.
  template <class Found, class Between>
  void split(std::string_view text, Found&& found, Between&& between,
             const std::stop_token& stop = {}) const {
    std::size_t done = 0;
    for (std::size_t pos = next_start(text, 0); pos < text.size(); pos = next_start(text, pos)) {
      check_stop(stop);
      const AddedToken* token = longest_at(text, pos);
      if (token == nullptr) {
        ++pos;
        continue;
      }
      std::size_t begin = pos, end = pos + token->content.size();
      pos = end;
      if (token->single_word && touches_word(text, begin, end)) continue;
      if (token->lstrip) begin = std::max(done, strip_before(text, begin));
      if (token->rstrip) end = strip_after(text, end);
      if (done < begin) between(text.substr(done, begin - done));
      found(token->id);
      done = end;  // as the reference has it, even if less than an earlier token swallowed
    }
    if (done < text.size()) between(text.substr(done));
  }

 private:
  /// First position ≥ pos where a token may begin.
  [[nodiscard]] std::size_t next_start(std::string_view text, std::size_t pos) const {
    if (tokens_.empty() || pos >= text.size()) return text.size();
    if (only_start_ >= 0) {
      const void* hit = std::memchr(text.data() + pos, only_start_, text.size() - pos);
      return hit ? static_cast<const char*>(hit) - text.data() : text.size();
    }
    while (pos < text.size() && !starts_[static_cast<unsigned char>(text[pos])]) ++pos;
    return pos;
  }

  /// The longest token that begins at `pos`, or null. The sorted list serves as a trie: each byte
  /// narrows the range of contents that agree with the text so far.
  [[nodiscard]] const AddedToken* longest_at(std::string_view text, std::size_t pos) const {
    const AddedToken* best = nullptr;
    auto first = tokens_.begin(), last = tokens_.end();
    for (std::size_t depth = 0; pos + depth < text.size() && first != last; ++depth) {
      const auto byte = static_cast<unsigned char>(text[pos + depth]);
      const auto at_depth = [depth](
                                const AddedToken& token) {  // a content that has ended sorts first
        return depth < token.content.size() ? static_cast<unsigned char>(token.content[depth]) : -1;
      };
      first = std::partition_point(first, last, [&](const auto& t) { return at_depth(t) < byte; });
      last = std::partition_point(first, last, [&](const auto& t) { return at_depth(t) == byte; });
      if (first != last && first->content.size() == depth + 1) best = &*first;
    }
    return best;
  }

  static bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
    const auto word_at = [&](std::size_t i) {
      return unicode::is_word(utf8::decode(text, i).code_point);
    };
    return (begin > 0 && word_at(utf8::previous(text, begin))) ||
           (end < text.size() && word_at(end));
  }

  static std::size_t strip_before(std::string_view text, std::size_t pos) {
    while (pos > 0) {
      const std::size_t before = utf8::previous(text, pos);
      if (!unicode::is_white_space(utf8::decode(text, before).code_point)) break;
      pos = before;
    }
    return pos;
  }

  static std::size_t strip_after(std::string_view text, std::size_t pos) {
    while (pos < text.size()) {
      const utf8::Char c = utf8::decode(text, pos);
      if (!unicode::is_white_space(c.code_point)) break;
      pos += c.size;
    }
    return pos;
  }

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> starts_{};  // the bytes that tokens begin with
  int only_start_ = -1;             // that byte, if it is only one
};

}  // namespace nanovllm
