#include "nanovllm/api/grammar/json/json_schema_exclusion.hpp"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "api/grammar/json/validates.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::schema_error;
using nanovllm_test::takes;
using nanovllm_test::validates;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// Objects of up to three members out of few names and values, in every order.
std::vector<ordered_json> small_objects() {
  const std::vector<std::string> names{"a", "b", "k"};
  const std::vector<json> values{0, "x", "y"};
  std::vector<ordered_json> out{ordered_json::object()};
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::string& name : names) {
      if (out[i].contains(name)) continue;
      for (const json& value : values) {
        ordered_json next = out[i];
        next[name] = value;
        out.push_back(next);
      }
    }
  }
  return out;
}

struct RandomBranches {
  std::mt19937 random;

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

  json value() {
    static const std::vector<json> values{{{"const", "x"}},      {{"const", "y"}},
                                          {{"type", "integer"}}, {{"enum", {"x", "y"}}},
                                          {{"enum", {0, "x"}}},  true};
    return values[static_cast<std::size_t>(below(6))];
  }

  json branch() {
    json out = json::object();
    for (const char* name : {"a", "b", "k"}) {
      if (below(3) == 0) out["properties"][name] = value();
      if (below(3) == 0) out["required"].push_back(name);
    }
    if (below(4) == 0) out["type"] = "object";
    if (below(5) == 0) out["additionalProperties"] = false;
    return out;
  }
};

}  // namespace

TEST_CASE("defect: oneOf whose branches a const or required tells apart is served exactly") {
  struct Case {
    const char* schema;
    std::vector<std::string> yes, no;
  };
  const std::vector<Case> cases{
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
           "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a": 1})", R"({"b": 1})"},
       {"{}", R"({"a": 1, "b": 1})", R"({"b": 1, "a": 1})"}},
      {R"({"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false,
           "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]})",
       {R"({"a": 1})", R"({"a": 1, "b": 1})", R"({"a": 1, "c": 1})", R"({"b": 1, "c": 1})"},
       {"{}", R"({"b": 1})", R"({"a": 1, "b": 1, "c": 1})"}},
      {R"({"oneOf": [{"properties": {"k": {"const": "x"}, "n": {"type": "integer"}}},
                     {"properties": {"k": {"const": "y"}}}]})",
       {R"({"k": "x", "n": 1})", R"({"k": "x"})", R"({"k": "y"})"},
       {"{}", R"({"k": "z"})", R"({"n": 1})"}},
      {R"({"oneOf": [{"enum": [1, 2, 3]}, {"enum": [3, 4]}, {"const": 5}]})",
       {"1", "2", "4", "5"},
       {"3"}},
      {R"({"oneOf": [{"properties": {"k": {"enum": ["x", "y"]}}, "required": ["k"]},
                     {"properties": {"k": {"enum": ["y", "z"]}}, "required": ["k"]}]})",
       {R"({"k": "x"})", R"({"k": "z"})"},
       {R"({"k": "y"})", "{}"}},
      {R"({"oneOf": [{"enum": [1]}, {"enum": [1, 2]}]})", {"2"}, {"1"}},
  };
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  for (const Case& each : cases) {
    INFO(each.schema);
    const auto source = compiler.json_schema(each.schema);
    for (const std::string& text : each.yes) {
      INFO(text);
      CHECK(takes(*source, text));
      CHECK(validates(json::parse(each.schema), json::parse(text)));
    }
    for (const std::string& text : each.no) {
      INFO(text);
      CHECK_FALSE(takes(*source, text));
    }
  }
  for (const char* refused :
       {R"({"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]})",
        R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
        R"({"oneOf": [{"properties": {"a": {"type": "string"}}}, {"type": "object"}]})"})
    CHECK_THAT(schema_error(refused), Contains("'oneOf' is supported where") &&
                                          Contains("may share a value (use 'anyOf'), at its root"));
}

TEST_CASE("what is taken under random oneOf is valid by one branch alone") {
  const std::vector<ordered_json> objects = small_objects();
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  RandomBranches branches{std::mt19937(9)};
  int num_served = 0, num_taken = 0;
  for (int i = 0; i < 400; ++i) {
    json schema{{"oneOf", json::array({branches.branch(), branches.branch()})}};
    if (branches.below(3) == 0) schema["oneOf"].push_back(branches.branch());
    if (branches.below(3) == 0) schema["properties"]["k"] = branches.value();
    INFO(schema.dump());
    std::shared_ptr<const nv::GrammarSource> source;
    try {
      source = compiler.json_schema(schema.dump(), {.strict = i % 2 == 0});
    } catch (const nv::RequestError&) {
      continue;
    }
    ++num_served;
    for (const ordered_json& object : objects) {
      const std::string text = object.dump();
      const bool is_taken = takes(*source, text), is_valid = validates(schema, json::parse(text));
      if (is_taken && !is_valid) {
        INFO(text);
        REQUIRE(is_valid);
      }
      num_taken += is_taken;
    }
  }
  CHECK(num_served > 150);
  CHECK(num_taken > 2000);
}
