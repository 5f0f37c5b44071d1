#pragma once
/// The bodies of POST /v1/chat/completions and /v1/completions, and of /tokenize and /detokenize as
/// vLLM has them.
///
/// Fields have OpenAI's names, and vLLM's where OpenAI has none. A field that is null counts as
/// absent, one that is unknown is ignored, and the first that is wrong is thrown as a FieldError
/// that names it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/request/chat_fields.hpp"
#include "nanovllm/api/serve/request/generation_fields.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm::serve {

/// A request for the next message of a conversation.
struct ChatCompletionRequest : GenerationRequest {
  std::vector<ChatMessage> messages{};  ///< ready to be rendered: parse_chat_messages
  ChatOptions options{};                ///< its `tools` as ToolFields has them
  /// max_completion_tokens, else max_tokens. Where the request says nothing of it,
  /// `sampling.max_tokens` is SamplingParams' own default.
  std::optional<std::int32_t> max_tokens{};
  bool clips_max_tokens = false;  ///< to what the prompt leaves, which keeps all tokens that fit
  ToolChoice tool_choice{};
  bool parallel_tool_calls = true;
  bool logprobs = false;
  std::int32_t top_logprobs = 0;

  /// Throws RequestError.
  [[nodiscard]] static ChatCompletionRequest parse(const Json& body);
};

namespace detail {

/// Throws RequestError for fields of completions that a chat does not support, except their
/// defaults, which clients may write out.
inline void refuse_completion_fields(const RequestFields& body) {
  const auto refuse = [&](const char* name, bool is_default) {
    if (body.has(name) && !is_default)
      refuse_field(name, "is not supported in chats; /v1/completions has it");
  };
  for (const char* name : {"echo", "use_beam_search"}) {
    const Json* value = body.find(name);
    refuse(name, value == nullptr || *value == Json(false) || *value == Json(0));
  }
  for (const char* name : {"best_of", "beam_width"})
    refuse(name, body.has(name) && *body.find(name) == Json(1));
}

inline void read_token_limits(const RequestFields& body, ChatCompletionRequest& request) {
  // Both are checked, though max_completion_tokens wins.
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const auto limit = body.integer(name, 1, kMaxCount);
    if (limit) request.max_tokens = static_cast<std::int32_t>(*limit);
  }
  if (request.max_tokens) request.sampling.max_tokens = *request.max_tokens;
}

inline void read_chat_logprobs(const RequestFields& body, ChatCompletionRequest& request) {
  request.logprobs = body.flag("logprobs");
  const auto top = body.integer("top_logprobs", 0, kMaxLogprobs).value_or(0);
  if (top > 0 && !request.logprobs)
    refuse_field("top_logprobs", "can only be given with 'logprobs': true");
  request.top_logprobs = static_cast<std::int32_t>(top);
  if (request.logprobs) request.sampling.logprobs = request.top_logprobs;
  if (const auto of_prompt = body.integer("prompt_logprobs", 0, kMaxLogprobs))
    request.sampling.prompt_logprobs = static_cast<std::int32_t>(*of_prompt);
}

/// The tools and the form of the answer. Where calls may come and need not, they may come instead
/// of an answer in the form; where they must, there is no such answer.
inline void read_answer_form(const RequestFields& body, ChatCompletionRequest& request) {
  OutputFormat format = parse_output_format(body);
  ToolFields tools = parse_tool_fields(body);
  if (tools.choice.kind == ToolChoice::Kind::automatic && !format.field.empty()) {
    format.constraint.or_tool_calls = true;
    format.constraint.tools = Json::array();
    for (const Json& tool : tools.tools)
      if (tools.choice.allows(tool["function"]["name"].string()))
        format.constraint.tools.push_back(tool);
    format.constraint.parallel_tool_calls = tools.parallel;
  } else if (tools.constraint.kind != OutputConstraint::Kind::none)
    format = {std::move(tools.constraint), body.has("tool_choice") ? "tool_choice" : "tools"};
  request.constraint = std::move(format.constraint);
  request.constraint_field = std::move(format.field);
  request.options.tools = std::move(tools.tools);
  request.tool_choice = std::move(tools.choice);
  request.parallel_tool_calls = tools.parallel;
}

}  // namespace detail

inline ChatCompletionRequest ChatCompletionRequest::parse(const Json& json) {
  const RequestFields body(json);
  ChatCompletionRequest request;
  request.model = body.string("model").value_or("");
  request.messages = parse_chat_messages(body);
  request.options = parse_chat_options(body);
  request.sampling = parse_sampling(body);
  detail::refuse_completion_fields(body);
  refuse_unserved(body, kUnservedOfGeneration);
  detail::read_token_limits(body, request);
  request.add_special_tokens = body.flag("add_special_tokens");
  request.read_prompt_fields(body);
  detail::read_chat_logprobs(body, request);
  detail::read_answer_form(body, request);
  request.read_reply_fields(body);
  if (request.stream) body.refuse("prompt_logprobs", "cannot be streamed; send 'stream': false");

  // Without a limit of the request's own the context is the limit, which is not known here.
  const std::int32_t max_tokens = request.sampling.max_tokens;
  if (!request.max_tokens) request.sampling.max_tokens = kMaxCount;
  check_sampling(body, request.sampling);
  request.sampling.max_tokens = max_tokens;
  return request;
}

/// Most prompts of one request, and most sequences: prompts times samples.
inline constexpr std::size_t kMaxPrompts = 128;
inline constexpr std::size_t kMaxCompletionSequences = 1024;

/// A request to continue one or more texts.
struct CompletionRequest : GenerationRequest {
  std::vector<Prompt> prompts{};  ///< texts or token ids, none of them empty
  /// The prompt comes before the completion. `sampling.prompt_logprobs` is `logprobs` then, else
  /// the request's own; and max_tokens may be 0, which sets `prompt_only`.
  bool echo = false;
  std::optional<std::int32_t> logprobs{};

  /// Throws RequestError.
  [[nodiscard]] static CompletionRequest parse(const Json& body);
};

/// A request for the tokens of `prompt`, a text, or of `messages` rendered by the chat template.
struct TokenizeRequest {
  std::string model{};  ///< empty where the request names none
  Prompt prompt = "";
  bool add_special_tokens = true;  ///< those that the tokeniser adds to a text; of messages: false
  bool return_token_strs = false;  ///< also return the text of each token

  /// Throws RequestError.
  [[nodiscard]] static TokenizeRequest parse(const Json& json) {
    const RequestFields body(json);
    TokenizeRequest request;
    request.model = body.string("model").value_or("");
    request.return_token_strs = body.flag("return_token_strs");
    request.add_special_tokens = body.flag("add_special_tokens", !body.has("messages"));
    if (body.has("messages")) {
      if (body.has("prompt")) refuse_field("prompt", "cannot be combined with messages");
      ChatPrompt chat{parse_chat_messages(body), parse_chat_options(body)};
      chat.options.tools = parse_tool_fields(body).tools;
      request.prompt = std::move(chat);
    } else {
      request.prompt = string_at(body.required("prompt"), "prompt");
    }
    return request;
  }
};

/// A request for the text of tokens.
struct DetokenizeRequest {
  std::string model{};
  std::vector<TokenId> tokens{};  ///< 0 or more; parse() does not compare them with a vocabulary
  bool skip_special_tokens = false;

  /// Throws RequestError.
  [[nodiscard]] static DetokenizeRequest parse(const Json& json) {
    const RequestFields body(json);
    DetokenizeRequest request;
    request.model = body.string("model").value_or("");
    request.tokens = token_ids_at(body.required("tokens"), "tokens");
    request.skip_special_tokens = body.flag("skip_special_tokens");
    return request;
  }
};

namespace detail {

inline constexpr std::int32_t kDefaultMaxTokens = 16;

inline void read_token_limit(const RequestFields& body, CompletionRequest& request) {
  const auto limit = body.integer("max_tokens", 0, kMaxCount);
  request.sampling.max_tokens = static_cast<std::int32_t>(limit.value_or(kDefaultMaxTokens));
  if (limit != 0) return;
  if (!request.echo) refuse_field("max_tokens", "must be >= 1 unless 'echo' is true, got 0");
  request.prompt_only = true;
  request.sampling.max_tokens = 1;
}

inline void read_completion_logprobs(const RequestFields& body, CompletionRequest& request) {
  const auto of_prompt = body.integer("prompt_logprobs", 0, kMaxLogprobs);
  if (of_prompt && request.echo)
    refuse_field("prompt_logprobs",
                 "cannot be combined with 'echo'; send 'logprobs', which is of "
                 "the prompt as well then");
  if (of_prompt) request.sampling.prompt_logprobs = static_cast<std::int32_t>(*of_prompt);
  const auto logprobs = body.integer("logprobs", 0, kMaxLogprobs);
  if (!logprobs) return;
  request.logprobs = static_cast<std::int32_t>(*logprobs);
  request.sampling.logprobs = request.logprobs;
  if (request.echo) request.sampling.prompt_logprobs = request.logprobs;
}

inline void check_streams(const RequestFields& body, const CompletionRequest& request) {
  const auto samples = static_cast<std::size_t>(num_samples(request.sampling));
  const std::size_t sequences = request.prompts.size() * samples;
  if (sequences > kMaxCompletionSequences)
    refuse_field("prompt", concat("must have at most ", kMaxCompletionSequences,
                                  " prompts times samples, got ", sequences));
  if (request.stream && !is_streamed(request.sampling))
    refuse_field("stream", concat("cannot be combined with ",
                                  body.has("best_of") ? "best_of > n" : "a beam search"));
}

}  // namespace detail

inline CompletionRequest CompletionRequest::parse(const Json& json) {
  const RequestFields body(json);
  CompletionRequest request;
  request.model = body.string("model").value_or("");
  request.prompts = parse_prompts(body, "prompt", kMaxPrompts);
  if (const auto suffix = body.string("suffix"); suffix && !suffix->empty())
    refuse_field("suffix", "is not supported");
  for (const char* name : {"chat_template", "documents"})
    body.refuse(name, "is not supported in completions, whose prompt no template renders");
  refuse_unserved(body, kUnservedOfGeneration);
  request.sampling = parse_sampling(body);
  parse_beam_search(body, request.sampling);
  request.beam_field = beam_field_of(body);
  request.echo = body.flag("echo");
  detail::read_token_limit(body, request);
  request.add_special_tokens = body.flag("add_special_tokens", true);
  request.read_prompt_fields(body);
  detail::read_completion_logprobs(body, request);
  OutputFormat format = parse_output_format(body);
  request.constraint = std::move(format.constraint);
  request.constraint_field = std::move(format.field);
  request.read_reply_fields(body);
  check_sampling(body, request.sampling);
  detail::check_streams(body, request);
  return request;
}

}  // namespace nanovllm::serve
