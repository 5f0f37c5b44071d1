#pragma once
/// The body of POST /v1/chat/completions.
///
/// Fields have OpenAI's names, and vLLM's where OpenAI has none. A field that is null counts as
/// absent, one that is unknown is ignored, and the first that is wrong is thrown as an ApiError
/// that names it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/output_constraint.hpp"
#include "nanovllm/serve/tool_fields.hpp"

namespace nanovllm::serve {

/// A request for the next message of a conversation.
struct ChatCompletionRequest {
  std::string model{};                  ///< empty where the request names none
  std::vector<ChatMessage> messages{};  ///< ready to be rendered: parse_chat_messages
  ChatOptions options{};                ///< its `tools` as ToolFields has them
  /// Its ranges are checked; `max_tokens` is SamplingParams' own default where the request says
  /// nothing of it. `logprobs` follows from the fields below.
  SamplingParams sampling{};
  std::optional<std::int32_t> max_tokens{};  ///< max_completion_tokens, else max_tokens
  /// Of response_format, structured_outputs, guided_* or the tools. tool_call_format and
  /// after_reasoning, which depend on the model, are as a constraint has them at first.
  OutputConstraint constraint{};
  std::string constraint_field{};  ///< path of the field that states it; empty for Kind::none
  ToolChoice tool_choice{};
  bool parallel_tool_calls = true;
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;           ///< a last chunk with the usage
  bool continuous_usage_stats = false;  ///< usage in every chunk; only with include_usage
  bool return_token_ids = false;

  /// Throws ApiError.
  [[nodiscard]] static ChatCompletionRequest parse(const Json& body);
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/chat_request.inc"
#endif
