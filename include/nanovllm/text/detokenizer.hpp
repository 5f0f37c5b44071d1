#pragma once
/// The text of a stream of tokens, as far as it is certain.

#include <string>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// Turns tokens into text one by one. A character whose bytes are spread over several tokens comes
/// out whole, with the last of them; all that push() and flush() return, put together, equals
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
#include "nanovllm/text/detokenizer.inc"
#endif
