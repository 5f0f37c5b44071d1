/// The interpreter of chat templates: against Jinja2, its messages, and its bounds.

#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/api/chat/jinja_programs.hpp"

#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nv::JinjaTemplate;
using nv::Json;
using nv::parse_json;

namespace {

std::string render(const std::string& text, const Json& variables = Json::object()) {
  return JinjaTemplate(text).render(variables);
}

/// The message of the error that reading or rendering throws.
std::string error_of(const std::string& text, const Json& variables = Json::object()) {
  try {
    (void)render(text, variables);
  } catch (const nv::Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("every construct renders what Jinja2 renders, or is refused where it raises") {
  const Json fixture =
      parse_json(nv::MappedFile("tests/fixtures/chat/jinja_cases.json").text(), "the cases");
  const Json& variables = fixture["variables"];
  REQUIRE(fixture["cases"].size() > 200);
  for (const Json& one : fixture["cases"]) {
    const std::string& text = one["template"].string();
    CAPTURE(text);
    if (const Json* expected = one.find("text")) {
      CHECK(render(text, variables) == expected->string());
    } else {
      CHECK_THROWS_AS(render(text, variables), nv::Error);
    }
  }
}

TEST_CASE("errors name the place, what was expected and what came") {
  CHECK_THROWS_AS(JinjaTemplate("{% if %}"), nv::ConfigError);
  CHECK_THROWS_AS(JinjaTemplate("{{ a.b }}").render(Json::object()), nv::RequestError);
  CHECK(error_of("{% if %}") ==
        "chat template, line 1, column 7: expected an expression, got '%}'");
  CHECK(error_of("é\r\n\n{% for x y %}") ==
        "chat template, line 3, column 10: expected 'in', got 'y'");
  CHECK(error_of("{% endfor %}") ==
        "chat template, line 1, column 4: expected if, for, set, macro, call, filter, with, "
        "generation, break or continue, got 'endfor'");
  CHECK(error_of("{{ a b }} {{ (1] }}") ==
        "chat template, line 1, column 6: expected '}}', got 'b'");  // the first of two
  CHECK(error_of("a {{ b +\n 1 ") == "chat template, line 1, column 3: expected '}}'");
  CHECK(error_of("{{ (1] }}") == "chat template, line 1, column 6: expected ')', got ']'");
  CHECK(error_of("{{ 'x }}") ==
        "chat template, line 1, column 4: expected the quote that ends this string");
  CHECK(error_of("{{ 99999999999999999999 }}") ==
        "chat template, line 1, column 4: expected a number of at most 64 bits, got "
        "'99999999999999999999'");
  CHECK(error_of("a\n {{ b.c }}") == "chat template, line 2, column 6: 'b' is undefined");
  CHECK(error_of("{{ 1 | nope }}") ==
        "chat template, line 1, column 6: there is no filter called 'nope'");
  CHECK(error_of("{{ 'a' + missing }}") ==
        "chat template, line 1, column 8: '+' cannot take 'str' and 'missing', which is undefined");
  CHECK(error_of("{{ [].append(1) }}") ==
        "chat template, line 1, column 13: a chat template may not change a list; a namespace() "
        "can hold another");
  CHECK(error_of("{{ raise_exception('Roles must alternate') }}") ==
        "the chat template refuses the conversation: Roles must alternate");
  CHECK(error_of("{{ dict.x }}{{ range }}") ==
        "chat template, line 1, column 13: a function has no text");
}

TEST_CASE("a template ends, whatever it says") {
  const auto takes_too_long = Contains("takes too long");
  CHECK_THAT(
      error_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
      takes_too_long);
  CHECK_THAT(error_of("{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
                      "{% set ns.x = ns.x + ns.x %}{% endfor %}"),
             takes_too_long || Contains("exceeds 67108864 bytes"));
  CHECK_THAT(error_of("{{ 'a' * 99999999999 }}"), Contains("too long a value"));
  CHECK_THAT(error_of("{{ [1] * 33333333 }}"), takes_too_long);
  CHECK_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
             Contains("calls itself without end"));
  CHECK_THAT(error_of("{% set ns = namespace(x=[]) %}{% for i in range(999) %}"
                      "{% set ns.x = [ns.x] %}{% endfor %}"),
             Contains("levels deep"));
  // Values that are few to make and many to look at.
  const std::string doubled =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.y }}"})
    CHECK_THAT(error_of(doubled + use), takes_too_long || Contains("exceeds 67108864 bytes"));
  CHECK_THAT(error_of("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}"),
             Contains("holds itself"));
  CHECK_THAT(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
             Contains("calls itself without end"));
  const std::pair<const char*, const char*> kNested[] = {
      {"(", ")"}, {"[", "]"}, {"not ", ""}, {"-", ""}, {"{1: ", "}"}, {"a[", "]"}, {"f(", ")"}};
  for (const auto& [open, close] : kNested)
    CHECK_THAT(error_of("{{ " + repeated(open, 100000) + "1" + repeated(close, 100000) + " }}"),
               Contains("200 levels"));
  for (const char* nested :
       {"{% if a %}", "{% for a in b %}", "{% macro f() %}", "{% if a %}{% elif b %}"})
    CHECK_THAT(error_of(repeated(nested, 100000)), Contains("200 levels"));
  CHECK_THAT(error_of("{{ a" + repeated(" + a", 100000) + " }}", parse_json(R"({"a": 1})")),
             Contains("nests too deeply"));
  CHECK(render("{{ a" + repeated(" ~ a", 10000) + " }}", parse_json(R"({"a": 1})")).size() ==
        10001);
}

TEST_CASE("the time is the local one") {
  const std::time_t before = std::time(nullptr);
  const std::string text = render("{{ strftime_now('%Y-%m-%d %H:%M') }}");
  std::vector<std::string> possible;
  for (const std::time_t at : {before, std::time(nullptr)}) {
    std::tm local{};
    ::localtime_r(&at, &local);
    char buffer[64];
    possible.emplace_back(buffer, std::strftime(buffer, sizeof buffer, "%Y-%m-%d %H:%M", &local));
  }
  CHECK((text == possible[0] || text == possible[1]));
  CHECK(render("{{ strftime_now('') }}").empty());
}

TEST_CASE("one template is rendered by several threads at once") {
  const JinjaTemplate program(
      "{% set ns = namespace(n=0) %}{% for x in range(n) %}{% set ns.n = ns.n + x %}{{ 'ab' ~ x }}"
      "{% endfor %}{{ ns.n }}");
  std::vector<std::thread> threads;
  std::vector<int> num_right(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Json variables = Json::object({{"n", t + 1}});
      const std::string expected = program.render(variables);
      for (int i = 0; i < 200; ++i)
        num_right[static_cast<std::size_t>(t)] += program.render(variables) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int right : num_right) CHECK(right == 200);
}
