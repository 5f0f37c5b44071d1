#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;
using Ids = std::vector<nv::TokenId>;

namespace {

const char* const kObject = R"({"properties": {"a": {"type": "array", "items": {"type": "integer"}},
                                               "b": {"type": "boolean"}}})";

}  // namespace

TEST_CASE("defect: white space is one blank, or one line feed and its indentation") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto source = compiler.json_schema(kObject);
  for (const char* yes :
       {R"({"a":[1,2],"b":true})", R"({"a": [1, 2], "b": true})", R"({ "a" : [ 1 , 2 ] })",
        "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": true\n}", "{\n\t\"a\": [\n\t\t1\n\t]\n}",
        "{ }", "{\n}"})
    CHECK(takes(*source, yes));
  for (const char* no : {"{  \"a\": []}", "{\"a\":\n\n[]}", "{ \n\"a\": []}", "{\"a\":\t[]}",
                         "{\"a\":\n \t[]}", "{\"a\": [1  ]}", "{\r\n\"a\": []}"})
    CHECK_FALSE(takes(*source, no));
  const std::string feed(1, '\n');
  CHECK(takes(*source, "{" + feed + std::string(64, ' ') + "\"b\": true}"));
  CHECK_FALSE(takes(*source, "{" + feed + std::string(65, ' ') + "\"b\": true}"));
  CHECK_FALSE(takes(*source, "{" + feed + std::string(17, '\t') + "\"b\": true}"));
  CHECK_FALSE(takes(*compiler.json(), "[1,  2]"));
}

TEST_CASE("any_whitespace takes up to 8 characters, compact takes none") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto any = compiler.json_schema(kObject, {.any_whitespace = true});
  CHECK(takes(*any, "{\r\n\t  \"a\" :\n\n\n [1  ,\t2]}"));
  CHECK_FALSE(takes(*any, "{" + std::string(9, ' ') + "\"a\": []}"));
  for (const bool any_whitespace : {false, true}) {
    const auto compact =
        compiler.json_schema(kObject, {.any_whitespace = any_whitespace, .compact = true});
    CHECK(takes(*compact, R"({"a":[1,2],"b":true})"));
    CHECK(takes(*compact, "{}"));
    for (const char* no : {"{ }", R"({"a": []})", R"({"a":[1, 2]})", R"({"a":[] })"})
      CHECK_FALSE(takes(*compact, no));
  }
}

TEST_CASE("a JSON Schema says what comes next") {
  const auto vocabulary = byte_vocabulary({"{\"", "true", "tru", "\": "});
  const nv::JsonSchemaCompiler compiler(vocabulary);
  const auto source = compiler.json_schema(
      R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})",
      {.compact = true});
  CHECK(source->vocab_size() == vocabulary->vocab_size());
  CHECK(source->size_bytes() > 0);
  CHECK(takes(*source, R"({"a":true})"));
  CHECK_FALSE(takes(*source, R"({"a":tru})"));
  CHECK_FALSE(takes(*source, R"({"b":true})"));

  const nv::TokenId first_word = 258;
  const auto matcher = source->matcher();
  const Ids begin{2 + '{', first_word};
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == begin);
  CHECK_FALSE(matcher->accept(first_word + 1));
  CHECK_FALSE(matcher->accept(0));
  CHECK_FALSE(matcher->accept(1));
  CHECK_FALSE(matcher->accept(-1));
  CHECK_FALSE(matcher->accept(vocabulary->vocab_size()));
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == begin);  // refusals change nothing
  CHECK(matcher->accept(first_word));
  const auto other = matcher->clone();
  for (char c : std::string("a\":true")) CHECK(matcher->accept(2 + c));
  CHECK_FALSE(matcher->is_finished());
  CHECK(matcher->accept(2 + '}'));
  CHECK(matcher->is_finished());
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == Ids{0});
  CHECK(matcher->accept(0));
  CHECK(matcher->is_finished());
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == Ids{0});
  CHECK(matcher->accept(0));
  CHECK_FALSE(matcher->accept(2 + 'a'));
  CHECK(other->accept(2 + 'a'));
}

TEST_CASE("a mask may be longer than the vocabulary") {
  const auto vocabulary = byte_vocabulary();
  const auto source = nv::JsonSchemaCompiler(vocabulary).grammar("root ::= [^x]*");
  std::vector<std::uint32_t> bits(nv::num_mask_words(1000), 0);
  source->matcher()->fill(bits);
  CHECK(nv::is_allowed(bits, 0));
  CHECK_FALSE(nv::is_allowed(bits, 1));
  CHECK(nv::is_allowed(bits, 2 + 'a'));
  for (nv::TokenId id = vocabulary->vocab_size(); id < 1024; ++id)
    REQUIRE_FALSE(nv::is_allowed(bits, id));
}

TEST_CASE("any JSON, any value and grammars") {
  const auto vocabulary = byte_vocabulary();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  CHECK(takes(*compiler.json(), R"({"a": [1, 2.5, "x\n", null]})"));
  CHECK_FALSE(takes(*compiler.json(), R"({"a": [1,})"));
  for (const char* value : {"[]", "{}", "[[-1.5e3]]"}) CHECK(takes(*compiler.json(), value));
  CHECK_FALSE(takes(*compiler.json(), "3"));
  for (const char* value : {"3", "-1.5e3", "\"x\"", "null", "[]"})
    CHECK(takes(*compiler.json_schema("true"), value));
  const auto nested = compiler.grammar("root ::= \"a\" root \"b\" | \"\"");
  CHECK(takes(*nested, "aaabbb"));
  CHECK(takes(*nested, ""));
  CHECK_FALSE(takes(*nested, "aab"));
}

TEST_CASE("several threads compile schemas and go through one") {
  const auto vocabulary = byte_vocabulary();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  const auto shared = compiler.json();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string name(1, static_cast<char>('a' + (t + i) % 5));
        const auto own =
            compiler.json_schema(R"({"type": "object", "properties": {")" + name +
                                 R"(": {"type": "string"}}, "required": [")" + name + R"("]})");
        const std::string text = "{\"" + name + "\": \"x\"}";
        if (!takes(*own, text) || takes(*own, "{}") || !takes(*shared, text)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("what is refused is an error with its reason") {
  const auto vocabulary = byte_vocabulary();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const nv::RequestError& error) {
      return error.what();
    }
    return "nothing refused";
  };
  using Catch::Matchers::Contains;
  const std::string not_json = message([&] { (void)compiler.json_schema("{"); });
  CHECK_THAT(not_json, Contains("the JSON Schema is refused: "));
  CHECK(not_json.size() > 35);
  CHECK_THAT(message([&] { (void)compiler.json_schema(R"({"type": "strange"})"); }),
             Contains("strange"));
  CHECK_THAT(message([&] { (void)compiler.grammar("root ::= other"); }),
             Contains("the grammar is refused: ") && Contains("other"));
}
