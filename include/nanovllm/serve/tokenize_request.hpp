#pragma once
/// The bodies of POST /tokenize and POST /detokenize, as vLLM has them.

#include <string>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/prompt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// A request for the tokens of `prompt`, a text, or of `messages` as the chat template renders
/// them.
struct TokenizeRequest {
  std::string model{};  ///< empty where the request names none
  Prompt prompt = "";
  bool return_token_strs = false;  ///< each token as a text, too

  /// Throws ApiError.
  [[nodiscard]] static TokenizeRequest parse(const Json& body);
};

/// A request for the text of tokens.
struct DetokenizeRequest {
  std::string model{};
  std::vector<TokenId> tokens{};  ///< from 0 on; not compared with a vocabulary

  /// Throws ApiError.
  [[nodiscard]] static DetokenizeRequest parse(const Json& body);
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/tokenize_request.inc"
#endif
