#include "nanovllm/grammar/ebnf/number_text.hpp"

#include <cstdlib>
#include <random>
#include <string>

#include "catch.hpp"
#include "grammar/json/takes.hpp"
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
    const auto source = source_of(nv::ebnf::integers(min, max));
    for (long long x = -3000; x <= 3000; x += 1 + below(3)) {
      const bool expected = (!min || x >= *min) && (!max || x <= *max);
      if (expected != takes(*source, std::to_string(x))) REQUIRE(x == 99999);
    }
    for (const char* no : {"", "-", "-0", "00", "01", "1.0", "+1"}) CHECK_FALSE(takes(*source, no));
  }
  CHECK(nv::ebnf::integers(3, 2).empty());
  const auto large = source_of(nv::ebnf::integers(-9'000'000'000'000'000, 9'000'000'000'000'000));
  CHECK(takes(*large, "-9000000000000000"));
  CHECK_FALSE(takes(*large, "9000000000000001"));
}

TEST_CASE("decimal numbers within bounds are read, and no others") {
  std::mt19937 random(2);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const double divisors[] = {1, 2, 8, 10, 100};
  for (int i = 0; i < 250; ++i) {
    nv::ebnf::NumberBounds bounds;
    const double divisor = divisors[below(5)];
    const int low = below(400) - 200;
    if (below(4)) bounds.min = low / divisor;
    if (below(4)) bounds.max = (low + below(60)) / divisor;
    bounds.min_is_exclusive = below(2);
    bounds.max_is_exclusive = below(2);
    const std::string expression = nv::ebnf::numbers(bounds);
    INFO(bounds.min.value_or(-1e9) << " to " << bounds.max.value_or(1e9) << ": " << expression);
    const auto source = expression.empty() ? nullptr : source_of(expression);
    for (int t = 0; t < 300; ++t) {
      const double near = below(2) ? bounds.min.value_or(0) : bounds.max.value_or(0);
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
      const bool expected = (!bounds.min || value > *bounds.min ||
                             (value == *bounds.min && !bounds.min_is_exclusive)) &&
                            (!bounds.max || value < *bounds.max ||
                             (value == *bounds.max && !bounds.max_is_exclusive));
      if (expected == (source && takes(*source, text))) continue;
      INFO(text);
      REQUIRE(expected == (source && takes(*source, text)));
    }
  }
}

TEST_CASE("bounds that cannot be written are refused, with the bound") {
  using Catch::Matchers::Contains;
  const auto message = [](double min) -> std::string {
    try {
      static_cast<void>(nv::ebnf::numbers({.min = min}));
    } catch (const nv::RequestError& error) {
      return error.what();
    }
    return "nothing refused";
  };
  CHECK_THAT(message(2e15), Contains("2000000000000000") && Contains("beyond 1e15"));
  CHECK_THAT(message(1e-20), Contains("more than 15 digits behind the point"));
  CHECK(message(0.1) == "nothing refused");
}
