#include "nanovllm/api/grammar/json/json_object_writer.hpp"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api/grammar/json/random_schema.hpp"
#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::random_walk;
using nanovllm_test::RandomSchema;
using nanovllm_test::schema_error;
using nanovllm_test::takes;

namespace {

/// A parser that refuses an object which repeats a key.
struct StrictParser : nlohmann::json_sax<nlohmann::json> {
  std::vector<std::set<std::string>> open;
  std::size_t num_keys = 0;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    open.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    ++num_keys;
    return open.back().insert(name).second;
  }
  bool end_object() override {
    open.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    return error.id == kNumberTooLarge;
  }

  /// Whether a text is JSON without repeated keys.
  [[nodiscard]] bool takes(const std::string& text) {
    return nlohmann::json::sax_parse(text, this);
  }
};

/// Keys out of few letters, so that many are met twice, and of tokens that hold more than one.
std::shared_ptr<const nv::GrammarVocabulary> vocabulary_of_keys() {
  std::vector<std::string> words{"{\"",      "\":",          "\": ",
                                 "\",",      ", \"",         ",\"",
                                 "\"a\":",   "a\":1",        "\":{\"",
                                 "\"}",      "}}",           ":1,\"",
                                 "\":1,\"a", "a\":1,\"a\":", "b\":0,\"b\":0",
                                 "\\\"",     "\\n",          "\\u0061\":",
                                 "null",     "true",         "{}",
                                 "[]",       "x-",           "aa"};
  return byte_vocabulary(words);
}

/// Objects whose keys are free, of few names.
nlohmann::json random_object(RandomSchema& schemas, int depth) {
  static const std::vector<std::string> names{"a", "b", "aa", "x-a", "é", "\n", "p_ful"};
  const auto name = [&] { return names[static_cast<std::size_t>(schemas.below(7))]; };
  const auto value = [&]() -> nlohmann::json {
    if (depth > 0 && schemas.below(3) == 0) return random_object(schemas, depth - 1);
    return schemas.coin() ? nlohmann::json{{"type", "integer"}} : nlohmann::json{{"type", "null"}};
  };
  nlohmann::json out{{"type", "object"}};
  switch (schemas.below(5)) {
    case 0: {
      static const std::vector<std::string> patterns{"^[ab]$", "^[ab]{1,2}$", "^x-", "^é[0-3]?$"};
      out["patternProperties"][patterns[static_cast<std::size_t>(schemas.below(2))]] = value();
      if (schemas.coin()) out["patternProperties"]["^x-"] = value();
      if (schemas.coin()) out["patternProperties"]["^é[0-3]?$"] = value();
      break;
    }
    case 1: {
      static const std::vector<nlohmann::json> keys{
          {{"enum", {"a", "b", "aa", 3}}},      {{"pattern", "^[ab]{1,2}$"}}, {{"maxLength", 1}},
          {{"minLength", 2}, {"maxLength", 3}}, {{"format", "ipv4"}},         {{"minLength", 1}}};
      out["propertyNames"] = keys[static_cast<std::size_t>(schemas.below(6))];
      out["additionalProperties"] = value();
      break;
    }
    default: {
      nlohmann::json required = nlohmann::json::array();
      for (int i = schemas.below(4); i > 0; --i) {
        const std::string key = name();
        out["properties"][key] = value();
        if (schemas.coin()) required.push_back(key);
      }
      if (schemas.below(4) == 0) required.push_back(name());
      if (!required.empty()) out["required"] = required;
      out["additionalProperties"] = value();
    }
  }
  if (schemas.below(3) == 0) out["minProperties"] = schemas.below(5);
  if (schemas.below(3) == 0)
    out["maxProperties"] = out.value("minProperties", 1) + schemas.below(3);
  return out;
}

/// Whether the counts of properties of an object are right, and those within it.
bool has_right_counts(const nlohmann::json& schema, const nlohmann::json& value) {
  if (!value.is_object() || schema.value("type", "") != "object") return true;
  return value.size() >= schema.value("minProperties", 0u) &&
         value.size() <= schema.value("maxProperties", 1000u);
}

}  // namespace

TEST_CASE("defect: an object never repeats a key") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto free = compiler.json_schema(
      R"({"properties": {"p": {"type": "integer"}}, "additionalProperties": {"type": "string"}})");
  for (const char* yes :
       {R"({"p": 1, "p_ful": "", "p_fu": ""})", R"({"x": "", "y": "", "p_ful": ""})", "{}",
        R"({"é": "", "e": "", "\"": "", "\n": ""})"})
    CHECK(takes(*free, yes));
  for (const char* no :
       {R"({"p_ful": "", "p_ful": ""})", R"({"x": "", "p": ""})", R"({"p": 1, "p": 1})",
        R"({"x": "", "y": "", "x": ""})", R"({"\u0070": ""})", R"({"é": "", "é": ""})"})
    CHECK_FALSE(takes(*free, no));
  CHECK(takes(*free, R"({"p_ful": "", "p_ful)", true));
  CHECK_FALSE(takes(*free, R"({"p_ful": "", "p_ful")", true));
  const auto any = compiler.json();
  CHECK(takes(*any, R"({"a": {"a": [{"a": 1}, {"a": {"b": 2, "a": 3}}], "b": 1}, "b": "a"})"));
  for (const char* no : {R"({"a": 1, "a": 1})", R"([{"a": {"b": 1}, "c": 2, "a": 3}])",
                         R"({"a": {"b": 1, "c": 1, "b": 1}})", R"([{"x": [{"y": 0}], "x": 0}])"})
    CHECK_FALSE(takes(*any, no));
}

TEST_CASE("free keys of a finite set are counted, so that none is missing at the end") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto two = compiler.json_schema(
      R"({"patternProperties": {"^[ab]$": {"type": "integer"}}, "minProperties": 2})");
  CHECK(takes(*two, R"({"b": 1, "a": 2})"));
  CHECK_FALSE(takes(*two, R"({"a": 1})"));
  CHECK_FALSE(takes(*two, R"({"b": 1, "a": 2,)", true));
  CHECK_FALSE(takes(*two, R"({"b": 1, "b)", true));
  CHECK_THAT(schema_error(R"({"patternProperties": {"^[ab]$": {}}, "minProperties": 3})"),
             Contains("no value is valid"));
  const auto names = compiler.json_schema(
      R"({"propertyNames": {"enum": ["a", "b", "ab", 4]}, "additionalProperties": {"const": 0}})");
  CHECK(takes(*names, R"({"ab": 0, "a": 0, "b": 0})"));
  CHECK_FALSE(takes(*names, R"({"ab": 0, "a": 0, "b": 0,)", true));
  CHECK(takes(*names, R"({"ab": 0, "a)", true));
  CHECK_FALSE(takes(*names, R"({"ab": 0, "a": 0, "a)", true));
  const auto many = compiler.json_schema(R"({"minProperties": 3, "properties": {"a": {}},
                                             "additionalProperties": {"const": 0}})");
  CHECK(takes(*many, R"({"a": 1, "b": 0, "c": 0})"));
  CHECK(takes(*many, R"({"b": 0, "c": 0, "d": 0, "e": 0})"));
  CHECK_FALSE(takes(*many, R"({"a": 1, "b": 0})"));
  CHECK_THAT(schema_error(R"({"propertyNames": {"anyOf": [{}, {}]}})"),
             Contains("'anyOf' of names of properties"));
}

TEST_CASE("branches that differ in their names keep the keys apart") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto either = compiler.json_schema(R"({"anyOf": [
      {"properties": {"x": {"type": "integer"}}, "additionalProperties": {"type": "integer"}},
      {"patternProperties": {"^x$": {"type": "integer"}, "^y": {"type": ["integer", "null"]}}},
      {"properties": {"y": true}, "additionalProperties": false}]})");
  for (const char* yes : {R"({"x": 1, "z": 2})", R"({"y": null, "x": 1})", R"({"x": 1, "y1": 1})",
                          R"({"y": []})", R"({"x": 1, "y": 2, "y2": null})"})
    CHECK(takes(*either, yes));
  for (const char* no : {R"({"x": 1, "x": 1})", R"({"x": 1, "y": 1, "x": 1})",
                         R"({"y": 1, "x": 1, "y": 1})", R"({"x": 1, "z": 2, "z": 3})"})
    CHECK_FALSE(takes(*either, no));
}

TEST_CASE("a strict parser takes whatever is drawn under random schemas with free keys") {
  const auto vocabulary = vocabulary_of_keys();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  RandomSchema schemas(41);
  std::size_t num_texts = 0, num_keys = 0, num_refused = 0;
  long steps = 0;
  for (int i = 0; i < 600; ++i) {
    const nlohmann::json schema = random_object(schemas, 2);
    INFO(schema.dump());
    std::shared_ptr<const nv::GrammarSource> source;
    try {
      source = compiler.json_schema(schema.dump(), {.compact = i % 2 == 0});
    } catch (const nv::RequestError& error) {
      INFO(error.what());
      const std::string_view why = error.what();
      REQUIRE((why.find("no value is valid") != why.npos ||
               why.find("which is not supported") != why.npos));
      ++num_refused;
      continue;
    }
    for (int walk = 0; walk < 4; ++walk) {
      const auto text = random_walk(*source, *vocabulary, schemas.random, 60, 600, steps);
      if (!text) continue;
      INFO(*text);
      StrictParser parser;
      REQUIRE(parser.takes(*text));
      REQUIRE(has_right_counts(schema, nlohmann::json::parse(*text)));
      ++num_texts;
      num_keys += parser.num_keys;
    }
  }
  CHECK(num_refused < 200);
  CHECK(num_texts > 1200);
  CHECK(num_keys > 4000);
}

TEST_CASE("with a tokenizer, any JSON and random schemas have no key twice") {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  const nv::TokenId stop = *tokenizer.token_to_id("<|endoftext|>");
  const auto vocabulary =
      std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&stop, 1));
  const nv::JsonSchemaCompiler compiler(vocabulary);
  RandomSchema schemas(12);
  schemas.numbers = false;
  std::size_t num_keys = 0;
  int num_ended = 0;
  long steps = 0;
  for (int i = 0; i < 120; ++i) {
    const nlohmann::json schema = i % 3 ? schemas.object(3) : nlohmann::json{{"type", "object"}};
    INFO(schema.dump());
    const auto source = compiler.json_schema(schema.dump());
    const auto text = random_walk(*source, *vocabulary, schemas.random, 80, 1500, steps);
    if (!text) continue;
    INFO(*text);
    StrictParser parser;
    REQUIRE(parser.takes(*text));
    num_keys += parser.num_keys;
    ++num_ended;
  }
  CHECK(num_ended > 100);
  CHECK(num_keys > 200);
}
