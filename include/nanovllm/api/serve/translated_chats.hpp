#pragma once
/// Anthropic's Messages and OpenAI's Responses. Their requests become chat completions, and their
/// replies are other forms of a chat's answer.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/reply/generation.hpp"
#include "nanovllm/api/serve/reply/messages_reply.hpp"
#include "nanovllm/api/serve/reply/responses_reply.hpp"
#include "nanovllm/api/serve/request/messages_request.hpp"
#include "nanovllm/api/serve/request/responses_request.hpp"
#include "nanovllm/api/serve/service_config.hpp"

namespace nanovllm::serve {

// Each answers a request, as members of Generation do: null if that takes longer than `effort`
// allows. Throws RequestError in the names of its protocol, and whatever the engine throws.

[[nodiscard]] inline std::shared_ptr<Exchange> answer_message(Generation& generation,
                                                              const Json& body,
                                                              const Effort& effort) {
  return with_names(kMessagesNames, [&] {
    const ChatForm form{
        "messages",
        "msg_",
        "message",
        "message",
        [](ChatSetup&& setup) { return std::make_unique<MessagesReply>(std::move(setup)); },
        "toolu_"};
    return generation.chat(parse_messages_request(body), effort, form);
  });
}

/// The tokens that an answer to a conversation in Anthropic's form has as its prompt,
/// {"input_tokens"}, whether or not they fit. What is wrong with the request is refused as there.
[[nodiscard]] inline std::shared_ptr<Exchange> count_tokens(const AnyEngine& engine,
                                                            const Generation& generation,
                                                            const Json& body,
                                                            const Effort& effort) {
  return with_names(kMessagesNames, [&] {
    ChatCompletionRequest chat = parse_messages_request(body, false);
    static_cast<void>(generation.model_name(chat.model));
    if (!generation.check_rules(chat, effort)) return std::shared_ptr<Exchange>();
    const ChatPrompt prompt{std::move(chat.messages), std::move(chat.options)};
    const auto num_kept = num_kept_tokens(engine, chat.truncation, chat.max_tokens.value_or(1));
    const std::vector<TokenId> tokens = prompt_tokens(engine, prompt, chat.add_special_tokens,
                                                      "messages", num_kept, effort.stop, false);
    return json_reply("messages", Json::object({{"input_tokens", tokens.size()}}));
  });
}

/// The Responses API, with the responses that are kept. Thread-safe.
class Responses {
 public:
  explicit Responses(const ServiceConfig& config)
      : store_(std::make_shared<ResponseStore>(config.max_stored_responses,
                                               config.max_stored_response_bytes)) {}

  [[nodiscard]] std::shared_ptr<Exchange> answer(Generation& generation, const Json& body,
                                                 const Effort& effort) const {
    return with_names(kResponsesNames, [&] {
      bool is_long = false;
      ResponsesRequest::FindConversation find;
      if (store_->is_enabled()) {
        find = [&](const std::string& id) {
          const auto stored = store_->find(id);
          if (stored == nullptr)
            throw ApiError(404, concat("previous_response_id: there is no response '", id, "'"),
                           "previous_response_id", "previous_response_not_found");
          is_long = effort.is_short && stored->conversation.size() > kShortBytes;
          return is_long ? Json::array() : parse_json(stored->conversation);
        };
      }
      ResponsesRequest request = ResponsesRequest::parse(body, find);
      if (is_long) return std::shared_ptr<Exchange>();
      const ChatForm form{"responses", "resp_", "response", "response", [&](ChatSetup&& setup) {
                            return std::make_unique<ResponsesReply>(
                                std::move(setup), std::move(request.echo),
                                std::move(request.conversation), store_);
                          }};
      return generation.chat(std::move(request.chat), effort, form);
    });
  }

  // Each throws ApiError (404) if there is no response of this id.

  [[nodiscard]] std::shared_ptr<Exchange> show(const std::string& id,
                                               const std::string& target) const {
    const std::size_t query = std::min(target.find('?'), target.size());
    if (target.find("stream=true", query) != target.npos)
      throw ApiError(400, "stream must be false: a response that was kept comes whole", "stream");
    return std::make_shared<WholeExchange>("responses", HttpHead{}, find(id)->response);
  }
  [[nodiscard]] std::shared_ptr<Exchange> erase(const std::string& id) const {
    static_cast<void>(find(id));
    store_->erase(id);
    return json_reply("responses",
                      Json::object({{"id", id}, {"object", "response"}, {"deleted", true}}));
  }
  /// Also throws if there is one: only what runs in the background can be cancelled.
  [[nodiscard]] std::shared_ptr<Exchange> cancel(const std::string& id) const {
    static_cast<void>(find(id));
    throw ApiError(400,
                   "a response that has ended cannot be cancelled; to end one under way, close its "
                   "connection");
  }

 private:
  [[nodiscard]] std::shared_ptr<const StoredResponse> find(const std::string& id) const {
    if (!store_->is_enabled()) throw ApiError(404, "this server keeps no responses");
    if (id.find('/') != id.npos) throw ApiError(404, "there is nothing at this path");
    auto stored = store_->find(id);
    if (stored == nullptr)
      throw ApiError(404, concat("there is no response '", id,
                                 "' that has ended; one under way ends with its connection"));
    return stored;
  }

  const std::shared_ptr<ResponseStore> store_;
};

}  // namespace nanovllm::serve
