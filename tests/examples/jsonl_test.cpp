/// Lines of the batch tool: what they ask for, what is wrong with them, and the lines that answer.

#include "../../examples/jsonl.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "catch.hpp"

namespace nv = nanovllm;
using nv::Json;
using nv::TokenId;
using nv::examples::BatchLine;
using nv::examples::error_line;
using nv::examples::parse_batch_line;
using nv::examples::result_line;

namespace {

BatchLine good(const std::string& text) {
  const auto line = parse_batch_line(text);
  REQUIRE(line);
  INFO(line->error);
  REQUIRE(line->request);
  CHECK(line->error.empty());
  return *line;
}

/// The error of a bad line; its id goes to `id`.
std::string bad(const std::string& text, std::string* id = nullptr) {
  CAPTURE(text);
  const auto line = parse_batch_line(text);
  REQUIRE(line);
  CHECK_FALSE(line->request);
  CHECK_FALSE(line->error.empty());
  if (id) *id = line->id.dump();
  return line->error;
}

nv::SamplingParams sampling(const std::string& fields) {
  return good(R"({"id":1,"prompt":"x","sampling":)" + fields + "}").request->sampling;
}

std::string bad_sampling(const std::string& fields) {
  return bad(R"({"id":1,"prompt":"x","sampling":)" + fields + "}");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

template <class T>
const T& prompt(const BatchLine& line) {
  return std::get<T>(line.request->prompt);
}

}  // namespace

TEST_CASE("a line asks with a text or token ids or messages") {
  CHECK(prompt<std::string>(good(R"({"id":"a","prompt":"Once é\u00e9\n"})")) == "Once éé\n");
  CHECK(prompt<std::vector<TokenId>>(good(R"( {"prompt_token_ids":[0,5,2147483647],"id":7} )")) ==
        std::vector<TokenId>{0, 5, 2147483647});
  const BatchLine chat = good(
      R"({"id":1,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null}],)"
      R"("tools":[{"name":"f"}],"enable_thinking":false})");
  const auto& conversation = prompt<nv::ChatPrompt>(chat);
  REQUIRE(conversation.messages.size() == 2);
  CHECK(conversation.messages[0].find("content")->get<std::string>() == "Hi");
  CHECK(conversation.messages[1].find("content")->is_null());
  CHECK(conversation.options.tools.dump() == R"([{"name": "f"}])");
  CHECK(conversation.options.enable_thinking == false);
  CHECK(conversation.options.add_generation_prompt);
}

TEST_CASE("null counts as absent and foreign fields are ignored") {
  const BatchLine line = good(
      R"({"id":1,"prompt":null,"prompt_token_ids":null,"messages":[{"role":"user","content":"x"}],)"
      R"("tools":null,"enable_thinking":null,"sampling":null,"source":{"file":"a"}})");
  const auto& chat = prompt<nv::ChatPrompt>(line);
  CHECK(chat.options.tools.is_null());
  CHECK_FALSE(chat.options.enable_thinking.has_value());
  CHECK(line.request->sampling.max_tokens == nv::SamplingParams{}.max_tokens);
  CHECK(prompt<std::string>(good(R"({"id":1,"prompt":"x","tools":null})")) == "x");
}

TEST_CASE("text parts of content are joined") {
  const BatchLine line = good(R"({"id":1,"messages":[{"role":"user","content":)"
                              R"([{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  CHECK(*prompt<nv::ChatPrompt>(line).messages[0].find("content") == "a\nb");
  CHECK(contains(bad(R"({"id":1,"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
                 "messages[0]"));
}

TEST_CASE("an id is echoed as it was given") {
  const auto echo = [](const std::string& id) {
    return error_line(good("{\"prompt\":\"x\",\"id\":" + id + "}").id, "e");
  };
  CHECK(echo("\"a\\u00e9\\n\\\"\"") == "{\"id\": \"aé\\n\\\"\", \"error\": \"e\"}\n");
  CHECK(echo("\"\"") == "{\"id\": \"\", \"error\": \"e\"}\n");
  for (const std::string number :
       {"0", "-5", "1.5", "1e-07", "9007199254740993", "18446744073709551615",
        "123456789012345678901234567890", "-99999999999999999999999"})
    CHECK(echo(number) == "{\"id\": " + number + ", \"error\": \"e\"}\n");
}

TEST_CASE("sampling holds the fields of SamplingParams by their names") {
  const nv::SamplingParams p = sampling(R"({"temperature":0.5,"n":2,"stop":"a","seed":null})");
  CHECK(p.temperature == 0.5f);
  CHECK(p.n == 2);
  CHECK(p.stop == std::vector<std::string>{"a"});
  CHECK_FALSE(p.seed);
  CHECK(sampling("{}").max_tokens == nv::SamplingParams{}.max_tokens);
  CHECK(contains(bad_sampling(R"({"temprature":1})"), "\"temprature\""));
  CHECK(bad_sampling(R"({"n":"x"})") == "n must be an integer in [1, 128], got \"x\"");
  CHECK(bad_sampling(R"({"max_tokens":4,"min_tokens":5})") ==
        "min_tokens must be at most max_tokens = 4, got 5");
  for (const char* fields : {R"({"temperature":NaN})", R"({"temperature":1e400})", "[]", "3"})
    bad_sampling(fields);
  CHECK(contains(bad(R"({"id":1,"prompt":"x","max_tokens":5})"), "'max_tokens'"));
}

TEST_CASE("a bad line keeps its id where it has one") {
  std::string id;
  bad(R"({"id":"a"})", &id);
  CHECK(id == "\"a\"");
  bad(R"({"prompt":3,"id":12345678901234567890123})", &id);
  CHECK(id == "12345678901234567890123");
  bad(R"({"prompt":"x","id":5,"sampling":{"top_p":7}})", &id);
  CHECK(id == "5");
  for (const char* text :
       {R"({"prompt":"x"})", R"({"prompt":"x","id":null})", R"({"prompt":"x","id":true})",
        R"({"prompt":"x","id":[1]})", R"({"prompt":"x","id":{}})", R"({"prompt":"x","id":1e400})",
        "{\"prompt\":\"x\",\"id\":\"\xff\"}", R"({"prompt":"x","id":"a")", "[]", "3", "\"x\""}) {
    bad(text, &id);
    CHECK(id == "null");
  }
}

TEST_CASE("a line must ask for one thing and in the right form") {
  for (const char* fields : {"",
                             R"("prompt":null,)",
                             R"("prompt":"x","messages":[],)",
                             R"("prompt":"x","prompt_token_ids":[1],)",
                             R"("prompt":"",)",
                             R"("prompt":3,)",
                             R"("prompt":["x"],)",
                             R"("prompt_token_ids":[],)",
                             R"("prompt_token_ids":"1",)",
                             R"("prompt_token_ids":[1.5],)",
                             R"("prompt_token_ids":[-1],)",
                             R"("prompt_token_ids":[true],)",
                             R"("prompt_token_ids":[2147483648],)",
                             R"("prompt_token_ids":[[1]],)",
                             R"("prompt_token_ids":[100000000000000000000],)",
                             R"("messages":{},)",
                             R"("messages":"x",)",
                             R"("messages":["x"],)",
                             R"("messages":[{"content":"x"}],)",
                             R"("messages":[{"role":1}],)",
                             R"("messages":[],"tools":{},)",
                             R"("messages":[],"tools":[1],)",
                             R"("messages":[],"enable_thinking":0,)",
                             R"("messages":[],"enable_thinking":"no",)",
                             R"("prompt":"x","tools":[],)",
                             R"("prompt":"x","enable_thinking":false,)"})
    bad(std::string("{") + fields + "\"id\":1}");
  CHECK(bad(R"({"id":1,"promt":"x"})") ==
        "a line must have exactly one of 'prompt', 'prompt_token_ids' and 'messages', got 0");
}

TEST_CASE("what is not JSON costs the line alone") {
  for (const std::string& text : std::vector<std::string>{
           "{", "}", "{\"id\":1,\"prompt\":\"x\"", "{\"id\":1,\"prompt\":\"x\"} {}",
           "{\"id\":1,\"prompt\":\"x\",}", "{'id':1}", "nonsense", "{\"id\":1,\"prompt\":\"\xc3\"}",
           "{\"id\":1,\"prompt\":\"\xed\xa0\x80\"}", "{\"id\":1,\"prompt\":\"\\ud800\"}",
           "{\"id\":1,\"prompt\":\"\x01\"}", std::string("{\"id\":1,\"prompt\":\"x\"}\0{}", 24),
           std::string("\0", 1), std::string(100000, '['), "{\"id\":1,\"prompt\":\"x\xff",
           "{\"id\":" + std::string(1000, '9') + "}"}) {
    const std::string error = bad(text);
    CHECK(error.size() < 400);
    CHECK(nv::parse_json(error_line(nullptr, error)).size() == 2);
  }
}

TEST_CASE("blank lines are no lines") {
  for (const char* blank : {"", " ", "\t \r", "\r"}) CHECK_FALSE(parse_batch_line(blank));
  CHECK(parse_batch_line("{\"id\":1,\"prompt\":\"x\"}\r")->request);
}

TEST_CASE("a result is one line of JSON in a fixed order") {
  nv::Output output;
  output.text = "Es war \"einmal\"\n\xe2\x80\xa8";
  output.token_ids = {1, 2};
  output.finish_reason = nv::FinishReason::length;
  output.num_prompt_tokens = 5;
  output.num_cached_tokens = 4;
  const std::string head =
      "{\"id\": \"a\", \"text\": \"Es war \\\"einmal\\\"\\n\xe2\x80\xa8\", \"token_ids\": [1, 2], "
      "\"finish_reason\": \"length\", \"num_prompt_tokens\": 5, \"num_cached_tokens\": 4";
  CHECK(result_line("a", output, false) == head + "}\n");
  CHECK(result_line("a", output, true) == head + ", \"logprobs\": []}\n");

  output.logprobs = {{1, -0.1f, {{1, -0.1f}, {7, -2.5f}}}, {2, -1e-8f, {}}};
  CHECK(result_line("a", output, true) ==
        head +
            ", \"logprobs\": [{\"token_id\": 1, \"logprob\": -0.1, \"top\": [[1, -0.1], [7, -2.5]]}"
            ", {\"token_id\": 2, \"logprob\": -1e-08, \"top\": []}]}\n");
  output.logprobs.clear();
  output.prompt_logprobs = {std::nullopt, nv::TokenLogprobs{4, -0.5f, {{6, -0.25f}}}};
  CHECK(result_line("a", output, false) ==
        head +
            ", \"prompt_logprobs\": [null, {\"token_id\": 4, \"logprob\": -0.5, \"top\": [[6, "
            "-0.25]]}]}\n");
  output.prompt_logprobs.clear();
  nv::Completion& alternative = output.alternatives.emplace_back();
  alternative.text = "b";
  alternative.token_ids = {3};
  alternative.finish_reason = nv::FinishReason::stop;
  const std::string other =
      ", \"alternatives\": [{\"text\": \"b\", \"token_ids\": [3], "
      "\"finish_reason\": \"stop\"";
  CHECK(result_line("a", output, false) == head + other + "}]}\n");
  CHECK(result_line("a", output, true) ==
        head + ", \"logprobs\": []" + other + ", \"logprobs\": []}]}\n");
  output.error = "it went wrong";
  CHECK(result_line(3, output, true) == "{\"id\": 3, \"error\": \"it went wrong\"}\n");
}

TEST_CASE("numbers that JSON cannot write are clamped") {
  const float infinity = std::numeric_limits<float>::infinity();
  nv::Output output;
  output.logprobs = {{1, -infinity, {{2, std::nanf("")}, {3, infinity}}}};
  const Json line = nv::parse_json(result_line(1, output, true));
  CHECK(line["logprobs"].dump() ==
        "[{\"token_id\": 1, \"logprob\": -9999.0, \"top\": [[2, -9999.0], [3, -9999.0]]}]");
}

TEST_CASE("log-probabilities are written briefly and read back exactly") {
  for (const float value : {-0.1f, -1.17549435e-38f, -1e-45f, -3.4028235e38f, -0.693147182f, -0.f,
                            -12.3456789f, 0.f, -16777217.f}) {
    nv::Output output;
    output.logprobs = {{1, value, {}}};
    const Json line = nv::parse_json(result_line(1, output, true));
    const Json& written = line["logprobs"][0]["logprob"];
    CHECK(static_cast<float>(written.get<double>()) == value);
    CHECK(written.dump().size() <= 24);
  }
}

TEST_CASE("text that is not UTF-8 is written as UTF-8") {
  nv::Output output;
  output.text = "a\xff\xe2\x82z\xc3";
  CHECK(nv::parse_json(result_line(1, output, false))["text"] == "a\uFFFD\uFFFDz\uFFFD");
  CHECK(error_line(nullptr, "\xff") == "{\"id\": null, \"error\": \"\uFFFD\"}\n");
}

TEST_CASE("a line may be a turn of a session") {
  CHECK(good(R"({"id":1,"prompt":"x","session":"tale"})").request->session == "tale");
  CHECK(good(R"({"id":1,"prompt":"x","session":null})").request->session.empty());
  CHECK(good(R"({"id":1,"prompt":"x"})").request->session.empty());
  CHECK(bad(R"({"id":1,"prompt":"x","session":""})") == "session must not be empty");
  CHECK(bad(R"({"id":1,"prompt":"x","session":3})") == "session must be a string, got 3");
  CHECK(bad(R"({"id":1,"prompt":"x","session":"s","sampling":{"n":2}})") ==
        "a turn of a session has one sample, got n = 2");
}
