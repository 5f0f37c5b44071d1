#include "nanovllm/with/sessions/conversation.hpp"

#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"

using namespace nanovllm;

namespace {

/// Of a model without a tokeniser and with the end token 9.
struct NoText {
  Inbox inbox;
  Frontend frontend{
      TextSide{.chat_template = LazyChatTemplate("there is none")},
      AdmissionRules{
          .vocab_size = 10, .eos_token_ids = {9}, .max_model_len = 100, .max_total_tokens = 100},
      inbox};
};

Output output_of(std::vector<TokenId> tokens, FinishReason reason) {
  Output out;
  out.token_ids = std::move(tokens);
  out.finish_reason = reason;
  out.text = "an answer";
  return out;
}

}  // namespace

TEST_CASE("tokens are put after tokens, and the conversation stays as it was", "[conversation]") {
  const NoText engine;
  const Conversation before{.tokens = {1, 2}};
  const Conversation turn = before.with(std::vector<TokenId>{3, 4}, engine.frontend);
  CHECK(turn.tokens == std::vector<TokenId>{1, 2, 3, 4});
  CHECK(turn.messages.empty());
  CHECK(before.tokens == std::vector<TokenId>{1, 2});
  CHECK(before.with(std::vector<TokenId>{}, engine.frontend).tokens == before.tokens);
}

TEST_CASE("what an answer adds depends on how it ended", "[conversation]") {
  const NoText engine;
  const auto added = [&](const Output& output, const SamplingParams& params) {
    Conversation turn{.tokens = {1}};
    turn.add(output, params, engine.frontend);
    return std::vector<TokenId>(turn.tokens.begin() + 1, turn.tokens.end());
  };
  using Tokens = std::vector<TokenId>;
  CHECK(added(output_of({5, 6}, FinishReason::length), {}) == Tokens{5, 6});
  CHECK(added(output_of({5, 9}, FinishReason::stop), {}) == Tokens{5});  // the end token
  SamplingParams own;
  own.stop_token_ids = {6};
  own.ignore_eos = true;
  CHECK(added(output_of({9, 6}, FinishReason::stop), own) == Tokens{9});
  CHECK(added(output_of({}, FinishReason::stop), {}).empty());
}

TEST_CASE("an answer to messages is a message", "[conversation]") {
  const NoText engine;
  Conversation turn{.tokens = {1}, .messages = {{"user", "hello"}}};
  turn.add(output_of({5}, FinishReason::length), {}, engine.frontend);
  REQUIRE(turn.messages.size() == 2);
  CHECK(turn.messages[1].role() == "assistant");
  CHECK(turn.messages[1].fields()["content"].string() == "an answer");
}

TEST_CASE("messages and tokens are not mixed", "[conversation]") {
  const NoText engine;
  const Conversation of_tokens{.tokens = {1}}, of_messages{.messages = {{"user", "hello"}}};
  CHECK_THROWS_WITH(of_tokens.with(ChatPrompt{.messages = {{"user", "x"}}}, engine.frontend),
                    "session: messages cannot be put after a conversation of 1 tokens; clear it "
                    "first");
  CHECK_THROWS_WITH(of_messages.with(std::vector<TokenId>{1}, engine.frontend),
                    "session: text and tokens cannot be put after a conversation of 1 messages; "
                    "clear it first");
  CHECK_THROWS_WITH(
      Conversation{}.with(ChatPrompt{.messages = {{"user", "x"}}}, engine.frontend),
      Catch::Matchers::Contains("there is none") || Catch::Matchers::Contains("tokeniser"));
}
