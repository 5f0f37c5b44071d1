#pragma once
/// Turns what a request asks for into what an engine takes, or into an error that names the field.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/api/chat/chat_parser.hpp"
#include "nanovllm/api/chat/jinja_programs.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/text_requests.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

namespace detail {

[[noreturn]] inline void refuse_context(const std::string& message, const char* field) {
  throw ApiError(400, message, field, "context_length_exceeded");
}

[[noreturn]] inline void refuse_prompt(std::int64_t max_total_tokens, std::int64_t num_tokens,
                                       bool is_exact, std::string_view field) {
  throw ApiError(400,
                 concat("This model's maximum context length is ", max_total_tokens,
                        " tokens. However, your request has ", is_exact ? "" : "at least ",
                        num_tokens, " input tokens, and one at least is to be generated."),
                 std::string(field), "context_length_exceeded");
}

/// The tokens of a text. If it may be too long, all of it is encoded. If not, one that is much too
/// long is refused before its end: the count is exact only for texts that are a little too long.
inline std::vector<TokenId> encode_text(const AnyEngine& engine, const std::string& text,
                                        std::string_view field, bool may_be_long,
                                        const std::stop_token& stop) {
  const Tokenizer& tokenizer = *engine.text().tokenizer;
  if (may_be_long) return tokenizer.encode(text, std::size_t(-1), stop);
  const auto most = static_cast<std::size_t>(engine.max_total_tokens() - 1);
  const std::size_t counted = 2 * most + 1024;
  try {
    return tokenizer.encode(text, counted, stop);
  } catch (const ContextLengthError& error) {
    refuse_prompt(engine.max_total_tokens(), error.num_tokens, false, field);
  }
}

}  // namespace detail

/// The model's tokeniser. Throws ApiError (400) if there is none.
[[nodiscard]] inline const Tokenizer& tokenizer_of(const AnyEngine& engine) {
  if (!engine.text().tokenizer)
    throw ApiError(400, "this needs a tokeniser, which the model lacks");
  return *engine.text().tokenizer;
}

/// The text of a prompt that is a text or messages. Throws ApiError (400) that names `field` if
/// there is no chat template, or if the template refuses the messages.
[[nodiscard]] inline std::string prompt_text(const TextSide& text, const Prompt& prompt,
                                             std::string_view field) {
  if (const auto* plain = std::get_if<std::string>(&prompt)) return *plain;
  const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
  const auto refuse = [&](const std::string& message) {
    throw ApiError(400, message, std::string(field));
  };
  if (!text.chat_template)
    refuse("messages need a chat template: " + text.chat_template.why_none());
  try {
    return text.chat_template->render(chat.messages, chat.options);
  } catch (const RequestError& error) {
    refuse(error.what());
  }
  return {};
}

/// How many tokens of a prompt are kept if `max_tokens` are to be generated after it; unset: all.
/// Throws ApiError (400) that names truncate_prompt_tokens if it exceeds the model's context.
[[nodiscard]] inline std::optional<std::size_t> num_kept_tokens(
    const AnyEngine& engine, const std::optional<PromptTruncation>& truncation,
    std::int32_t max_tokens) {
  if (!truncation) return {};
  const std::int64_t total = engine.max_total_tokens();
  if (!truncation->num_tokens)
    return static_cast<std::size_t>(std::max<std::int64_t>(1, total - max_tokens));
  if (*truncation->num_tokens > total) {
    refuse_field("truncate_prompt_tokens",
                 concat("must be at most ", total, ", the model's context length, got ",
                        *truncation->num_tokens));
  }
  return static_cast<std::size_t>(*truncation->num_tokens);
}

/// The tokens of a prompt, its last `num_kept` if that is set. With `add_special_tokens` those that
/// the tokeniser adds to a text are among them, also around the text of a conversation; token ids
/// stay as they are. Throws ApiError (400) that names `field`; if there are too many, with the code
/// context_length_exceeded and both numbers. Throws Cancelled soon after a request to stop.
/// @param must_fit  false: any number of tokens is right.
[[nodiscard]] inline std::vector<TokenId> prompt_tokens(
    const AnyEngine& engine, const Prompt& prompt, bool add_special_tokens, std::string_view field,
    std::optional<std::size_t> num_kept, const std::stop_token& stop, bool must_fit = true) {
  const std::int64_t total = engine.max_total_tokens();
  std::vector<TokenId> tokens;
  SequenceTemplate added;
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    tokens = *ids;
  } else {
    if (!engine.text().tokenizer) {
      throw ApiError(400, "texts need a tokeniser, and this model has none: send token ids",
                     std::string(field));
    }
    tokens = detail::encode_text(engine, prompt_text(engine.text(), prompt, field), field,
                                 num_kept.has_value() || !must_fit, stop);
    if (add_special_tokens) added = engine.text().tokenizer->sequence_template();
  }
  if (num_kept && added.size() > *num_kept) {
    refuse_field("truncate_prompt_tokens",
                 concat("must be at least ", added.size(),
                        ", the tokens that the tokeniser adds, got ", *num_kept));
  }
  tokens = added.wrap(std::move(tokens), num_kept.value_or(std::size_t(-1)));
  if (must_fit && static_cast<std::int64_t>(tokens.size()) >= total)
    detail::refuse_prompt(total, static_cast<std::int64_t>(tokens.size()), true, field);
  return tokens;
}

/// Throws ApiError (400), context_length_exceeded, if `max_tokens` do not fit after the prompt.
inline void check_max_tokens(const AnyEngine& engine, std::size_t num_prompt_tokens,
                             std::int32_t max_tokens) {
  const std::int64_t total = engine.max_total_tokens();
  const auto prompt = static_cast<std::int64_t>(num_prompt_tokens);
  if (prompt + max_tokens <= total) return;
  detail::refuse_context(
      concat("This model's maximum context length is ", total, " tokens. However, you requested ",
             prompt + max_tokens, " tokens (", prompt, " of input and ", max_tokens,
             " to be generated): 'max_tokens' or 'max_completion_tokens' is too large."),
      "max_tokens");
}

/// Throws ApiError (400) that names the field if a token id of the request, in its prompts or for
/// sampling, is outside the model's vocabulary.
inline void check_token_ids(const AnyEngine& engine, std::span<const std::vector<TokenId>> prompts,
                            const SamplingParams& params, const char* prompt_field = "prompt") {
  const auto check_id = [size = engine.vocab_size()](TokenId token, const char* field) {
    if (token >= 0 && token < size) return;
    throw ApiError(
        400, concat(field, ": token id ", token, " is not in [0, vocab_size = ", size, ")"), field);
  };
  for (const auto& prompt : prompts) {
    for (const TokenId token : prompt) check_id(token, prompt_field);
  }
  for (const TokenBias& bias : params.logit_bias) check_id(bias.token, "logit_bias");
  for (const TokenId token : params.stop_token_ids) check_id(token, "stop_token_ids");
  for (const TokenId token : params.allowed_token_ids) check_id(token, "allowed_token_ids");
}

/// Whether the answer continues a message of the conversation whose thought has not ended.
[[nodiscard]] inline bool continues_thought(const AnyEngine& engine,
                                            const ChatCompletionRequest& request) {
  const auto& chat_template = engine.text().chat_template;
  if (!request.options.continue_final_message || !chat_template) return false;
  ChatOptions from_begin = request.options;
  from_begin.continue_final_message = false;
  if (chat_parser_options(*chat_template, from_begin).reasoning == Reasoning::none) return false;
  const Json* content = request.messages.back().find("content");
  if (content == nullptr || !content->is_string()) return false;
  const std::size_t open = content->string().rfind("<think>");
  const std::size_t close = content->string().rfind("</think>");
  return open != std::string::npos && (close == std::string::npos || close < open);
}

/// How to parse the answer to a chat.
/// @param format  the form in which the model writes tool calls.
[[nodiscard]] inline ChatParserOptions answer_format(const AnyEngine& engine,
                                                     const ChatCompletionRequest& request,
                                                     ToolCallFormat format, bool parse_reasoning) {
  const auto& chat_template = engine.text().chat_template;
  ChatParserOptions out{.tools = request.options.tools};
  if (chat_template) out = chat_parser_options(*chat_template, request.options);
  if (continues_thought(engine, request)) out.reasoning = Reasoning::open;
  if (!parse_reasoning) out.reasoning = Reasoning::none;
  const bool may_call = request.tool_choice.kind != ToolChoice::Kind::none;
  out.tool_call_format = may_call ? format : ToolCallFormat::none;
  using Kind = OutputConstraint::Kind;
  const Kind constraint = request.constraint.kind;
  if (constraint == Kind::tool_calls || constraint == Kind::free_tool_calls)
    out.mode = ToolCallMode::incremental;
  return out;
}

/// Whether the answer to a chat begins with a thought; a constraint then applies after it. A model
/// whose template shows thoughts thinks if its prompt lets it. With another, as plain ChatML,
/// `enable_thinking` says so.
[[nodiscard]] inline bool expects_thought(const ChatTemplate& chat_template,
                                          const ChatOptions& options) {
  const Reasoning reasoning = chat_parser_options(chat_template, options).reasoning;
  if (reasoning == Reasoning::optional && !answer_form(chat_template).shows_thoughts)
    return options.enable_thinking.value_or(false);
  return reasoning != Reasoning::none;
}

}  // namespace nanovllm::serve
