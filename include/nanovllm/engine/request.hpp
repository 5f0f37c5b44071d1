#pragma once
/// What users hand to the engine and what they get back.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// A conversation to be rendered by the model's chat template.
struct ChatPrompt {
  std::vector<ChatMessage> messages;
  ChatOptions options{};
};

/// A text, token ids, or a conversation.
struct Prompt : std::variant<std::string, std::vector<TokenId>, ChatPrompt> {
  Prompt(const char* text) : variant(std::string(text)) {}
  Prompt(std::string_view text) : variant(std::string(text)) {}
  Prompt(std::string text) : variant(std::move(text)) {}
  Prompt(std::vector<TokenId> token_ids) : variant(std::move(token_ids)) {}
  Prompt(std::vector<ChatMessage> messages) : variant(ChatPrompt{std::move(messages)}) {}
  Prompt(ChatPrompt chat) : variant(std::move(chat)) {}
};

/// A token the model gave, its log-probability, and the most likely ones, best first.
struct TokenLogprobs {
  TokenId token_id = 0;
  float logprob = 0.f;
  std::vector<std::pair<TokenId, float>> top{};
};

/// Seconds from submission.
struct RequestTimings {
  double scheduled = 0;    ///< first computed in a step
  double first_token = 0;  ///< first token out; 0 if none
  double finished = 0;
};

/// Everything about a finished request.
struct Output {
  RequestId id = 0;
  std::string text;                ///< detokenised, without prompt, end token and stop string
  std::vector<TokenId> token_ids;  ///< generated, an end or stop token included
  FinishReason finish_reason = FinishReason::none;
  std::int32_t num_prompt_tokens = 0;
  std::int32_t num_cached_tokens = 0;   ///< of the prompt, taken from the prefix cache
  std::vector<TokenLogprobs> logprobs;  ///< one a token, if SamplingParams::logprobs was set
  RequestTimings timings;
  std::string error;  ///< why finish_reason is `error`
};

/// What a callback hears of its request: once for every token, and once when it ends.
struct TokenEvent {
  RequestId id = 0;
  const TokenId* token = nullptr;           ///< null when the request ended without a new one
  std::string_view text;                    ///< newly released text; may be empty
  const TokenLogprobs* logprobs = nullptr;  ///< of `token`, if asked for
  const Output* output = nullptr;           ///< the whole result, on the last event alone
};

/// Called on the thread that runs `Engine::step`. It may call `submit`, `abort` and `stats`, but
/// not `step` nor `generate`. If it throws, its own request ends with an error; others do not
/// notice.
using TokenCallback = std::function<void(const TokenEvent&)>;

}  // namespace nanovllm
