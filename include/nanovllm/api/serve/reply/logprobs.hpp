#pragma once
/// Log-probabilities in the forms of chats and completions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "nanovllm/api/serve/reply/pending_output.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

/// The least that is written: JSON has no minus infinity.
inline constexpr double kLeastLogprob = -9999;

/// The bytes of a token as text, with U+FFFD for those that are not valid UTF-8.
[[nodiscard]] inline std::string token_text(const Tokenizer& tokenizer, TokenId token) {
  std::string text;
  utf8::append_lossy(text, tokenizer.token_bytes(token));
  return text;
}

/// How log-probabilities name a token: by its text, or as "token_id:ID" where a request has vLLM's
/// return_tokens_as_token_ids, since several tokens may have one text.
enum class TokenNames : std::uint8_t { texts, ids };

namespace detail {

inline Json logprob_json(float logprob) {
  return std::max(static_cast<double>(logprob), kLeastLogprob);
}

inline std::string token_name(const Tokenizer& tokenizer, TokenId token, TokenNames names) {
  return names == TokenNames::ids ? concat("token_id:", token) : token_text(tokenizer, token);
}

/// {"token", "logprob", "bytes"}
inline Json token_json(const Tokenizer& tokenizer, TokenId token, float logprob, TokenNames names) {
  Json bytes = Json::array();
  for (const char byte : tokenizer.token_bytes(token))
    bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return Json::object({{"token", token_name(tokenizer, token, names)},
                       {"logprob", logprob_json(logprob)},
                       {"bytes", std::move(bytes)}});
}

inline std::int64_t num_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

}  // namespace detail

/// The lists of a completion's logprobs: {"text_offset", "token_logprobs", "tokens",
/// "top_logprobs"}.
class CompletionLogprobs {
 public:
  /// @param offset  characters of the text that come before the first token.
  explicit CompletionLogprobs(std::int64_t offset = 0, TokenNames names = TokenNames::texts)
      : offset_(offset), names_(names) {}

  void add(const Tokenizer& tokenizer, const TokenLogprobs& token);
  /// A token that has none: the first of a prompt.
  void add_first(const Tokenizer& tokenizer, TokenId token);

  [[nodiscard]] Json to_json() const;
  /// Characters up to the end of the last token.
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  void add(const Tokenizer& tokenizer, TokenId token, Json logprob, Json top);

  std::int64_t offset_;
  TokenNames names_;
  Json offsets_ = Json::array(), logprobs_ = Json::array(), tokens_ = Json::array(),
       top_ = Json::array();
};

/// One element of a chat's logprobs.content: {"token", "logprob", "bytes", "top_logprobs"} with at
/// most `num_top` of the likeliest. `bytes` are those of the text, whatever the token is named by.
[[nodiscard]] inline Json chat_logprobs(const Tokenizer& tokenizer, const TokenLogprobs& token,
                                        std::int32_t num_top,
                                        TokenNames names = TokenNames::texts) {
  Json out = detail::token_json(tokenizer, token.token_id, token.logprob, names);
  Json top = Json::array();
  const std::size_t count = std::min(token.top.size(), static_cast<std::size_t>(num_top));
  for (std::size_t i = 0; i < count; ++i)
    top.push_back(detail::token_json(tokenizer, token.top[i].first, token.top[i].second, names));
  out["top_logprobs"] = std::move(top);
  return out;
}

inline void CompletionLogprobs::add(const Tokenizer& tokenizer, TokenId token, Json logprob,
                                    Json top) {
  offsets_.push_back(offset_);
  offset_ += detail::num_characters(token_text(tokenizer, token));
  logprobs_.push_back(std::move(logprob));
  tokens_.push_back(detail::token_name(tokenizer, token, names_));
  top_.push_back(std::move(top));
}

inline void CompletionLogprobs::add_first(const Tokenizer& tokenizer, TokenId token) {
  add(tokenizer, token, nullptr, nullptr);
}

inline void CompletionLogprobs::add(const Tokenizer& tokenizer, const TokenLogprobs& token) {
  // Different tokens may be written alike, when they are not UTF-8: the likelier counts.
  Json top = Json::object();
  const auto list = [&](TokenId id, float logprob) {
    const std::string name = detail::token_name(tokenizer, id, names_);
    if (!top.contains(name)) top[name] = detail::logprob_json(logprob);
  };
  for (const auto& [id, logprob] : token.top) list(id, logprob);
  list(token.token_id, token.logprob);
  add(tokenizer, token.token_id, detail::logprob_json(token.logprob), std::move(top));
}

inline Json CompletionLogprobs::to_json() const {
  return Json::object({{"text_offset", offsets_},
                       {"token_logprobs", logprobs_},
                       {"tokens", tokens_},
                       {"top_logprobs", top_}});
}

/// The field `prompt_logprobs` of vLLM's replies: null for tokens without any, else {"ID":
/// {"logprob", "rank", "decoded_token"}, …}; the rank is null for a token that is not among the
/// likeliest.
[[nodiscard]] inline Json prompt_logprobs_json(const Tokenizer& tokenizer,
                                               const PromptLogprobs& prompt) {
  Json out = Json::array();
  for (const std::optional<TokenLogprobs>& token : prompt) {
    if (!token) {
      out.push_back(nullptr);
      continue;
    }
    Json likeliest = Json::object();
    const auto list = [&](TokenId id, float logprob, Json rank) {
      const std::string key = std::to_string(id);
      if (likeliest.contains(key)) return;
      likeliest[key] = Json::object({{"logprob", detail::logprob_json(logprob)},
                                     {"rank", std::move(rank)},
                                     {"decoded_token", token_text(tokenizer, id)}});
    };
    for (std::size_t i = 0; i < token->top.size(); ++i)
      list(token->top[i].first, token->top[i].second, static_cast<std::int64_t>(i + 1));
    list(token->token_id, token->logprob, nullptr);
    out.push_back(std::move(likeliest));
  }
  return out;
}

}  // namespace nanovllm::serve
