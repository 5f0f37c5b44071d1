#include "nanovllm/grammar/ebnf/string_length.hpp"

#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "grammar/json/takes.hpp"
#include "grammar/regex/random_regex.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::schema_error;
using nanovllm_test::takes;

namespace {

std::size_t num_characters(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++count) i += nv::utf8::decode(text, i).size;
  return count;
}

std::string schema_of(const std::string& pattern, int min, int max) {
  nv::Json schema = nv::Json::object();
  schema["pattern"] = "^(" + pattern + ")$";
  if (min > 0) schema["minLength"] = min;
  if (max >= 0) schema["maxLength"] = max;
  return schema.dump();
}

}  // namespace

TEST_CASE("defect: minLength and maxLength beside pattern or format are served") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto name = compiler.json_schema(
      R"({"type": "string", "pattern": "^[a-z]+(-[a-zé\n]+)*$", "minLength": 3, "maxLength": 6})");
  for (const char* yes : {R"("abc")", R"("a-b-cd")", R"("a-é\né")"}) CHECK(takes(*name, yes));
  for (const char* no : {R"("ab")", R"("abcdefg")", R"("abcde-)", R"("a-é\nééé")"})
    CHECK_FALSE(takes(*name, no));
  CHECK_FALSE(takes(*name, R"("abcde-)", true));  // no text goes on with it
  CHECK(takes(*name, R"("abcd-)", true));
  const auto mail = compiler.json_schema(R"({"format": "email", "maxLength": 8})");
  CHECK(takes(*mail, R"("ab@cd.ef")"));
  CHECK_FALSE(takes(*mail, R"("ab@cd.efg")"));
  CHECK_FALSE(takes(*mail, R"("abcde@)", true));
  const auto long_one = compiler.json_schema(R"({"pattern": "^x", "minLength": 100})");
  CHECK(takes(*long_one, '"' + ("x" + std::string(99, 'y')) + '"'));
  CHECK_FALSE(takes(*long_one, '"' + ("x" + std::string(98, 'y')) + '"'));
  const auto both = compiler.json_schema(R"({"pattern": "^.*[.]com$", "format": "hostname"})");
  CHECK(takes(*both, R"("a.com")"));
  CHECK_FALSE(takes(*both, R"("a.org")"));
  CHECK_FALSE(takes(*both, R"("a..com")"));
  CHECK_THAT(schema_error(R"({"pattern": "^(ab)*$", "minLength": 3, "maxLength": 3})"),
             Contains("matches no text"));
  CHECK_THAT(schema_error(R"({"pattern": "^([a-z]|[0-9]{3}x)*$", "maxLength": 1000000})"),
             Contains("the pattern '^([a-z]|[0-9]{3}x)*$'"));
}

TEST_CASE("strings of a random pattern and length are those that match and are as long") {
  nanovllm_test::RandomRegex patterns(21);
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  int num_yes = 0, num_no = 0;
  for (int i = 0; i < 600; ++i) {
    std::string pattern = patterns.pattern(4);
    if (pattern.find_first_of("^$") != pattern.npos) continue;
    const int min = patterns.below(4), max = patterns.below(3) ? min + patterns.below(4) : -1;
    const std::string schema = schema_of(pattern, min, max);
    INFO(schema);
    std::shared_ptr<const nv::GrammarSource> all, some;
    try {
      all = compiler.json_schema(schema_of(pattern, 0, -1));
    } catch (const nv::RequestError&) {
      continue;
    }
    try {
      some = compiler.json_schema(schema);
    } catch (const nv::RequestError& error) {
      REQUIRE_THAT(error.what(), Contains("matches no text"));
    }
    for (int t = 0; t < 150; ++t) {
      const std::string text = patterns.text(7), json = nv::Json(text).dump();
      const auto size = static_cast<int>(num_characters(text));
      const bool expected = takes(*all, json) && size >= min && (max < 0 || size <= max);
      (expected ? num_yes : num_no)++;
      if (expected != (some && takes(*some, json))) {
        INFO(json);
        REQUIRE(expected == (some && takes(*some, json)));
      }
    }
  }
  CHECK(num_yes > 500);
  CHECK(num_no > 5000);
}
