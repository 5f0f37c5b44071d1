#include "nanovllm/api/serve/service.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/serve/replies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/api/serve/reply/generation.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/engine/request/frontend.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("an engine's errors become the reply's, wherever they come", "[serve]") {
  const std::int32_t failing = GENERATE(0, 1);
  for (const std::size_t behind : {1, 2, 3}) {
    ScriptedEngine engine;
    OpenAiService service(engine);
    engine.script = [&](std::size_t index, std::int32_t sample) {
      if (sample != failing) return Script{"Once"};  // ends by itself before
      return Script{"Once upon a time.", FinishReason::stop, index % 2 == 1 ? behind : 100};
    };
    const std::string fields = R"("prompt": ["A", "B"], "n": 2)";
    {
      const auto exchange = service.handle(completion_request(fields));
      const Json error = parse_json(follow(engine, *exchange))["error"];
      CHECK(exchange->head()->status == 500);
      CHECK(error["type"] == "server_error");
      CHECK_THAT(error["message"].string(), Contains("on fire"));
      CHECK(exchange->summary().outcome == "error");
    }
    const Answer answer =
        stream(engine, service, completion_request(fields + R"(, "stream": true)"));
    CHECK(answer.is_done);
    CHECK_THAT(text_of(answer.error, "message"), Contains("on fire"));
    for (const Message& message : answer.messages) CHECK(message.content.size() < 18);
    while (engine.step()) {
    }
    CHECK(service.num_unfinished() == 0);
  }
}

TEST_CASE("an engine that shuts down says so", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto exchange = service.handle(chat_request(""));
  const auto streamed = service.handle(chat_request(R"("stream": true)"));
  engine.step();
  engine.end_all(FinishReason::abort);
  CHECK(exchange->head()->status == 503);
  std::string body;
  CHECK_FALSE(streamed->take(body));
  const Answer answer = read_stream(body);
  CHECK(answer.messages.at(0).content == "Once");
  CHECK_THAT(text_of(answer.error, "message"), Contains("shutting down"));
}

TEST_CASE("what cannot be submitted takes back what was", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const std::size_t failing = GENERATE(0, 1, 2);
  const bool is_request = GENERATE(true, false);
  engine.on_submit = [&](std::size_t index) {
    if (index != failing) return;
    if (is_request) throw RequestError("this one cannot be served");
    throw std::runtime_error("what is this");
  };
  const auto exchange = service.handle(completion_request(R"("prompt": ["A", "B", "C"])"));
  CHECK(exchange->head()->status == (is_request ? 400 : 500));
  CHECK(engine.num_aborted() == failing);
  engine.step();
  CHECK(engine.num_alive() == 0);
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("requests that are refused", "[serve]") {
  ScriptedEngine engine;
  engine.max_tokens_in_all = 64;
  const auto compiler = std::make_shared<AnyForm>();
  OpenAiService service(engine, {.model_names = {"a/b"}, .constraints = compiler});
  ScriptedEngine large;
  OpenAiService plain(large);
  const auto refuse = [&](OpenAiService& by, const HttpRequest& request, int status,
                          const std::string& code, const std::string& param) {
    INFO(request.target << " " << request.body.substr(0, 200));
    const HttpReply reply = by.answer(request);
    CHECK(reply.head.status == status);
    CHECK(reply.head.content_type == "application/json");
    const Json error = parse_json(reply.body)["error"];
    CHECK(text_of(error, "code") == code);
    CHECK(text_of(error, "param") == param);
    return error["message"].string();
  };
  std::string words;
  for (int i = 0; i < 62; ++i) words += " time";
  const std::string overflow = "context_length_exceeded";
  CHECK_THAT(refuse(service, completion_request(R"("prompt": "time )" + words + words + "\""), 400,
                    overflow, "prompt"),
             Contains("maximum context length is 64 tokens. However, your request has 12"));
  for (int i = 0; i < 6; ++i) words += words;
  CHECK_THAT(
      refuse(service, completion_request(R"("prompt": ")" + words + "\""), 400, overflow, "prompt"),
      Contains("has at least "));
  CHECK_THAT(refuse(service, completion_request(R"("prompt": "Once", "max_tokens": 64)"), 400,
                    overflow, "max_tokens"),
             Contains("64 tokens") && Contains("65 tokens"));
  refuse(service, chat_request(R"("max_completion_tokens": 64)"), 400, overflow, "max_tokens");
  refuse(service, chat_request(R"("model": "b")"), 404, "model_not_found", "model");
  refuse(service, chat_request(R"("n": 0)"), 400, "", "n");
  for (const std::string field : {"stop_token_ids", "allowed_token_ids"})
    refuse(service, chat_request('"' + field + R"(": [999999])"), 400, "", field);
  refuse(service, chat_request(R"("logit_bias": {"999999": 1})"), 400, "", "logit_bias");
  refuse(service, completion_request(R"("prompt": [999999])"), 400, "", "prompt");
  refuse(service, {.method = "POST", .target = "/v1/chat/completions", .body = "{"}, 400, "", "");
  refuse(service, {.target = "/v1/models/b"}, 404, "model_not_found", "model");
  refuse(service, {.target = "/v2"}, 404, "", "");
  refuse(service, {.method = "DELETE", .target = "/v1/models/a%2Fb"}, 405, "", "");
  refuse(service, {.target = "/v1/chat/completions"}, 405, "", "");
  const std::string schema = R"("response_format": {"type": "json_schema", "json_schema":
      {"name": "x", "schema": {"type": "object", "refuse": 1}}})";
  CHECK_THAT(refuse(service, chat_request(schema), 400, "", "response_format"),
             Contains("'refuse' is not supported"));
  refuse(plain, chat_request(schema), 400, "", "response_format");
  refuse(plain, chat_request(kTools + R"(, "tool_choice": "required")"), 400, "", "tool_choice");
  OpenAiService callless(large,
                         {.constraints = compiler, .tool_call_format = ToolCallFormat::none});
  refuse(callless, chat_request(kTools + R"(, "tool_choice": "required")"), 400, "", "tool_choice");
  CHECK(engine.num_submitted() == 0);
  CHECK(service.num_unfinished() == 0);
  CHECK(service.answer({.method = "PUT", .target = "/health"}).head.headers.at(0).second ==
        "GET, HEAD");
}

TEST_CASE("a queue that is full, and a service that drains", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.max_num_seqs = 2, .max_queue = 1});
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (int i = 0; i < 3; ++i) exchanges.push_back(service.handle(chat_request("")));
  const auto refused = service.handle(chat_request(""));
  CHECK(refused->head()->status == 429);
  CHECK(refused->head()->headers.at(0) == std::pair<std::string, std::string>{"Retry-After", "1"});
  CHECK(service.num_unfinished() == 3);
  exchanges[0]->cancel();
  engine.step();
  CHECK(service.num_unfinished() == 2);
  exchanges[0] = service.handle(chat_request(""));
  CHECK(exchanges[0]->head() == nullptr);
  service.drain();
  CHECK(service.handle(chat_request(""))->head()->status == 503);
  CHECK(service.answer({.target = "/health"}).head.status == 503);
  for (const auto& exchange : exchanges) CHECK(follow(engine, *exchange).size() > 100);
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("models, tokens, health and metrics", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.model_names = {"org/tales", "tales"}});
  const auto get = [&](const std::string& target) { return service.answer({.target = target}); };
  const Json models = parse_json(get("/v1/models?x=1").body);
  CHECK(models["object"] == "list");
  REQUIRE(models["data"].size() == 2);
  const Json& model = models["data"][1];
  CHECK(model["id"] == "tales");
  CHECK(model["object"] == "model");
  CHECK(model["root"] == "org/tales");
  CHECK(model["max_model_len"] == 4096);
  CHECK(parse_json(get("/v1/models/org/tales").body)["id"] == "org/tales");
  CHECK(parse_json(get("/v1/models/org%2Ftales").body)["id"] == "org/tales");
  CHECK(parse_json(get("HTTP://any.host:80/v1/models/tales?x=1").body)["id"] == "tales");
  CHECK(get("https://any.host/health").head.status == 200);
  CHECK(get("http://any.host").head.status == 404);
  CHECK(get("/health").head.status == 200);
  CHECK(get("/ping").head.status == 200);
  engine.state = {.state = Health::State::hung, .reason = "a step", .seconds = 9};
  CHECK(get("/health").head.status == 503);
  CHECK(parse_json(get("/version").body)["version"].is_string());
  CHECK_THAT(get("/metrics").body,
             Contains("vllm:num_requests_running{") && Contains("model_name=\"org/tales\""));
  const Json stats = parse_json(get("/stats").body);
  CHECK(stats["status"] == "hung");
  CHECK(stats["num_preparing"] == 0);
  CHECK(stats["kv_blocks"].is_null());  // an engine that does not say
  CHECK(stats["time"].get<double>() <= parse_json(get("/stats").body)["time"].get<double>());
  const auto post = [&](const std::string& target, const std::string& body) {
    return parse_json(service.answer({.method = "POST", .target = target, .body = body}).body);
  };
  const Json tokens = post("/tokenize", R"({"prompt": "Once upon", "return_token_strs": true})");
  CHECK(tokens["count"] == 2);
  CHECK(tokens["max_model_len"] == 4096);
  CHECK(tokens["token_strs"].dump() == R"(["Once", " upon"])");
  CHECK(post("/detokenize", R"({"tokens": )" + tokens["tokens"].dump() + "}").dump() ==
        R"({"prompt": "Once upon"})");
  CHECK(post("/v1/tokenize", R"({"prompt": "Once upon", "return_token_strs": true})") == tokens);
  CHECK(post("/v1/detokenize", R"({"tokens": )" + tokens["tokens"].dump() + "}").dump() ==
        R"({"prompt": "Once upon"})");
  CHECK(post("/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})")["count"]
            .get<int>() > 5);
}

TEST_CASE("requests are counted once, however many choices they have", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto count = [&](const std::string& name) {
    const std::string text = service.answer({.target = "/metrics"}).body;
    double sum = 0;
    for (std::size_t at = 0; (at = text.find('\n' + name + '{', at)) != std::string::npos; ++at)
      sum += std::stod(text.substr(text.find("} ", at) + 2));
    return sum;
  };
  for (const std::string fields :
       {R"("n": 3)", R"("n": 2, "stream": true)", R"("n": 1, "best_of": 2)"}) {
    INFO(fields);
    const double before = count("vllm:request_success_total");
    static_cast<void>(
        follow(engine, *service.handle(completion_request(R"("prompt": "A", )" + fields))));
    CHECK(count("vllm:request_success_total") == before + 1);
    CHECK(count("nanovllm:requests_finished_total") == before + 1);
  }
  static_cast<void>(
      follow(engine, *service.handle(completion_request(R"("prompt": ["A", "B"], "n": 2)"))));
  CHECK(count("vllm:request_success_total") == 5);  // a prompt is a request to the engine
  service.handle(completion_request(R"("prompt": "A", "n": 2)"))->cancel();
  engine.step();
  CHECK(count("vllm:request_success_total") == 6);
  CHECK_THAT(service.answer({.target = "/metrics"}).body,
             Contains("finished_reason=\"abort\"} 1\n"));
}

TEST_CASE("ids without a token are refused by /detokenize", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const HttpReply reply = service.answer(
      {.method = "POST", .target = "/detokenize", .body = R"({"tokens": [5, 999999]})"});
  CHECK(reply.head.status == 400);
  const Json error = parse_json(reply.body)["error"];
  CHECK(error["param"] == "tokens[1]");
  CHECK_THAT(error["message"].string(), Contains("got 999999"));
}

TEST_CASE("many threads, some of which leave", "[serve]") {
  ScriptedEngine engine;
  engine.script = [](std::size_t index, std::int32_t) {
    return Script{index % 3 == 0 ? "<think>\nHm\n</think>\n\nYes. " + kCall1
                                 : "Once upon a time there was a king."};
  };
  OpenAiService service(engine, {.max_num_seqs = 4, .max_queue = 8});
  const HttpRequest streamed = chat_request(kTools + R"(, "stream": true, "n": 2)");
  const HttpRequest request = completion_request(R"("prompt": ["A", "B"], "logprobs": 1)");
  std::atomic<int> num_whole = 0, num_refused = 0;
  {
    const std::jthread runner([&](const std::stop_token& stop) { engine.run(stop); });
    std::vector<std::jthread> clients;
    for (int client = 0; client < 8; ++client) {
      clients.emplace_back([&, client] {
        for (int i = 0; i < 30; ++i) {
          if (client % 2 == 0) {
            const HttpReply reply = service.answer(i % 2 == 0 ? streamed : request);
            (reply.head.status == 200 ? num_whole : num_refused) += 1;
            continue;
          }
          const auto exchange = service.handle(streamed);
          static_cast<void>(exchange->head());
          std::string body;
          for (int k = 0; k < i % 5 && exchange->take(body); ++k) {
            const auto woken = std::make_shared<std::atomic<bool>>(false);
            exchange->notify([woken] {
              *woken = true;
              woken->notify_one();
            });
            woken->wait(false);
          }
          if (i % 3 == 0) {
            const std::jthread canceller([&] { exchange->cancel(); });
            while (exchange->take(body)) std::this_thread::yield();
          }
          static_cast<void>(exchange->summary());
          static_cast<void>(service.num_unfinished());
        }
      });
    }
    clients.clear();
    while (service.num_unfinished() > 0) std::this_thread::yield();
  }
  CHECK(num_whole + num_refused == 120);
  CHECK(num_whole > 0);
  CHECK(engine.num_alive() == 0);
}

namespace {

/// Compiles nothing before it is let, or stopped.
struct SlowCompiler final : ConstraintCompiler {
  std::shared_ptr<const TokenMaskSource> compile(const OutputConstraint& constraint,
                                                 std::stop_token stop = {}) override {
    is_compiling = true;
    while (!is_done && !stop.stop_requested()) std::this_thread::yield();
    if (stop.stop_requested()) throw CompileCancelled("stopped");
    throw RequestError("'" + constraint.text + "' is not taken");
  }
  bool is_known(const OutputConstraint& constraint) const override {
    return is_done || constraint.kind == OutputConstraint::Kind::none;
  }
  std::atomic<bool> is_compiling = false, is_done = false;
};

}  // namespace

TEST_CASE("what takes long is told from what does not, and can be stopped", "[serve]") {
  ScriptedEngine engine;
  const auto compiler = std::make_shared<SlowCompiler>();
  OpenAiService service(engine, {.constraints = compiler});
  const HttpRequest plain = chat_request("");
  const HttpRequest formed = chat_request(R"("guided_regex": "a+")");

  REQUIRE(service.try_handle(plain) != nullptr);
  CHECK(service.try_handle(formed) == nullptr);
  const std::string long_text(std::size_t{20} << 10, 'a');
  CHECK(service.try_handle(completion_request(R"("prompt": ")" + long_text + '"')) == nullptr);
  CHECK(service.try_handle({"POST", "/tokenize", R"({"prompt": ")" + long_text + "\"}"}) ==
        nullptr);
  std::string documents = R"("a")";
  for (int i = 0; i < 500; ++i) documents += R"(, "a")";
  const HttpRequest scores{
      "POST", "/rerank",
      R"({"query": ")" + std::string(10'000, 'q') + R"(", "documents": [)" + documents + "]}"};
  CHECK(scores.body.size() < kShortBytes);  // but each of the prompts has the query
  CHECK(service.try_handle(scores) == nullptr);
  CHECK(service.num_unfinished() == 1);  // nothing was done for all of these

  // Stopped within the compilation, and before it.
  std::stop_source stop;
  std::shared_ptr<Exchange> exchange;
  {
    const std::jthread thread([&] { exchange = service.handle(formed, stop.get_token()); });
    while (!compiler->is_compiling) std::this_thread::yield();
    stop.request_stop();
  }
  CHECK(exchange->head()->status == 503);
  CHECK(service.handle(plain, stop.get_token())->head()->status == 503);
  CHECK(engine.num_submitted() == 1);

  compiler->is_done = true;  // and known from now on
  exchange = service.try_handle(formed);
  REQUIRE(exchange != nullptr);
  CHECK(exchange->head()->status == 400);
  CHECK(service.num_unfinished() == 1);
}

TEST_CASE("long texts are given up when the service is told to stop", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {});
  std::string text;
  while (text.size() < std::size_t{4} << 20) text += "Once upon a time there was a fox. ";
  const std::string messages = R"("messages": [{"role": "user", "content": ")" + text + "\"}]";
  const std::string prompt = R"("prompt": ")" + text + '"';
  const std::string truncated = R"("truncate_prompt_tokens": 8, )";
  const std::string input = R"("input": ")" + text + '"';
  for (const auto& [target, fields] : {std::pair<std::string, std::string>{"/tokenize", prompt},
                                       {"/tokenize", messages},
                                       {"/v1/completions", truncated + prompt},
                                       {"/v1/chat/completions", truncated + messages},
                                       {"/v1/embeddings", truncated + input}}) {
    INFO(target);
    const HttpRequest request{"POST", target, "{" + fields + "}"};
    const auto begin = std::chrono::steady_clock::now();
    const auto answered = service.handle(request);
    const auto whole = std::chrono::steady_clock::now() - begin;
    answered->cancel();
    std::shared_ptr<Exchange> exchange;
    for (int attempt = 0; attempt < 20; ++attempt) {  // on busy cores the stop may come too late
      std::stop_source stop;
      const std::jthread stopper([&] {
        std::this_thread::sleep_for(whole / 4);
        stop.request_stop();
      });
      exchange = service.handle(request, stop.get_token());
      if (exchange->head() != nullptr && exchange->head()->status == 503) break;
      exchange->cancel();
    }
    REQUIRE(exchange->head() != nullptr);
    REQUIRE(exchange->head()->status == 503);
    CHECK(exchange->head()->headers.at(0).first == "Retry-After");
    engine.step();
    CHECK(service.num_unfinished() == 0);
  }
}

TEST_CASE("requests that are being prepared fill the queue and are shown", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.max_num_seqs = 1, .max_queue = 1});
  const HttpRequest chat = chat_request("");
  const HttpRequest health{"GET", "/health", ""};
  CHECK(service.arrive(health).exchange != nullptr);
  CHECK(service.arrive({"POST", "/nowhere", ""}).exchange->head()->status == 404);
  CHECK(service.arrive({"GET", "/tokenize", ""}).exchange->head()->status == 405);
  {
    const Arrival first = service.arrive(chat), second = service.arrive(chat);
    CHECK(first.exchange == nullptr);
    CHECK(second.exchange == nullptr);
    CHECK(parse_json(service.answer(health).body)["num_preparing"].get<int>() == 2);
    CHECK_THAT(service.answer({"GET", "/metrics", ""}).body,
               Contains("num_requests_preparing{model_name=\"nanovllm\"} 2"));
    const Arrival third = service.arrive(chat);
    REQUIRE(third.exchange != nullptr);
    CHECK(third.exchange->head()->status == 429);
    CHECK(service.arrive({"POST", "/tokenize", ""}).exchange == nullptr);  // needs no place
    CHECK(service.try_handle(chat) != nullptr);                            // of the first
  }
  CHECK(parse_json(service.answer(health).body)["num_preparing"].get<int>() == 0);
  CHECK(service.arrive(chat).exchange == nullptr);
  service.drain();
  CHECK(service.arrive(chat).exchange->head()->status == 503);
}

TEST_CASE("/openapi.json has the routes that there are, and their bodies' fields", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.model_names = {"nanovllm", "tale"}});
  const Json document = parse_json(service.answer({"GET", "/openapi.json", ""}).body);
  std::size_t num_operations = 0;
  for (const auto& [path, methods] : document["paths"].items()) {
    std::string target(path);
    if (const auto name = target.find("{model}"); name != std::string::npos)
      target.replace(name, std::string::npos, "nanovllm");
    for (const auto& [method, operation] : methods.items()) {
      ++num_operations;
      INFO(method << " " << target);
      if (target.find("{id}") != std::string::npos) {  // of a response; this service keeps none
        const std::string verb = method == "get" ? "GET" : method == "post" ? "POST" : "DELETE";
        CHECK(service.answer({verb, target, ""}).head.status == 404);
        CHECK(service.answer({"PUT", target, ""}).head.status == 405);
        continue;
      }
      const bool is_get = method == "get";
      const HttpReply reply = service.answer({is_get ? "GET" : "POST", target, is_get ? "" : "{}"});
      CHECK(reply.head.status == (is_get ? 200 : 400));
      CHECK(operation["responses"]["200"]["content"].find(
                reply.head.content_type.substr(0, reply.head.content_type.find(';'))) != nullptr);
      CHECK(service.answer({is_get ? "POST" : "GET", target, ""}).head.status == 405);
      if (is_get) continue;
      const std::string reference(
          operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].string());
      const Json& body =
          document["components"]["schemas"][reference.substr(reference.rfind('/') + 1)];
      CHECK(body["properties"]["model"].dump() == R"({"enum": ["nanovllm", "tale"]})");
      for (const Json& field : body["required"])
        CHECK(body["properties"].find(field.string()) != nullptr);
      if (body["required"].empty()) continue;
      const Json error = parse_json(reply.body)["error"];
      CHECK_THAT(error["message"].string(), StartsWith(body["required"][0].string()));
      if (target.starts_with("/v1/messages")) continue;  // its errors have no param
      CHECK(error["param"] == body["required"][0]);
    }
  }
  CHECK(num_operations >= 22);
  const Json& chat = document["components"]["schemas"]["ChatCompletionRequest"]["properties"];
  CHECK(chat["top_p"].dump() == R"({"type": "number", "minimum": 0.0, "maximum": 1.0})");
  CHECK(chat["n"].dump() == R"({"type": "integer", "minimum": 1, "maximum": 128})");
  CHECK(chat["max_completion_tokens"] == chat["max_tokens"]);
  CHECK(chat["top_logprobs"]["maximum"] == kMaxLogprobs);
  CHECK(chat["logprobs"].dump() == R"({"type": "boolean"})");
  CHECK(chat["messages"]["maxItems"] == 16384);
  CHECK(chat["tools"]["maxItems"] == 128);
  // Each body has the fields of sampling that its route takes, and no other.
  for (const SamplingField& field : kSamplingFields) {
    INFO(field.name);
    const bool is_of_beams = field.name == "best_of" || field.name == "beam_width" ||
                             field.name == "length_penalty" || field.name == "early_stopping";
    const bool is_absent = field.name == "logprob_token_ids";
    CHECK((chat.find(field.name) == nullptr) == (is_of_beams || is_absent));
    const Json& completion = document["components"]["schemas"]["CompletionRequest"]["properties"];
    CHECK((completion.find(field.name) == nullptr) == is_absent);
  }
}

TEST_CASE("the tokens of a prompt are counted once", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {});
  const auto exchange =
      service.handle(completion_request(R"("prompt": [[5, 6, 7], [8, 9]], "n": 2)"));
  while (engine.step()) {
  }
  CHECK_THAT(service.answer({"GET", "/metrics", ""}).body,
             Contains("prompt_tokens_total{model_name=\"nanovllm\"} 5\n"));
}

TEST_CASE("the fairytale model answers", "[serve]") {
  Engine<Qwen3<shapes::qwen3_any>> engine(
      EngineConfig{.model = "examples/models/fairytale", .num_threads = 1});
  const auto vocabulary =
      std::make_shared<GrammarVocabulary>(*engine.text().tokenizer, engine.eos_token_ids());
  const auto compiler = std::make_shared<CachedConstraintCompiler>(
      std::make_shared<OutputConstraintCompiler>(vocabulary));
  OpenAiService service(engine, {.model_names = {"fairytale"}, .constraints = compiler});
  const std::jthread runner([&](const std::stop_token& stop) { engine.run(stop); });
  const auto ask = [&](const HttpRequest& request) {
    const HttpReply reply = service.answer(request);
    INFO(reply.body);
    REQUIRE(reply.head.status == 200);
    return reply.head.is_stream ? read_stream(reply.body) : read_reply(reply.body);
  };
  const std::string seeded = R"("max_tokens": 24, "seed": 7, "logprobs": true, "n": 2)";
  const Answer expected = ask(chat_request(seeded));
  const Answer answer =
      ask(chat_request(seeded + R"(, "stream": true, "stream_options": {"include_usage": true})"));
  CHECK(answer.messages == expected.messages);
  CHECK(answer.usage["completion_tokens"] == expected.usage["completion_tokens"]);
  CHECK(expected.messages[0].logprobs.size() +
            static_cast<std::size_t>(expected.messages[1].logprobs.size()) ==
        expected.usage["completion_tokens"].get<std::size_t>());

  const Answer stopped = ask(completion_request(
      R"("prompt": ["Once upon", "The wedding"], "temperature": 0, "max_tokens": 60,
         "stop": ["the", "xyz"])"));
  CHECK(stopped.messages[0].stop_reason == "the");
  CHECK(stopped.messages[0].content.find("the") == std::string::npos);
  const Answer best = ask(completion_request(
      R"("prompt": "Once upon", "best_of": 3, "n": 2, "max_tokens": 5, "logprobs": 0)"));
  CHECK(best.messages.size() == 2);
  CHECK(best.usage["completion_tokens"] == 10);
  const Answer beams = ask(completion_request(
      R"("prompt": "Once upon", "use_beam_search": true, "n": 2, "max_tokens": 5)"));
  CHECK(beams.messages.size() == 2);
  const Answer scored = ask(completion_request(
      R"("prompt": "Once upon a time", "echo": true, "logprobs": 1, "max_tokens": 0)"));
  CHECK(scored.messages[0].content == "Once upon a time");
  for (const char* thinking : {"", R"(, "chat_template_kwargs": {"enable_thinking": true})",
                               R"(, "chat_template_kwargs": {"enable_thinking": false})"}) {
    const Answer held = ask(chat_request(concat(
        R"("structured_outputs": {"choice": ["foxes", "ravens"]}, "temperature": 0)", thinking)));
    CHECK((held.messages[0].content == "foxes" || held.messages[0].content == "ravens"));
    CHECK(held.messages[0].finish_reason == "stop");
  }
  CHECK(service.answer(chat_request(R"("max_tokens": 5000)")).head.status == 400);
  CHECK(service.answer(chat_request(R"("min_tokens": 9, "max_tokens": 3)")).head.status == 400);
  const Json refused =
      parse_json(service.answer(chat_request(R"("logit_bias": {"9999": 1})")).body);
  CHECK_THAT(refused["error"]["message"].string(), Contains("9999"));
  CHECK(service.num_unfinished() == 0);
  engine.check_invariants();
}
