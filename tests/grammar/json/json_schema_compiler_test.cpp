#include "nanovllm/grammar/json/json_schema_compiler.hpp"

#include <string>

#include "catch.hpp"
#include "grammar/json/takes.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;

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
