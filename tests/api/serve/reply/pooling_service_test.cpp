// /v1/embeddings, /score and /rerank over an engine: what the engine gives, in every form, and what
// is refused.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/api/serve/reply/pooled_reply.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "with/pooling/embedding_oracle.hpp"
#include "with/pooling/headless_models.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Vector = std::vector<float>;

namespace {

struct Served {
  HttpReply post(const std::string& target, const std::string& fields) {
    const auto exchange =
        service.handle({.method = "POST", .target = target, .body = "{" + fields + "}"});
    while (engine.step()) {
    }
    HttpReply reply{.head = *exchange->head()};
    while (exchange->take(reply.body)) {
    }
    return reply;
  }
  Json ask(const std::string& target, const std::string& fields) {
    const HttpReply reply = post(target, fields);
    INFO(reply.body);
    CHECK(reply.head.status == 200);
    return parse_json(reply.body);
  }
  void check_refused(const std::string& target, const std::string& fields, const Json& param,
                     const std::string& says) {
    const HttpReply reply = post(target, fields);
    INFO(reply.body);
    CHECK(reply.head.status == 400);
    const Json body = parse_json(reply.body);
    CHECK(body["error"]["param"] == param);
    CHECK_THAT(body["error"]["message"].string(), Contains(says));
    CHECK(service.num_unfinished() == 0);
  }

  const Json oracle = embedding_oracle();
  Engine<AnyModel, Float32Policy> engine{
      {.checkpoint = embedding_model(), .num_threads = 2, .max_model_len = 256}};
  OpenAiService service{engine,
                        {.score = {.yes = oracle["scores"]["yes"].get<TokenId>(),
                                   .no = oracle["scores"]["no"].get<TokenId>()}}};
};

std::vector<Vector> vectors_of(const Json& reply) {
  std::vector<Vector> out;
  for (const Json& element : reply["data"]) out.push_back(numbers<float>(element["embedding"]));
  return out;
}

/// The floats that a text in base64 stands for, decoded by another rule than to_base64's.
Vector from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 255);
  }
  Vector out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), 4 * out.size());
  return out;
}

std::string base64_of(const std::string& text) {
  return to_base64(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

TEST_CASE("base64 is that of RFC 4648", "[serve][pooling]") {
  CHECK(base64_of("") == "");
  CHECK(base64_of("f") == "Zg==");
  CHECK(base64_of("fo") == "Zm8=");
  CHECK(base64_of("foo") == "Zm9v");
  CHECK(base64_of("foobar") == "Zm9vYmFy");
}

TEST_CASE("embeddings are the engine's in every form", "[serve][pooling]") {
  Served served;
  const std::string two = R"("input": ["Once", "There was once a clockmaker."])";
  const std::vector<Vector> expected =
      embed(served.engine, {"Once", "There was once a clockmaker."});
  const Json reply = served.ask("/v1/embeddings", two);
  CHECK(reply["object"] == Json("list"));
  CHECK(reply["model"] == Json("nanovllm"));
  CHECK(reply["data"][1]["index"] == Json(1));
  CHECK(reply["data"][1]["object"] == Json("embedding"));
  const std::size_t num_tokens = numbers<TokenId>(served.oracle["embeddings"][0]["ids"]).size() +
                                 numbers<TokenId>(served.oracle["embeddings"][1]["ids"]).size();
  CHECK(reply["usage"]["prompt_tokens"] == Json(num_tokens));
  CHECK(reply["usage"]["total_tokens"] == Json(num_tokens));
  const std::vector<Vector> vectors = vectors_of(reply);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t k = 0; k < 256; ++k) CHECK(std::abs(vectors[i][k] - expected[i][k]) <= 1e-6f);
  }
  const Json base64 = served.ask("/v1/embeddings", two + R"(, "encoding_format": "base64")");
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(from_base64(base64["data"][i]["embedding"].string()) == vectors[i]);

  const std::string ids = served.oracle["embeddings"][0]["ids"].dump();
  for (const std::string& input : {std::string(R"("Once")"), ids, "[" + ids + "]"}) {
    CAPTURE(input);
    const auto one = vectors_of(served.ask("/v1/embeddings", R"("input": )" + input));
    REQUIRE(one.size() == 1);
    CHECK(std::abs(one[0][5] - expected[0][5]) <= 1e-6f);
  }
  const Json bare = served.ask("/v1/embeddings", R"("input": "Once", "add_special_tokens": false)");
  const std::vector<TokenId> bare_ids = served.engine.tokenizer().encode("Once");
  CHECK(bare["usage"]["prompt_tokens"] == Json(bare_ids.size()));
  CHECK(vectors_of(bare) ==
        vectors_of(served.ask("/v1/embeddings", R"("input": )" + Json(bare_ids).dump())));
  const auto few = vectors_of(served.ask("/v1/embeddings", two + R"(, "dimensions": 32)"));
  CHECK(few[1].size() == 32);
  CHECK(std::abs(few[1][3] - embed(served.engine, "There was once a clockmaker.",
                                   {.dimensions = 32})[3]) <= 1e-6f);
  const auto plain = vectors_of(served.ask("/v1/embeddings", two + R"(, "normalize": false)"));
  CHECK(std::abs(plain[1][3] / plain[1][4] - vectors[1][3] / vectors[1][4]) <= 1e-4f);
  CHECK(std::abs(plain[1][3] - vectors[1][3]) > 1e-3f);

  const Json cut = served.ask("/v1/embeddings", two + R"(, "truncate_prompt_tokens": 2)");
  CHECK(cut["usage"]["prompt_tokens"] == Json(4));  // the last of the text, and the token after it
  CHECK(served.service.num_unfinished() == 0);
}

TEST_CASE("/tokenize counts the tokens that are added to a text", "[serve][pooling]") {
  Served served;
  const Json text = served.ask("/tokenize", R"("prompt": "Once")");
  CHECK(numbers<TokenId>(text["tokens"]) ==
        numbers<TokenId>(served.oracle["templates"][0]["encode"][1][1]));
  const Json chat = served.ask("/tokenize", R"("messages": [{"role": "user", "content": "Once"}])");
  CHECK(numbers<TokenId>(chat["tokens"]).back() != numbers<TokenId>(text["tokens"]).back());
}

TEST_CASE("scores and rerankings are the engine's", "[serve][pooling]") {
  Served served;
  const Json& scores = served.oracle["scores"];
  const Json& cases = scores["cases"];
  Json documents = Json::array();
  std::size_t num_tokens = 0;
  for (const Json& one : cases) {
    documents.push_back(Json(one["document"]));
    num_tokens += one["num_tokens"].get<std::size_t>();
  }
  const std::string query = scores["query"].dump(), list = documents.dump();
  const auto check_score = [&](const Json& score, std::size_t i) {
    CHECK(std::abs(score.get<float>() - cases[i]["score"].get<float>()) <= 1e-5f);
  };
  const std::string all = concat("[", query, ",", query, ",", query, "]");
  for (const std::string& fields : {concat(R"("text_1": )", query, R"(, "text_2": )", list),
                                    concat(R"("queries": )", all, R"(, "documents": )", list)}) {
    const Json reply = served.ask("/v1/score", fields);
    CHECK(reply["object"] == Json("list"));
    CHECK(reply["usage"]["total_tokens"] == Json(num_tokens));
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(reply["data"][i]["index"] == Json(i));
      CHECK(reply["data"][i]["object"] == Json("score"));
      check_score(reply["data"][i]["score"], i);
    }
  }
  const std::string rerank = concat(R"("query": )", query, R"(, "documents": )", list);
  const Json reply = served.ask("/rerank", rerank);
  CHECK(reply["id"].string().starts_with("rerank-"));
  CHECK(reply["usage"]["total_tokens"] == Json(num_tokens));
  std::vector<std::size_t> order{0, 1, 2};
  std::ranges::sort(order, std::greater(),
                    [&](std::size_t i) { return cases[i]["score"].get<float>(); });
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& result = reply["results"][i];
    CHECK(result["index"] == Json(order[i]));
    CHECK(result["document"]["text"] == documents[order[i]]);
    check_score(result["relevance_score"], order[i]);
  }
  const Json best = served.ask("/v1/rerank", rerank + R"(, "top_n": 1, "return_documents": false)");
  CHECK(best["results"].size() == 1);
  CHECK(best["results"][0].find("document") == nullptr);
  CHECK(served.ask("/rerank", rerank + R"(, "top_n": 0)")["results"].size() == 3);
  // As Cohere's clients ask, without fields that other models need.
  const Json second = served.ask("/v2/rerank", rerank + R"(, "max_tokens_per_doc": 4096)");
  CHECK(second["results"] == reply["results"]);
  const Json cut = served.ask("/v2/rerank", rerank + R"(, "max_tokens_per_doc": 2)");
  CHECK(cut["usage"]["total_tokens"].get<std::size_t>() < num_tokens);
  CHECK(cut["results"][0]["document"]["text"].string().size() > 10);  // as it was given
  const Json objects = served.ask(
      "/rerank", concat(R"("query": )", query, R"(, "documents": [{"text": "A cat."}])"));
  CHECK(objects["results"][0]["document"]["text"] == Json("A cat."));
  const Json other = served.ask("/score", concat(R"("text_1": )", query, R"(, "text_2": )", list,
                                                 R"(, "instruction": "Find a lie")"));
  CHECK(std::abs(other["data"][0]["score"].get<float>() - cases[0]["score"].get<float>()) > 1e-4f);
}

TEST_CASE("a classifier scores by its head, and generates no text", "[serve][pooling]") {
  const Json oracle = score_head_oracle();
  Engine<AnyModel, Float32Policy> engine(
      {.checkpoint = classifier_model(0), .num_threads = 2, .max_model_len = 256});
  OpenAiService service(engine);
  const auto ask = [&](const char* target, const std::string& fields) {
    const auto exchange =
        service.handle({.method = "POST", .target = target, .body = "{" + fields + "}"});
    while (engine.step()) {
    }
    HttpReply reply{.head = *exchange->head()};
    while (exchange->take(reply.body)) {
    }
    return reply;
  };
  const Json& cases = oracle["scores"]["cases"];
  Json texts = Json::array();
  for (const Json& one : cases) texts.push_back(Json(one["document"]));
  const HttpReply reply = ask("/score", concat(R"("text_1": )", oracle["scores"]["query"].dump(),
                                               R"(, "text_2": )", texts.dump()));
  INFO(reply.body);
  CHECK(reply.head.status == 200);
  const Json data = parse_json(reply.body)["data"];
  REQUIRE(data.size() == cases.size());
  for (std::size_t i = 0; i < data.size(); ++i)
    CHECK(std::abs(data[i]["score"].get<float>() - cases[i]["score"].get<float>()) <= 1e-5f);
  const HttpReply refused = ask("/v1/completions", R"("prompt": "Once")");
  CHECK(refused.head.status == 400);
  CHECK_THAT(refused.body, Contains("this model generates no text: its checkpoint has no lm_head"));
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("what cannot be embedded or scored is refused by its field", "[serve][pooling]") {
  Served served;
  const auto refused = [&](const std::string& fields, const char* param, const char* says) {
    served.check_refused("/v1/embeddings", fields, Json(param), says);
  };
  std::string text;
  for (int i = 0; i < 100; ++i) text += "The old king went to the sea. ";
  refused("", "input", "input is missing");
  refused(R"("input": "")", "input", "must not be empty");
  refused(R"("input": [])", "input", "must not be empty");
  refused(R"("input": ["a", 3])", "input[1]", "of the same type as the first");
  refused(R"("input": [3, 9999])", "input", "token id 9999 is not in [0, vocab_size");
  refused(R"("input": "a", "encoding_format": "hex")", "encoding_format", "got 'hex'");
  refused(R"("input": "a", "dimensions": 0)", "dimensions", "an integer in [1, ");
  refused(R"("input": "a", "dimensions": 257)", "dimensions", "must be at most 256, got 257");
  refused(R"("input": "a", "add_special_tokens": 0)", "add_special_tokens", "true or false");
  refused(R"("input": "a", "truncation_side": "right")", "truncation_side", "can only be 'left'");
  refused(R"("input": "a", "endianness": "big")", "endianness", "must be 'little'");
  refused(R"("input": "a", "embed_dtype": "float16")", "embed_dtype", "must be 'float32'");
  refused(concat(R"("input": ")", text, '"'), "input", "maximum context length is 256");
  refused(R"("input": "a", "truncate_prompt_tokens": 0)", "truncate_prompt_tokens", "got 0");
  CHECK(served.ask("/v1/embeddings",
                   concat(R"("input": ")", text,
                          R"(", "truncate_prompt_tokens": -1)"))["usage"]["prompt_tokens"] ==
        Json(255));

  const auto unscored = [&](const std::string& fields, const char* param, const char* says) {
    served.check_refused("/score", fields, Json(param), says);
  };
  unscored(R"("text_2": "a")", "text_1", "is missing");
  unscored(R"("queries": "a")", "documents", "is missing");
  unscored(R"("text_1": ["a", "b"], "text_2": ["a", "b", "c"])", "text_2", "got 3");
  unscored(R"("text_1": "a", "text_2": [1])", "text_2[0]", "must be a string, got 1");
  unscored(R"("text_1": "a", "text_2": [])", "text_2", "must not be empty");
  unscored(R"("text_1": "a", "text_2": "b", "use_activation": false)", "use_activation",
           "can only be true");
  unscored(concat(R"("text_1": "a", "text_2": ["b", ")", text, R"("])"), "text_2[1]", "maximum");
  unscored(R"("text_1": "a", "text_2": "b", "truncate_prompt_tokens": 9)", "truncate_prompt_tokens",
           "one more than the template has, got 9");
  CHECK(served.ask("/score",
                   concat(R"("text_1": "a", "text_2": ")", text,
                          R"(", "truncate_prompt_tokens": -1)"))["usage"]["prompt_tokens"] ==
        Json(255));
  served.check_refused("/rerank", R"("query": "a", "documents": [{"content": "b"}])",
                       Json("documents[0].text"), "is missing");
  served.check_refused("/rerank", R"("query": "a", "documents": ["b"], "top_n": -1)", Json("top_n"),
                       "an integer in [0, ");

  OpenAiService plain(served.engine);
  const HttpReply reply = plain.answer(
      {.method = "POST", .target = "/score", .body = R"({"text_1": "a", "text_2": "b"})"});
  CHECK(reply.head.status == 400);
  CHECK_THAT(reply.body, Contains("the tokeniser has no token 'yes'"));
  CHECK(plain.answer({.method = "GET", .target = "/v1/embeddings"}).head.status == 405);
}
