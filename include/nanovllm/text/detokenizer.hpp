#pragma once
/// The text of a stream of tokens, as far as it is certain.

#include <cstddef>
#include <string>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// Turns tokens into text one by one. A character whose bytes are spread over several tokens comes
/// out whole, with the last of them; all that push() and flush() return, joined, equals
/// `Tokenizer::decode` of all ids. Bytes that cannot become UTF-8 any more come out at once as
/// U+FFFD. At most three bytes are ever held back, and a push takes time in the token's own length
/// only. Keeps the tokenizer's state alive; one thread at a time.
class Detokenizer {
 public:
  explicit Detokenizer(Tokenizer tokenizer, bool skip_special_tokens = true);

  /// The text that `id` completes, possibly none. Ids without token add nothing.
  [[nodiscard]] std::string push(TokenId id);

  /// The text of what is held back, an incomplete character: U+FFFD or nothing. The next push
  /// begins a new stream.
  [[nodiscard]] std::string flush();

 private:
  std::string take(std::size_t size);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <string_view>
#include <utility>

#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

NANOVLLM_INLINE Detokenizer::Detokenizer(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

NANOVLLM_INLINE std::string Detokenizer::push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return {};
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (pending_.empty()) {
    if (utf8::is_ascii(bytes)) return std::string(bytes);  // most tokens
    const std::size_t size = utf8::complete_prefix(bytes);
    if (size < bytes.size()) pending_ = bytes.substr(size);
    std::string text;
    utf8::append_lossy(text, bytes.substr(0, size));
    return text;
  }
  pending_ += bytes;
  return take(utf8::complete_prefix(pending_));
}

NANOVLLM_INLINE std::string Detokenizer::flush() { return take(pending_.size()); }

NANOVLLM_INLINE std::string Detokenizer::take(std::size_t size) {
  std::string text;
  utf8::append_lossy(text, std::string_view(pending_).substr(0, size));
  pending_.erase(0, size);
  return text;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
