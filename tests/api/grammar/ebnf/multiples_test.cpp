#include "nanovllm/api/grammar/ebnf/grammar_terminal.hpp"

#include <limits>
#include <optional>
#include <random>
#include <string>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::schema_error;
using nanovllm_test::takes;

TEST_CASE("integers that a number divides, without needless zeros") {
  for (const std::int32_t step : {1, 2, 7, 10, 997}) {
    const nv::ByteDfa dfa = nv::multiples_of(step, nv::CompileBudget());
    const auto is_read = [&](const std::string& text) {
      const auto end = dfa.next(nv::ByteDfa::kStart, text);
      return end != nv::ByteDfa::kDead && dfa.accepts(end);
    };
    for (int i = -3000; i <= 3000; ++i)
      if (is_read(std::to_string(i)) != (i % step == 0)) REQUIRE(i == step);
    for (const char* no : {"", "-", "-0", "00", "014", "+14", "14.0", "1e1", "--14"})
      CHECK_FALSE(is_read(no));
  }
}

TEST_CASE("defect: multipleOf beside one bound, or bounds far apart") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  std::mt19937_64 random(5);
  for (int i = 0; i < 120; ++i) {
    const auto step = static_cast<long long>(1 + random() % 60);
    nv::Json schema = nv::Json::object();
    schema["type"] = i % 2 ? "integer" : "number";
    schema["multipleOf"] = step;
    std::optional<long long> min, max;
    const long long range = i % 3 ? 150 : 4'000'000'000;
    const auto draw = [&] {
      return static_cast<long long>(random() % static_cast<unsigned long long>(2 * range)) - range;
    };
    if (random() % 3) min = draw();
    if (random() % 3) max = min.value_or(0) + static_cast<long long>(random() % 500);
    if (min) schema["minimum"] = *min;
    if (max) schema["maximum"] = *max;
    INFO(schema.dump());
    std::shared_ptr<const nv::GrammarSource> source;
    try {
      source = compiler.json_schema(schema.dump());
    } catch (const nv::RequestError& error) {
      REQUIRE_THAT(error.what(), Contains("no value is valid"));
    }
    int num_taken = 0;
    for (const long long near : {min.value_or(0), max.value_or(0), 0LL}) {
      for (long long x = near - 200; x <= near + 200; ++x) {
        const bool expected = x % step == 0 && (!min || x >= *min) && (!max || x <= *max);
        num_taken += expected;
        if (expected != (source && takes(*source, std::to_string(x)))) REQUIRE(x == step);
      }
    }
    CHECK((num_taken > 0) == (source != nullptr));
  }
  const auto large = compiler.json_schema(
      R"({"type": "integer", "minimum": 1, "maximum": 9000000000000000, "multipleOf": 1000})");
  CHECK(takes(*large, "8999999999999000"));
  CHECK_FALSE(takes(*large, "9000000000001000"));
  CHECK_FALSE(takes(*large, "0"));
  CHECK_THAT(schema_error(R"({"multipleOf": 0.5})"), Contains("whole numbers from 1 to 1000"));
}
