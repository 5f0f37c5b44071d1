#include "nanovllm/api/grammar/json/json_array_writer.hpp"

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/json/random_schema.hpp"
#include "api/grammar/json/takes.hpp"
#include "api/grammar/json/validates.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::random_walk;
using nanovllm_test::schema_error;
using nanovllm_test::takes;
using nanovllm_test::validates;

TEST_CASE("defect: uniqueItems of listed values, integers and strings is served exactly") {
  struct Case {
    const char* schema;
    std::vector<std::string> yes, no;
  };
  const std::vector<Case> cases{
      {R"({"items": {"enum": ["a", "b", "ab", 1, 1.0, 12]}, "uniqueItems": true})",
       {"[]", R"(["b", "a"])", R"([12, 1, "ab", "a", "b"])"},
       {R"(["a", "a"])", "[1, 12, 1]", "[1, 1.0]", R"(["a", "b", "ab", 1, 12, "a"])"}},
      {R"({"items": {"type": "integer", "minimum": 8, "maximum": 11}, "uniqueItems": true,
           "minItems": 2})",
       {"[8, 9]", "[11, 10, 9, 8]"},
       {"[8]", "[8, 8]", "[11, 10, 11]", "[8, 9, 10, 11, 8]"}},
      {R"({"items": {"type": "integer"}, "uniqueItems": true})",
       {"[1, 12, 123, -1, 0]", "[12, 1]"},
       {"[1, 1]", "[12, 1, 12]"}},
      {R"({"items": {"type": "string"}, "uniqueItems": true})",
       {R"(["a", "A", "", "\n"])"},
       {R"(["a", "a"])", R"(["", ""])", R"(["a", "\u0061"])"}},
      {R"({"items": {"pattern": "^x[yz]?$", "maxLength": 2}, "uniqueItems": true})",
       {R"(["x", "xz", "xy"])"},
       {R"(["x", "x"])", R"(["xyz"])"}},
      {R"({"items": {"type": ["boolean", "null", "integer"], "multipleOf": 5, "minimum": 0},
           "uniqueItems": true})",
       {"[true, false, null, 0, 5]"},
       {"[true, true]", "[null, 5, null]", "[3]", "[5, 5]"}},
      {R"({"items": {"$ref": "#/$defs/day"}, "uniqueItems": true, "maxItems": 2,
           "$defs": {"day": {"allOf": [{"enum": ["mo", "tu", "we"]}, {"enum": ["tu", "we"]}]}}})",
       {R"(["tu", "we"])", "[]"},
       {R"(["mo"])", R"(["tu", "tu"])"}},
      {R"({"items": {"type": "object"}, "uniqueItems": true, "maxItems": 1})", {"[{}]"}, {"[1]"}},
      {R"({"items": {"type": "object"}, "uniqueItems": false})", {"[{}, {}]"}, {"[1]"}},
      {R"({"items": {"type": "array", "uniqueItems": true, "items": {"enum": [1, 2]}}})",
       {"[[1, 2], [1], [2, 1], [1]]"},
       {"[[1, 1]]"}},
  };
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  for (const Case& each : cases) {
    INFO(each.schema);
    const auto source = compiler.json_schema(each.schema);
    for (const std::string& text : each.yes) {
      INFO(text);
      CHECK(takes(*source, text));
      for (std::size_t size = 0; size < text.size(); ++size)
        CHECK(takes(*source, text.substr(0, size), true));
    }
    for (const std::string& text : each.no) {
      INFO(text);
      CHECK_FALSE(takes(*source, text));
    }
  }
  const auto bounded = compiler.json_schema(cases[1].schema);
  CHECK_FALSE(takes(*bounded, "[10, 11, 1", true));  // leads to none that is left
  CHECK_FALSE(takes(*bounded, "[8, 9, 10, 11,", true));
  for (const char* items :
       {R"({"type": "number"})", R"({"type": "object"})", "true",
        R"({"anyOf": [{"const": 1}, {"const": 2}]})", R"({"type": ["string", "array"]})"})
    CHECK_THAT(schema_error(std::string(R"({"uniqueItems": true, "items": )") + items + "}"),
               Contains("'uniqueItems' is supported for items that are"));
  CHECK_THAT(schema_error(R"({"uniqueItems": true, "prefixItems": [{"const": 1}, {"const": 1}]})"),
             Contains("'uniqueItems' beside 'prefixItems'"));
  CHECK_THAT(schema_error(R"({"uniqueItems": true, "items": {"enum": [1, 2]}, "minItems": 3})"),
             Contains("no value is valid"));
  CHECK_THAT(schema_error(R"({"type": "array", "uniqueItems": 1})"), Contains("true or false"));
}

TEST_CASE("walks under uniqueItems come to an end, with items that differ") {
  const auto vocabulary = byte_vocabulary(
      {"1,", ",1", "12", "[1", "\",\"", "\", \"", "a\"", "\"a", "ab", "\"]", ", ", "0,1", "1,2,1"});
  const nv::JsonSchemaCompiler compiler(vocabulary);
  std::mt19937 random(3);
  int num_items = 0;
  long steps = 0;
  for (const char* text :
       {R"({"items": {"enum": ["a", "b", "ab", "", "aa"]}, "uniqueItems": true, "minItems": 4})",
        R"({"items": {"enum": [1, 12, 121, 0, 2]}, "uniqueItems": true, "minItems": 5})",
        R"({"items": {"type": "integer", "minimum": -3, "maximum": 25}, "uniqueItems": true,
            "minItems": 20})",
        R"({"items": {"type": "string", "maxLength": 1}, "uniqueItems": true, "minItems": 3})",
        R"({"items": {"pattern": "^[ab]{0,2}$"}, "uniqueItems": true, "minItems": 7})"}) {
    INFO(text);
    nlohmann::json schema = nlohmann::json::parse(text);
    const auto source = compiler.json_schema(text, {.compact = true});
    for (int walk = 0; walk < 40; ++walk) {
      const auto found = random_walk(*source, *vocabulary, random, 300, 1500, steps);
      REQUIRE(found);
      INFO(*found);
      const nlohmann::json value = nlohmann::json::parse(*found);
      schema["items"].erase("pattern");
      REQUIRE(validates(schema, value));
      num_items += static_cast<int>(value.size());
    }
  }
  CHECK(num_items > 1500);
}
