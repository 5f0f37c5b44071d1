#include "nanovllm/api/grammar/bytes/dfa_product.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/grammar/regex/random_regex.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;

namespace {

bool matches(const nv::ByteDfa& dfa, const std::string& text) {
  const nv::ByteDfa::StateId end = dfa.next(nv::ByteDfa::kStart, text);
  return end != nv::ByteDfa::kDead && dfa.accepts(end);
}

/// All texts of up to `size` bytes out of a few.
std::vector<std::string> all_texts(std::size_t size) {
  std::vector<std::string> out{""};
  for (std::size_t i = 0; out[i].size() < size; ++i)
    for (const char c : std::string("abc1_\xC3\xA9")) out.push_back(out[i] + c);
  return out;
}

}  // namespace

TEST_CASE("what two automata have in common is what both match") {
  nanovllm_test::RandomRegex patterns(5);
  std::vector<std::string> texts = all_texts(4);
  std::size_t num_common = 0, num_without = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string first = patterns.pattern(4), second = patterns.pattern(3);
    INFO(first << " and " << second);
    std::optional<nv::ByteDfa> a, b, both;
    try {
      a = nv::compile_regex(first);
      b = nv::compile_regex(second);
    } catch (const nv::RequestError&) {  // such as one that matches nothing
      continue;
    }
    const bool have = nv::have_common_text(*a, *b);
    const nv::CompileBudget budget;
    if (have) {
      both = nv::common_texts(*a, *b, budget);
      CHECK(budget.left() < nv::CompileBudget::kMaxSteps);
    } else {
      ++num_without;
      CHECK_THROWS_AS(nv::common_texts(*a, *b, budget), nv::RequestError);
    }
    for (const std::string& text : texts) {
      const bool is_common = matches(*a, text) && matches(*b, text);
      num_common += is_common;
      if (is_common != (both && matches(*both, text))) REQUIRE(text == "differs");
    }
  }
  CHECK(num_common > 1000);
  CHECK(num_without > 50);
  const nv::CompileBudget few(20);
  const nv::ByteDfa many = nv::compile_regex("[a-z]{50}");
  CHECK_THROWS_AS(nv::common_texts(many, many, few), nv::RequestError);
}

TEST_CASE("completions are counted") {
  const auto of = [](const std::string& pattern, const std::string& text) {
    const nv::ByteDfa dfa = nv::compile_regex(pattern);
    const nv::DfaCompletions all = nv::completions(dfa);
    const auto at = static_cast<std::size_t>(dfa.next(nv::ByteDfa::kStart, text));
    return std::pair(all.num_texts[at], all.longest[at]);
  };
  constexpr std::uint32_t kUnlimited = nv::DfaCompletions::kUnlimited;
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  CHECK(of("a|bc|bd", "") == Pair(3, 2));
  CHECK(of("a|bc|bd", "b") == Pair(2, 1));
  CHECK(of("a|bc|bd", "a") == Pair(1, 0));
  CHECK(of("[a-z]{0,2}", "") == Pair(1 + 26 + 676, 2));
  CHECK(of("[a-z]{9}", "") == Pair(kUnlimited, 9));
  CHECK(of("[a-z]{9}", "abcdef") == Pair(26 * 26 * 26, 3));
  CHECK(of("x(ab)*|y", "") == Pair(kUnlimited, kUnlimited));
  CHECK(of("x(ab)*|y", "xa") == Pair(kUnlimited, kUnlimited));
  CHECK(of("x(ab)*|y", "y") == Pair(1, 0));
  CHECK(of("é|è", "") == Pair(2, 2));
}

TEST_CASE("completions of random finite patterns are as many as they have texts") {
  nanovllm_test::RandomRegex patterns(8, true);
  const std::vector<std::string> texts = all_texts(6);  // é alone has two bytes
  for (int i = 0; i < 100; ++i) {
    const std::string pattern = patterns.pattern(4, 3);
    INFO(pattern);
    const nv::ByteDfa dfa = nv::compile_regex(pattern);
    std::uint32_t count = 0, longest = 0;
    for (const std::string& text : texts) {
      if (!matches(dfa, text)) continue;
      ++count;
      longest = std::max(longest, static_cast<std::uint32_t>(text.size()));
    }
    const nv::DfaCompletions all = nv::completions(dfa);
    CHECK(all.num_texts[0] == count);
    CHECK(all.longest[0] == longest);
  }
}

TEST_CASE("an automaton of a step function reads what that reads") {
  // Binary numbers by their remainder of 5.
  nv::DfaExplorer::Kinds kinds{};
  kinds['0'] = 1;
  kinds['1'] = 2;
  const nv::CompileBudget budget(1000);
  const nv::ByteDfa dfa = nv::DfaExplorer::explore(
      kinds, 0,
      [](int& rest, std::uint8_t byte) {
        if (byte != '0' && byte != '1') return false;
        rest = (2 * rest + (byte - '0')) % 5;
        return true;
      },
      [](int rest) { return rest == 0; }, budget);
  CHECK(dfa.num_states() == 5);
  CHECK(budget.left() == 1000 - 5 * 3 * nv::DfaExplorer::kStepCost);
  for (const char* yes : {"", "0", "101", "1010", "1111"}) CHECK(matches(dfa, yes));
  for (const char* no : {"1", "110", "1012", "x"}) CHECK_FALSE(matches(dfa, no));
}
