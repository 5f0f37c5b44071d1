// The service over GPT-2, which no line of it names: completions are those of transformers and of the
// engine, and what needs a chat template says so.

#include <cstddef>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "api/serve/replies.hpp"
#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/parity/parity.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/make_engine.hpp"
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "weights_there.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

constexpr const char* kModel = "examples/models/tiny_gpt2";

class Server {
 public:
  /// The body of a reply of this status.
  std::string ask(const HttpRequest& request, int status = 200) {
    const HttpReply reply = service_.answer(request);
    INFO(reply.body);
    REQUIRE(reply.head.status == status);
    return reply.body;
  }

  [[nodiscard]] const Tokenizer& tokenizer() const { return *engine_->text().tokenizer; }

 private:
  std::unique_ptr<AnyEngine> engine_ =
      make_engine<AllModels, Float32Policy>({.model = kModel, .num_threads = 1});
  OpenAiService service_{*engine_, {.model_names = {"tiny_gpt2"}}};
  std::jthread runner_{[this](const std::stop_token& stop) { engine_->run(stop); }};
};

std::string json_of(const std::vector<TokenId>& tokens) {
  Json out = Json::array();
  for (const TokenId token : tokens) out.push_back(token);
  return out.dump();
}

}  // namespace

TEST_CASE("completions of GPT-2 have the tokens of transformers", "[serve][gpt2]") {
  if (!weights_there("tiny_gpt2")) return;
  Server server;
  const Reference reference("tiny_gpt2", "float32");
  for (std::size_t p = 0; p < reference.num_prompts(); ++p) {
    const std::vector<TokenId> expected = reference.values<std::int32_t>(p, "greedy_ids");
    const std::string fields = concat(
        R"("prompt": )", json_of(reference.prompt(p)),
        R"(, "temperature": 0, "ignore_eos": true, "return_token_ids": true, "max_tokens": )",
        expected.size());
    const Answer answer = read_reply(server.ask(completion_request(fields)));
    CHECK(answer.messages[0].token_ids == parse_json(json_of(expected)));
    CHECK(answer.messages[0].content == server.tokenizer().decode(expected));
    const Answer streamed =
        read_stream(server.ask(completion_request(fields + R"(, "stream": true)")));
    CHECK(streamed.messages[0].content == answer.messages[0].content);
  }
}

TEST_CASE("a text completed by the service is the engine's own", "[serve][gpt2]") {
  if (!weights_there("tiny_gpt2")) return;
  Server server;
  Engine<Gpt2<shapes::gpt2_any>, Float32Policy> direct({.model = kModel, .num_threads = 1});
  const std::string prompt = "Once upon a time there was a fox";
  const Answer answer = read_reply(server.ask(
      completion_request(R"("temperature": 0, "max_tokens": 20, "prompt": ")" + prompt + "\"")));
  const Output expected = direct.generate(prompt, {.temperature = 0, .max_tokens = 20});
  CHECK(answer.messages[0].content == expected.text);
  CHECK(answer.usage["prompt_tokens"] == expected.num_prompt_tokens);
}

TEST_CASE("a chat with a model without a chat template is refused, and why", "[serve][gpt2]") {
  if (!weights_there("tiny_gpt2")) return;
  Server server;
  for (const std::string fields : {"", R"("stream": true)", R"("max_tokens": 3)"}) {
    const Answer answer = read_reply(server.ask(chat_request(fields), 400));
    CHECK(answer.error["message"].string().find("messages need a chat template: no chat template: "
                                                "'examples/models/tiny_gpt2' has neither") == 0);
    CHECK(answer.error["param"] == "messages");
  }
  const std::string tokenized =
      server.ask({.method = "POST", .target = "/tokenize", .body = R"({"prompt": "Once upon"})"});
  CHECK(parse_json(tokenized)["tokens"] ==
        parse_json(json_of(server.tokenizer().encode("Once upon"))));
}
