#include "nanovllm/api/grammar/ebnf/number_text.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;

namespace {

/// What an expression reads, as an automaton.
std::shared_ptr<const nv::GrammarSource> source_of(const std::string& expression) {
  return nv::JsonSchemaCompiler(byte_vocabulary()).grammar("root ::= <" + expression + ">");
}

}  // namespace

TEST_CASE("integers within bounds are read, and no others") {
  std::mt19937 random(1);
  const auto below = [&](int n) {
    return static_cast<long long>(random() % static_cast<unsigned>(n));
  };
  for (int i = 0; i < 150; ++i) {
    std::optional<long long> min, max;
    if (below(4)) min = below(2400) - 1200;
    if (below(4)) max = min.value_or(below(2400) - 1200) + below(i % 2 ? 1500 : 12);
    INFO(min.value_or(-99999) << " to " << max.value_or(99999));
    nv::ebnf::NumberBounds bounds{.min_is_exclusive = i % 3 == 0, .max_is_exclusive = i % 5 == 0};
    if (min) bounds.min = *min - bounds.min_is_exclusive;
    if (max) bounds.max = *max + bounds.max_is_exclusive;
    const auto source = source_of(nv::ebnf::integers(bounds));
    for (long long x = -3000; x <= 3000; x += 1 + below(3)) {
      const bool expected = (!min || x >= *min) && (!max || x <= *max);
      if (expected != takes(*source, std::to_string(x))) REQUIRE(x == 99999);
    }
    for (const char* no : {"", "-", "-0", "00", "01", "1.0", "+1"}) CHECK_FALSE(takes(*source, no));
  }
  CHECK(nv::ebnf::integers({.min = 3, .max = 2}).empty());
  const auto large = source_of(nv::ebnf::integers(
      {.min = std::numeric_limits<std::int64_t>::min(), .max = ~std::uint64_t{0}}));
  CHECK(takes(*large, "-9223372036854775808"));
  CHECK_FALSE(takes(*large, "-9223372036854775809"));
  CHECK(takes(*large, "18446744073709551615"));
  CHECK_FALSE(takes(*large, "18446744073709551616"));
  const auto halves = source_of(nv::ebnf::integers({.min = -2.5, .max = 2.5}));
  for (const char* yes : {"-2", "0", "2"}) CHECK(takes(*halves, yes));
  for (const char* no : {"-3", "3"}) CHECK_FALSE(takes(*halves, no));
}

TEST_CASE("decimal numbers within bounds are read, and no others") {
  std::mt19937 random(2);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const double divisors[] = {1, 2, 8, 10, 100};
  for (int i = 0; i < 250; ++i) {
    nv::ebnf::NumberBounds bounds;
    const double divisor = divisors[below(5)];
    const int low = below(400) - 200;
    const double low_bound = low / divisor, high_bound = (low + below(60)) / divisor;
    if (below(4)) bounds.min = low_bound;
    if (below(4)) bounds.max = high_bound;
    bounds.min_is_exclusive = below(2);
    bounds.max_is_exclusive = below(2);
    const std::string expression = nv::ebnf::numbers(bounds);
    const double least = bounds.min ? low_bound : -1e9, most = bounds.max ? high_bound : 1e9;
    INFO(least << " to " << most << ": " << expression);
    const auto source = expression.empty() ? nullptr : source_of(expression);
    for (int t = 0; t < 300; ++t) {
      const double near = below(2) ? low_bound : high_bound;
      std::string text = std::to_string(static_cast<long long>(near) + below(5) - 2);
      if (below(4)) {
        text += '.';
        for (int digits = 1 + below(3); digits > 0; --digits)
          text += static_cast<char>('0' + below(10));
      }
      if (below(8) == 0 && text[0] != '-') text.insert(0, "-");
      if (text == "-0") continue;  // zero has no sign where it has no point
      const double value = std::strtod(text.c_str(), nullptr);
      if (value == 0 && text[0] == '-') continue;
      const bool expected =
          (!bounds.min || value > low_bound || (value == low_bound && !bounds.min_is_exclusive)) &&
          (!bounds.max || value < high_bound || (value == high_bound && !bounds.max_is_exclusive));
      if (expected == (source && takes(*source, text))) continue;
      INFO(text);
      REQUIRE(expected == (source && takes(*source, text)));
    }
  }
}

TEST_CASE("bounds that leave only numbers of too many digits are refused") {
  const std::string far(300, '9');
  const auto schema = [](const std::string& bounds) {
    return R"({"type": "number", )" + bounds + "}";
  };
  for (const std::string type : {"integer", "number"}) {
    for (const std::string& bounds :
         {R"("minimum": )" + far, std::string(R"("exclusiveMinimum": 1e300)"),
          R"("maximum": -)" + far, R"("minimum": 1e300, "maximum": )" + far,
          R"("multipleOf": 7, "minimum": )" + far}) {
      INFO(type << ' ' << bounds);
      CHECK_THAT(
          nanovllm_test::schema_error(R"({"type": ")" + type + R"(", )" + bounds + "}"),
          Catch::Contains("bounds that leave only numbers from 10^40 on, or up to -10^40, are "
                          "not supported"));
    }
  }
  const auto source = nv::JsonSchemaCompiler(byte_vocabulary())
                          .json_schema(schema(R"("minimum": -)" + far + R"(, "maximum": )" + far));
  for (const char* yes : {"0", "-17.25", "1000000"}) CHECK(takes(*source, yes));
}

TEST_CASE("bounds at 10^40 and beside it") {
  const std::string most = "1" + std::string(40, '0'), less(40, '9'),
                    more = most.substr(0, 40) + "1";
  const auto schema = [](const std::string& type, const std::string& bounds) {
    return R"({"type": ")" + type + R"(", )" + bounds + "}";
  };
  const char* const refusal =
      "bounds that leave only numbers from 10^40 on, or up to -10^40, are not supported";
  for (const std::string type : {"integer", "number"}) {
    for (const std::string& low : {most, more, std::string("1e40"), std::string("1.5e40")}) {
      for (const std::string& bounds :
           {R"("minimum": )" + low, R"("exclusiveMinimum": )" + low, R"("maximum": -)" + low,
            R"("exclusiveMaximum": -)" + low, R"("minimum": )" + low + R"(, "maximum": )" + low}) {
        INFO(type << ' ' << bounds);
        CHECK_THAT(nanovllm_test::schema_error(schema(type, bounds)), Catch::Contains(refusal));
      }
    }
    const auto reads = [&](const std::string& bounds, const std::string& text) {
      INFO(type << ' ' << bounds << ' ' << text);
      const auto source =
          nv::JsonSchemaCompiler(byte_vocabulary()).json_schema(schema(type, bounds));
      return takes(*source, text);
    };
    for (const std::string sign : {"", "-"}) {
      const std::string last = sign.empty() ? "aximum\": " : "inimum\": -";
      for (const std::string& bound : {most, more, std::string("1e40"), std::string("1e300")}) {
        // Bounds beyond count as 10^40.
        const std::string within = "\"m" + last + bound, below = "\"exclusiveM" + last + bound;
        CHECK(reads(within, sign + most));
        CHECK_FALSE(reads(within, sign + more));
        CHECK(reads(within, sign + less));
        CHECK(reads(below, sign + less));
        // Whoever reads numbers as 64-bit floats takes it for 1e40.
        CHECK_FALSE(reads(below, sign + most));
      }
      CHECK(reads("\"m" + last + less, sign + less));
      CHECK_FALSE(reads("\"m" + last + less, sign + most));
    }
    CHECK(reads(R"("minimum": )" + less, less));
    CHECK_FALSE(reads(R"("minimum": )" + less, less.substr(1)));
    CHECK(reads(R"("maximum": -)" + less, "-" + less));
  }
  // A multiple of 7 there is beyond 10^40 only.
  CHECK_THAT(nanovllm_test::schema_error(schema("integer", R"("multipleOf": 7, "minimum": )" +
                                                               std::string(39, '9') +
                                                               R"(7, "maximum": 1e41)")),
             Catch::Contains(refusal));
}

TEST_CASE("bounds of any size are exact, and what is read as an exclusive bound is not taken") {
  const auto within = [](nv::ebnf::NumberBounds bounds) {
    return source_of(nv::ebnf::numbers(bounds));
  };
  const auto float32 = within({.min = -3.4028234663852886e38, .max = 3.4028234663852886e38});
  CHECK(takes(*float32, "340282346638528859811704183484516925440"));
  CHECK(takes(*float32, "-340282346638528859811704183484516925440"));
  CHECK_FALSE(takes(*float32, "340282346638528859811704183484516925441"));
  CHECK(takes(*float32, "0.125"));
  const auto float64 = within({.min = -1.7976931348623157e308, .max = 1.7976931348623157e308});
  CHECK(takes(*float64, "1" + std::string(40, '0')));
  CHECK_FALSE(takes(*float64, "1" + std::string(41, '0')));
  const auto tiny = within({.min = 1e-20, .max = 0.10000000149011612});
  CHECK(takes(*tiny, "0.1"));
  CHECK(takes(*tiny, "0.100000001490116"));
  for (const char* no : {"0", "0.0", "0.100000001490117", "0.2"}) CHECK_FALSE(takes(*tiny, no));
  std::mt19937_64 random(3);
  for (const double bound : {16.0, 32.0, 0.3, 1e15, 123456789.0, 1e20, -64.0, 0.1, 7.5, 1e-9}) {
    const auto above = within({.min = bound, .min_is_exclusive = true});
    const auto under = within({.max = bound, .max_is_exclusive = true});
    for (int i = 0; i < 200; ++i) {
      std::array<char, 400> text{};
      const double near =
          bound + std::ldexp(bound, -52) * static_cast<double>(static_cast<int>(random() % 9) - 4);
      std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(random() % 19), near);
      INFO(bound << " " << text.data());
      const double value = std::strtod(text.data(), nullptr);
      if (takes(*above, text.data())) CHECK(value > bound);
      if (takes(*under, text.data())) CHECK(value < bound);
    }
  }
}
