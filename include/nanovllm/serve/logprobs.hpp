#pragma once
/// Log-probabilities as the two calls of the API write them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/output.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/pending_output.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

/// What is written for less, which JSON could not hold if it were minus infinity.
inline constexpr double kLeastLogprob = -9999;

/// The token as a text: its bytes, and U+FFFD for what is not UTF-8 in them by themselves.
[[nodiscard]] std::string token_text(const Tokenizer& tokenizer, TokenId token);

/// One element of a chat's logprobs.content: {"token", "logprob", "bytes", "top_logprobs"} with at
/// most `num_top` of the likeliest.
[[nodiscard]] Json chat_logprobs(const Tokenizer& tokenizer, const TokenLogprobs& token,
                                 std::int32_t num_top);

/// The lists of a completion's logprobs: {"text_offset", "token_logprobs", "tokens",
/// "top_logprobs"}.
class CompletionLogprobs {
 public:
  /// @param offset  characters of the text that come before the first token.
  explicit CompletionLogprobs(std::int64_t offset = 0) : offset_(offset) {}

  void add(const Tokenizer& tokenizer, const TokenLogprobs& token);
  /// A token that has none: the first of a prompt.
  void add_first(const Tokenizer& tokenizer, TokenId token);

  [[nodiscard]] Json to_json() const;
  /// Characters up to the end of the last token.
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  void add(std::string text, Json logprob, Json top);

  std::int64_t offset_;
  Json offsets_ = Json::array(), logprobs_ = Json::array(), tokens_ = Json::array(),
       top_ = Json::array();
};

/// The field `prompt_logprobs` of vLLM's replies: null for tokens without any, else {"ID":
/// {"logprob", "rank", "decoded_token"}, …}; the rank is null for a token that is not among the
/// likeliest.
[[nodiscard]] Json prompt_logprobs_json(const Tokenizer& tokenizer, const PromptLogprobs& prompt);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/logprobs.inc"
#endif
