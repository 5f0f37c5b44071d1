#include "nanovllm/api/grammar/ebnf/json_strings.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "api/grammar/regex/random_regex.hpp"
#include "catch.hpp"
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
             Contains("nothing refused"));
}

TEST_CASE("strings of a random pattern and length are those that match and are as long") {
  nanovllm_test::RandomRegex patterns(21);
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  int num_yes = 0, num_no = 0, num_begins = 0;
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
    // The counter takes the begins of strings that an automaton of all lengths takes.
    std::optional<nv::ByteDfa> written_out;
    if (some) {
      written_out = nv::strings_of_length(
          nv::json_strings_of_pattern("^(" + pattern + ")$", nv::CompileBudget()), min, max,
          nv::CompileBudget());
    }
    for (int t = 0; t < 150; ++t) {
      const std::string text = patterns.text(7), json = nv::Json(text).dump();
      for (std::size_t n = 1; some && t < 20 && n <= json.size(); ++n) {
        const std::string begin = json.substr(0, n);
        const bool lives = written_out->next(nv::ByteDfa::kStart, begin) != nv::ByteDfa::kDead;
        if (lives != takes(*some, begin, true)) REQUIRE(begin == "differs");
        num_begins += lives;
      }
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
  CHECK(num_begins > 1000);
}

TEST_CASE("lengths beside a pattern cost no states, whatever they are") {
  const auto vocabulary =
      byte_vocabulary({"ab", "abc", "bc\"", "xyzxyz", "\"}", "é", "a\"", "\\n"});
  const nv::JsonSchemaCompiler compiler(vocabulary);
  std::size_t size = 0;
  for (const std::string max : {"254", "2083", "8192", "1000000"}) {
    const auto source = compiler.json_schema(
        R"({"type": "string", "pattern": "^https?://\\S+$", "minLength": 10, "maxLength": )" + max +
        "}");
    if (size == 0) size = source->size_bytes();
    CHECK(source->size_bytes() == size);
    const auto count = static_cast<std::size_t>(std::stoi(max));
    if (count > 10'000) continue;
    const std::string begin = "\"http://";
    CHECK(takes(*source, begin + std::string(count - 7, 'x') + '"'));
    CHECK_FALSE(takes(*source, begin + std::string(count - 6, 'x') + '"'));
    CHECK_FALSE(takes(*source, begin + std::string(count - 6, 'x'), true));
    CHECK_FALSE(takes(*source, begin + "xx\""));
    CHECK(takes(*source, begin + "xxx\""));
  }
  // A look-ahead for the length is a length.
  const auto host = compiler.json_schema(
      R"({"pattern": "^(?=.{1,253}\\.?$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\\.[a-z0-9]+)*\\.?$"})");
  CHECK(takes(*host, R"("a-b.c.d")"));
  CHECK(takes(*host, "\"a." + std::string(251, 'x') + '"'));
  CHECK_FALSE(takes(*host, "\"a." + std::string(252, 'x') + '"'));
  const auto secret =
      compiler.json_schema(R"({"pattern": "^(?=.{3,}$)(?=.*\\d).+$", "maxLength": 4})");
  CHECK(takes(*secret, R"("ab1")"));
  for (const char* no : {R"("a1")", R"("abc")", R"("abcd1")"}) CHECK_FALSE(takes(*secret, no));
  CHECK(takes(*compiler.json_schema(R"({"format": "uri", "minLength": 1, "maxLength": 2083})"),
              R"("https://example.org/a?b=c")"));
}

TEST_CASE("masks of strings that are counted are what is taken") {
  const std::vector<std::string> words{"ab",  "abc", "bc\"",  "xyzxyz",   "\"}", "é",
                                       "a\"", "\\n", "\\\"a", "aaaaaaaa", "-a",  "a-"};
  const auto vocabulary = byte_vocabulary(words);
  const nv::JsonSchemaCompiler compiler(vocabulary);
  std::mt19937 random(4);
  int num_steps = 0;
  for (const char* schema :
       {R"({"pattern": "^[a-z]+(-[a-zé\n\"]+)*$", "minLength": 5, "maxLength": 9})",
        R"({"pattern": "^(ab)*$", "minLength": 3, "maxLength": 40})",
        R"({"pattern": "^(ab|xyzxyz)*$", "minLength": 30})",
        R"({"pattern": "a$", "maxLength": 30})",
        R"({"type": "string", "minLength": 3, "maxLength": 12})",
        R"({"items": {"pattern": "^a{2,30}$", "minLength": 20}})"}) {
    const auto source = compiler.json_schema(schema);
    for (int walk = 0; walk < 10; ++walk) {
      const auto matcher = source->matcher();
      for (int step = 0; step < 45 && !matcher->is_finished(); ++step, ++num_steps) {
        const auto allowed = nanovllm_test::allowed_tokens(*matcher, vocabulary->vocab_size());
        REQUIRE_FALSE(allowed.empty());
        for (nv::TokenId token = 0; token < vocabulary->vocab_size(); ++token) {
          const bool is_taken = matcher->clone()->accept(token);
          if (is_taken != std::binary_search(allowed.begin(), allowed.end(), token)) {
            INFO(schema << " step " << step);
            REQUIRE(token == -1);
          }
        }
        REQUIRE(matcher->accept(allowed[random() % allowed.size()]));
      }
    }
  }
  CHECK(num_steps > 300);
}
