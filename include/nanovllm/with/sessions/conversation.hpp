#pragma once
/// What a session has said so far, as tokens and as messages.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// A conversation of tokens has no messages. Of one of messages, `tokens` are those of the last
/// turn's prompt and answer. It keeps the salt of its first prompt.
struct Conversation {
  std::vector<TokenId> tokens{};
  std::vector<ChatMessage> messages{};
  CacheSalt salt{};

  /// The conversation with `prompt` after it, which is the prompt of a turn. Throws RequestError
  /// where text or tokens are put after messages, or messages after tokens, and for a
  /// `cache_salt` that is not the conversation's.
  [[nodiscard]] Conversation with(const Prompt& prompt, const Frontend& frontend) const;

  /// Adds what a turn with `params` generated, but for what a stop cut off.
  void add(const Output& output, const SamplingParams& params, const Frontend& frontend);

  /// Throws RequestError unless `tokens` may be what a prompt and its answer were.
  void check(const Frontend& frontend) const;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <optional>
#include <span>
#include <variant>

#include "nanovllm/core/error.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

namespace detail {

/// How many of the generated tokens stay in the conversation.
/// @param end_tokens  the checkpoint's own, ascending.
NANOVLLM_INLINE std::size_t num_kept_tokens(const Output& output, const SamplingParams& params,
                                            std::span<const TokenId> end_tokens,
                                            const Tokenizer* tokenizer) {
  const std::span<const TokenId> all(output.token_ids);
  if (output.finish_reason != FinishReason::stop || all.empty()) return all.size();
  const auto& stops = params.stop_token_ids;
  const bool is_end = std::find(stops.begin(), stops.end(), all.back()) != stops.end() ||
                      (!params.ignore_eos && std::find(end_tokens.begin(), end_tokens.end(),
                                                       all.back()) != end_tokens.end());
  const bool has_text = params.include_stop_str_in_output && tokenizer != nullptr &&
                        !tokenizer->decode(all.last(1), params.skip_special_tokens).empty();
  if ((is_end && !has_text) || tokenizer == nullptr) return all.size() - 1;
  for (std::size_t n = all.size(); n > 0; --n) {
    if (output.text.starts_with(tokenizer->decode(all.first(n), params.skip_special_tokens)))
      return n;
  }
  return 0;
}

}  // namespace detail

NANOVLLM_INLINE Conversation Conversation::with(const Prompt& prompt,
                                                const Frontend& frontend) const {
  const CacheSalt given = Frontend::salt_of(prompt);
  const bool is_first = tokens.empty() && messages.empty();
  nanovllm::check<RequestError>(
      is_first || !given || given == salt,
      "session: cache_salt must be that of the conversation's first prompt, ",
      salt ? "got another" : "which had none");
  Conversation out{.salt = is_first ? given : salt};
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) {
    nanovllm::check<RequestError>(!messages.empty() || tokens.empty(),
                                  "session: messages cannot be put after a conversation of ",
                                  tokens.size(), " tokens; clear it first");
    out.messages = messages;
    out.messages.insert(out.messages.end(), chat->messages.begin(), chat->messages.end());
    out.tokens = frontend.encode(ChatPrompt{out.messages, chat->options});
    return out;
  }
  nanovllm::check<RequestError>(messages.empty(),
                                "session: text and tokens cannot be put after a conversation of ",
                                messages.size(), " messages; clear it first");
  out.tokens = tokens;
  const std::vector<TokenId> more = frontend.encode(prompt, is_first);
  out.tokens.insert(out.tokens.end(), more.begin(), more.end());
  return out;
}

NANOVLLM_INLINE void Conversation::add(const Output& output, const SamplingParams& params,
                                       const Frontend& frontend) {
  const std::optional<Tokenizer>& tokenizer = frontend.text().tokenizer;
  const auto num_kept = static_cast<std::ptrdiff_t>(detail::num_kept_tokens(
      output, params, frontend.rules().eos_token_ids, tokenizer ? &*tokenizer : nullptr));
  tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.begin() + num_kept);
  if (!messages.empty()) messages.emplace_back("assistant", output.text);
}

NANOVLLM_INLINE void Conversation::check(const Frontend& frontend) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const AdmissionRules& rules = frontend.rules();
  if (count > rules.max_total_tokens) {
    throw ContextLengthError(
        concat("the conversation has ", count, " tokens, but at most ", rules.max_total_tokens,
               " fit (max_model_len ", rules.max_model_len, ")"),
        count, rules.max_total_tokens);
  }
  frontend.check_tokens(tokens, "the conversation");
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
