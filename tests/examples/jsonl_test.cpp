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
  if (id) *id = nv::python_json(line->id);
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
  CHECK(nv::python_json(conversation.options.tools) == R"([{"name": "f"}])");
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

TEST_CASE("every sampling field is read by its name") {
  const nv::SamplingParams p = sampling(
      R"({"temperature":0.5,"top_k":40,"top_p":0.9,"min_p":0.1,"seed":18446744073709551615,)"
      R"("n":2,"best_of":3,"max_tokens":7,"min_tokens":3,"ignore_eos":true,"stop_token_ids":[1,2],)"
      R"("stop":["a","b"],"include_stop_str_in_output":true,"skip_special_tokens":false,)"
      R"("logprobs":20,"priority":-3})");
  const nv::SamplingParams beams =
      sampling(R"({"n":2,"beam_width":4,"length_penalty":0.5,"early_stopping":"never"})");
  const nv::SamplingParams edits =
      sampling(R"({"repetition_penalty":1.5,"frequency_penalty":-0.5,"presence_penalty":2,)"
               R"("logit_bias":{"12":-100,"7":0.5},"allowed_token_ids":[5,12],"bad_words":"x",)"
               R"("logprob_token_ids":[9],"prompt_logprobs":3})");
  // A new field of SamplingParams breaks this line: add it to kSamplingFields and to this test.
  const auto& [temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty,
               presence_penalty, logit_bias, allowed_token_ids, bad_words, token_masks,
               functor_argument, seed, n, best_of, max_tokens, min_tokens, ignore_eos,
               stop_token_ids, stop, include_stop, skip_special, logprobs, logprob_token_ids,
               prompt_logprobs, priority, beam_width, length_penalty, early_stopping] = p;
  CHECK(temperature == 0.5f);
  CHECK(top_k == 40);
  CHECK(top_p == 0.9f);
  CHECK(min_p == 0.1f);
  CHECK(seed == 18446744073709551615u);
  CHECK(n == 2);
  CHECK(best_of == 3);
  CHECK(max_tokens == 7);
  CHECK(min_tokens == 3);
  CHECK(ignore_eos);
  CHECK(stop_token_ids == std::vector<TokenId>{1, 2});
  CHECK(stop == std::vector<std::string>{"a", "b"});
  CHECK(include_stop);
  CHECK_FALSE(skip_special);
  CHECK(logprobs == 20);
  CHECK(priority == -3);
  CHECK_FALSE(beam_width);
  CHECK(length_penalty == 1.f);
  CHECK(early_stopping == nv::EarlyStopping::no);
  CHECK_FALSE(repetition_penalty);
  CHECK(frequency_penalty == 0.f);
  CHECK(presence_penalty == 0.f);
  CHECK(logit_bias.empty());
  CHECK(allowed_token_ids.empty());
  CHECK(bad_words.empty());
  CHECK(token_masks == nullptr);
  CHECK(functor_argument == 0.f);
  CHECK(logprob_token_ids.empty());
  CHECK_FALSE(prompt_logprobs);
  CHECK(edits.repetition_penalty == 1.5f);
  CHECK(edits.frequency_penalty == -0.5f);
  CHECK(edits.presence_penalty == 2.f);
  CHECK(edits.logit_bias == std::vector<nv::TokenBias>{{12, -100.f}, {7, 0.5f}});
  CHECK(edits.allowed_token_ids == std::vector<TokenId>{5, 12});
  CHECK(edits.bad_words == std::vector<std::string>{"x"});
  CHECK(edits.logprob_token_ids == std::vector<TokenId>{9});
  CHECK(edits.prompt_logprobs == 3);
  CHECK(contains(bad_sampling(R"({"logit_bias":{"a":1}})"), "a token id in logit_bias"));
  CHECK(beams.beam_width == 4);
  CHECK(beams.length_penalty == 0.5f);
  CHECK(beams.early_stopping == nv::EarlyStopping::never);
  CHECK(sampling(R"({"beam_width":4,"early_stopping":true})").early_stopping ==
        nv::EarlyStopping::yes);
  CHECK(contains(bad_sampling(R"({"beam_width":4,"early_stopping":"maybe"})"),
                 "early_stopping must be true, false or \"never\", got \"maybe\""));
  CHECK(contains(bad_sampling(R"({"length_penalty":2})"), "need beam_width"));
  CHECK(contains(bad_sampling(R"({"beam_width":4,"logprobs":1})"),
                 "beam_width cannot be combined with logprobs"));
}

TEST_CASE("sampling fields may be null and stop may be one string") {
  const nv::SamplingParams p = sampling(
      R"({"temperature":null,"top_k":null,"seed":null,"max_tokens":null,"stop":"é","logprobs":null})");
  CHECK_FALSE(p.temperature);
  CHECK_FALSE(p.top_k);
  CHECK_FALSE(p.seed);
  CHECK_FALSE(p.logprobs);
  CHECK(p.max_tokens == nv::SamplingParams{}.max_tokens);
  CHECK(p.stop == std::vector<std::string>{"é"});
  CHECK(sampling(R"({"stop":null})").stop.empty());
  CHECK(sampling(R"({"stop":[]})").stop.empty());
  CHECK(sampling(R"({"temperature":1,"top_k":-1,"logprobs":0})").logprobs == 0);
  CHECK(sampling("{}").max_tokens == nv::SamplingParams{}.max_tokens);
}

TEST_CASE("unusable sampling settings are refused by name") {
  const std::string unknown = bad_sampling(R"({"temprature":1})");
  CHECK(contains(unknown, "\"temprature\""));
  CHECK(contains(unknown, "temperature, top_k, top_p, min_p, seed, n, best_of, max_tokens"));
  for (const char* fields : {R"({"temperature":"1"})",
                             R"({"temperature":-1})",
                             R"({"temperature":1e39})",
                             R"({"temperature":true})",
                             R"({"temperature":100000000000000000000})",
                             R"({"temperature":NaN})",
                             R"({"temperature":1e400})",
                             R"({"top_k":1.0})",
                             R"({"top_k":-2})",
                             R"({"top_k":2147483648})",
                             R"({"top_k":99999999999999999999})",
                             R"({"top_p":0})",
                             R"({"top_p":1.5})",
                             R"({"min_p":-0.1})",
                             R"({"seed":-1})",
                             R"({"seed":18446744073709551616})",
                             R"({"seed":"1"})",
                             R"({"max_tokens":0})",
                             R"({"max_tokens":true})",
                             R"({"min_tokens":5,"max_tokens":4})",
                             R"({"ignore_eos":1})",
                             R"({"ignore_eos":"true"})",
                             R"({"stop":""})",
                             R"({"stop":[""]})",
                             R"({"stop":[1]})",
                             R"({"stop":1})",
                             R"({"stop":{"a":"b"}})",
                             R"({"stop_token_ids":1})",
                             R"({"stop_token_ids":[1.5]})",
                             R"({"stop_token_ids":[-1]})",
                             R"({"stop_token_ids":[null]})",
                             R"({"logprobs":21})",
                             R"({"logprobs":-1})",
                             R"({"logprobs":true})",
                             R"({"repetition_penalty":0})",
                             R"({"frequency_penalty":2.1})",
                             R"({"presence_penalty":"1"})",
                             R"({"logit_bias":[1]})",
                             R"({"logit_bias":{"-1":1}})",
                             R"({"logit_bias":{"1":101}})",
                             R"({"logit_bias":{"1":"1"}})",
                             R"({"allowed_token_ids":[-1]})",
                             R"({"bad_words":[""]})",
                             R"({"logprob_token_ids":5})",
                             R"({"prompt_logprobs":21})",
                             R"({"prompt_logprobs":[1]})",
                             R"([])",
                             R"("")",
                             "3"})
    bad_sampling(fields);
  CHECK(bad_sampling(R"({"top_k":"x"})") ==
        "top_k must be an integer in [-2147483648, 2147483647], got \"x\"");
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
                             R"("prompt_token_ids":[1.0],)",
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
  CHECK(nv::python_json(line["logprobs"]) ==
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
    CHECK(nv::python_json(written).size() <= 24);
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
