#pragma once
/// The bodies of POST /v1/completions, and of /tokenize and /detokenize as vLLM has them. The rules
/// for fields are those of chat_request.hpp.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/request/chat_fields.hpp"
#include "nanovllm/api/serve/request/output_format.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/sampling_fields.hpp"
#include "nanovllm/api/serve/request/shared_fields.hpp"
#include "nanovllm/api/serve/request/tool_fields.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm::serve {

/// Most prompts of one request, and most sequences: prompts times samples.
inline constexpr std::size_t kMaxPrompts = 128;
inline constexpr std::size_t kMaxCompletionSequences = 1024;

/// A request to continue one or more texts.
struct CompletionRequest {
  std::string model{};            ///< empty where the request names none
  std::vector<Prompt> prompts{};  ///< texts or token ids, none of them empty
  /// Its ranges are checked. `prompt_logprobs` is the request's own, or with `echo` its `logprobs`.
  SamplingParams sampling{};
  OutputConstraint constraint{};
  std::string constraint_field{};  ///< path of the field that states it; empty for Kind::none
  std::string beam_field{};        ///< the field that asks for a beam search
  bool echo = false;               ///< the prompt comes before the completion
  /// `max_tokens` was 0, which is allowed with `echo`. `sampling.max_tokens` is 1, the least that
  /// the engine takes, and the generated token is left out of the reply.
  bool prompt_only = false;
  std::optional<PromptTruncation> truncation{};  ///< unset: a prompt that is too long is refused
  bool add_special_tokens = true;                ///< those that the tokeniser adds to a text
  std::string cache_salt{};                      ///< as Prompt has it
  std::optional<std::int32_t> logprobs{};
  bool stream = false;                  ///< never of samples that are chosen from, nor of beams
  bool include_usage = false;           ///< a last chunk with the usage
  bool continuous_usage_stats = false;  ///< usage in every chunk; only with include_usage
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  ///< log-probabilities name tokens "token_id:ID"

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
  [[nodiscard]] static TokenizeRequest parse(const Json& body);
};

/// A request for the text of tokens.
struct DetokenizeRequest {
  std::string model{};
  std::vector<TokenId> tokens{};  ///< 0 or more; parse() does not compare them with a vocabulary
  bool skip_special_tokens = false;

  /// Throws RequestError.
  [[nodiscard]] static DetokenizeRequest parse(const Json& body);
};

namespace detail {

inline constexpr std::int32_t kDefaultMaxTokens = 16;

inline void read_token_limit(const RequestFields& body, CompletionRequest& request) {
  const auto limit = body.integer("max_tokens", 0, std::numeric_limits<std::int32_t>::max());
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
  refuse_unserved(body, kUnservedOfPrompts);
  refuse_unserved(body, kUnservedOfGeneration);
  request.sampling = parse_sampling(body);
  parse_beam_search(body, request.sampling);
  request.beam_field = beam_field_of(body);
  request.echo = body.flag("echo");
  detail::read_token_limit(body, request);
  request.truncation = parse_truncation(body);
  request.add_special_tokens = body.flag("add_special_tokens", true);
  request.cache_salt = parse_cache_salt(body);
  detail::read_completion_logprobs(body, request);
  OutputFormat format = parse_output_format(body);
  request.constraint = std::move(format.constraint);
  request.constraint_field = std::move(format.field);
  const StreamOptions streaming = parse_stream_options(body);
  request.stream = streaming.stream;
  request.include_usage = streaming.include_usage;
  request.continuous_usage_stats = streaming.continuous_usage_stats;
  request.return_token_ids = body.flag("return_token_ids");
  request.return_tokens_as_token_ids = body.flag("return_tokens_as_token_ids");
  check_sampling(body, request.sampling);
  detail::check_streams(body, request);
  return request;
}

inline TokenizeRequest TokenizeRequest::parse(const Json& json) {
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

inline DetokenizeRequest DetokenizeRequest::parse(const Json& json) {
  const RequestFields body(json);
  DetokenizeRequest request;
  request.model = body.string("model").value_or("");
  request.tokens = token_ids_at(body.required("tokens"), "tokens");
  request.skip_special_tokens = body.flag("skip_special_tokens");
  return request;
}

}  // namespace nanovllm::serve
