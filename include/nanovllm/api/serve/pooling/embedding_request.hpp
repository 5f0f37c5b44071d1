#pragma once
/// The body of POST /v1/embeddings. The rules for fields are those of chat_request.hpp.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/api/serve/request/prompt_truncation.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// Most inputs of a request for embeddings, as OpenAI has it, and most documents to be scored.
inline constexpr std::size_t kMaxPooledInputs = 2048;

/// A request for the embeddings of one or more texts.
struct EmbeddingRequest {
  std::string model{};                      ///< empty where the request names none
  std::vector<Prompt> inputs{};             ///< texts or token ids, none of them empty
  bool base64 = false;                      ///< else the vectors are lists of numbers
  std::optional<std::size_t> dimensions{};  ///< 1 or more
  bool normalize = true;
  bool add_special_tokens = true;                ///< those that the tokeniser adds to a text
  std::optional<PromptTruncation> truncation{};  ///< unset: an input that is too long is refused
  std::string cache_salt{};                      ///< as Prompt has it
  std::int32_t priority = 0;                     ///< as SamplingParams has it

  /// Throws RequestError.
  [[nodiscard]] static EmbeddingRequest parse(const Json& body);
};

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <limits>

#include "nanovllm/api/serve/request/cache_salt_field.hpp"
#include "nanovllm/api/serve/request/priority_field.hpp"
#include "nanovllm/api/serve/request/prompt_field.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/unserved_fields.hpp"

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE EmbeddingRequest EmbeddingRequest::parse(const Json& json) {
  const RequestFields body(json);
  EmbeddingRequest request;
  request.model = body.string("model").value_or("");
  request.inputs = parse_prompts(body, "input", kMaxPooledInputs);
  const std::string format = body.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    refuse_field("encoding_format", concat("must be 'float' or 'base64', got '", format, "'"));
  request.base64 = format == "base64";
  if (const auto dimensions =
          body.integer("dimensions", 1, std::numeric_limits<std::int32_t>::max()))
    request.dimensions = static_cast<std::size_t>(*dimensions);
  request.normalize = body.flag("normalize", body.flag("use_activation", true));
  refuse_unserved(body, kUnservedOfPrompts);
  refuse_unserved(body, kUnservedOfEmbeddings);
  request.add_special_tokens = body.flag("add_special_tokens", true);
  request.truncation = parse_truncation(body);
  request.cache_salt = parse_cache_salt(body);
  request.priority = parse_priority(body);
  return request;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
