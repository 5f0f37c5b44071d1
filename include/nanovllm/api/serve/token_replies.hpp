#pragma once
/// Replies of /tokenize and /detokenize.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/api/serve/admission.hpp"
#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/reply/generation.hpp"
#include "nanovllm/api/serve/reply/logprobs.hpp"
#include "nanovllm/api/serve/request/completion_request.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

// Each parses a body and answers it, on this thread. Throws RequestError for one that cannot be
// answered, and Cancelled soon after a request to stop.

/// The tokens of a text or of messages.
[[nodiscard]] inline std::shared_ptr<Exchange> answer_tokenize(const AnyEngine& engine,
                                                               const Generation& generation,
                                                               std::string_view body,
                                                               const Effort& effort) {
  const auto request = TokenizeRequest::parse(parse_request_body(body));
  static_cast<void>(generation.model_name(request.model));
  const bool is_text = std::holds_alternative<std::string>(request.prompt);
  const std::string text =
      prompt_text(engine.text(), request.prompt, is_text ? "prompt" : "messages");
  const Tokenizer& tokenizer = tokenizer_of(engine);
  constexpr auto kAll = std::size_t(-1);
  const std::vector<TokenId> tokens = request.add_special_tokens
                                          ? tokenizer.encode_with_template(text, kAll, effort.stop)
                                          : tokenizer.encode(text, kAll, effort.stop);
  Json reply = Json::object({{"count", tokens.size()},
                             {"max_model_len", engine.max_total_tokens()},
                             {"tokens", tokens},
                             {"token_strs", nullptr}});
  if (request.return_token_strs) {
    Json texts = Json::array();
    for (const TokenId token : tokens) {
      effort.check_stop();
      texts.push_back(token_text(tokenizer, token));
    }
    reply["token_strs"] = std::move(texts);
  }
  return json_reply("tokenize", reply);
}

/// The text of tokens.
[[nodiscard]] inline std::shared_ptr<Exchange> answer_detokenize(const AnyEngine& engine,
                                                                 const Generation& generation,
                                                                 std::string_view body) {
  const auto request = DetokenizeRequest::parse(parse_request_body(body));
  static_cast<void>(generation.model_name(request.model));
  const Tokenizer& tokenizer = tokenizer_of(engine);
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {
    if (tokenizer.token_bytes(request.tokens[i]).empty())
      refuse_field(element_path("tokens", i),
                   concat("must be the id of a token, got ", request.tokens[i]));
  }
  return json_reply(
      "detokenize",
      Json::object({{"prompt", tokenizer.decode(request.tokens, request.skip_special_tokens)}}));
}

}  // namespace nanovllm::serve
