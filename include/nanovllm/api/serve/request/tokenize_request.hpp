#pragma once
/// The bodies of POST /tokenize and POST /detokenize, as vLLM has them.

#include <string>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

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

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <utility>

#include "nanovllm/api/serve/request/chat_fields.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/tool_fields.hpp"

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE TokenizeRequest TokenizeRequest::parse(const Json& json) {
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

NANOVLLM_SERVE_INLINE DetokenizeRequest DetokenizeRequest::parse(const Json& json) {
  const RequestFields body(json);
  DetokenizeRequest request;
  request.model = body.string("model").value_or("");
  request.tokens = token_ids_at(body.required("tokens"), "tokens");
  request.skip_special_tokens = body.flag("skip_special_tokens");
  return request;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
