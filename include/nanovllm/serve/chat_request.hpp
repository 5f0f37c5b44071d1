#pragma once
/// The body of POST /v1/chat/completions.
///
/// Fields have OpenAI's names, and vLLM's where OpenAI has none. A field that is null counts as
/// absent, one that is unknown is ignored, and the first that is wrong is thrown as an ApiError
/// that names it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/output_constraint.hpp"

namespace nanovllm::serve {

/// Messages and tools that a request may have.
inline constexpr std::size_t kMaxMessages = 16384;
inline constexpr std::size_t kMaxTools = 128;

/// Which tools the answer may call.
struct ToolChoice {
  enum class Kind : std::uint8_t {
    none,       ///< none; the prompt does not show any either
    automatic,  ///< "auto": as the model sees fit
    required,   ///< one or more
    named       ///< `name`, once
  };
  Kind kind = Kind::none;
  std::string name{};

  [[nodiscard]] friend bool operator==(const ToolChoice&, const ToolChoice&) = default;
};

/// A request for the next message of a conversation.
struct ChatCompletionRequest {
  std::string model{};  ///< empty where the request names none
  /// Ready to be rendered: the role 'developer' is 'system', content is a string, and arguments of
  /// earlier tool calls are objects where they are the text of one.
  std::vector<ChatMessage> messages{};
  ChatOptions options{};  ///< `tools` in the order of members that templates were trained on
  /// Its ranges are checked; `max_tokens` is SamplingParams' own default where the request says
  /// nothing of it. `logprobs` follows from the fields below.
  SamplingParams sampling{};
  std::optional<std::int32_t> max_tokens{};  ///< max_completion_tokens, else max_tokens
  /// Of response_format, structured_outputs, guided_* or the tools; tool_call_format and
  /// after_reasoning are left to whoever knows the model.
  OutputConstraint constraint{};
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
