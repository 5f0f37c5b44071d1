#include "nanovllm/sampling/choice_source.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Ids = std::vector<nv::TokenId>;

namespace {

std::set<nv::TokenId> allowed(const nv::TokenMatcher& matcher, int vocab_size) {
  std::vector<std::uint32_t> bits(nv::num_mask_words(static_cast<std::size_t>(vocab_size)), 0);
  matcher.fill(bits);
  std::set<nv::TokenId> tokens;
  for (nv::TokenId id = 0; id < static_cast<nv::TokenId>(32 * bits.size()); ++id)
    if (nv::is_allowed(bits, id)) tokens.insert(id);
  return tokens;
}

}  // namespace

TEST_CASE("masks have a bit for each token") {
  CHECK(nv::num_mask_words(0) == 0);
  CHECK(nv::num_mask_words(32) == 1);
  CHECK(nv::num_mask_words(33) == 2);
  std::vector<std::uint32_t> bits(2, 0);
  nv::allow_token(bits, 31);
  nv::allow_token(bits, 32);
  CHECK(bits == std::vector<std::uint32_t>{0x80000000u, 1u});
  CHECK(nv::is_allowed(bits, 31));
  CHECK_FALSE(nv::is_allowed(bits, 30));
  CHECK_FALSE(nv::is_allowed(bits, 64));
  CHECK_FALSE(nv::is_allowed(bits, -1));
}

TEST_CASE("a choice is produced token by token, then a stop token") {
  const std::vector<Ids> choices = {{5, 6, 7}, {5, 6}, {40, 1}};
  const nv::ChoiceSource source(choices, Ids{2, 3}, 41);
  CHECK(source.vocab_size() == 41);
  const auto matcher = source.matcher();
  CHECK(allowed(*matcher, 41) == std::set<nv::TokenId>{5, 40});
  CHECK_FALSE(matcher->accept(2));
  CHECK_FALSE(matcher->accept(6));
  CHECK(matcher->accept(5));
  CHECK(allowed(*matcher, 41) == std::set<nv::TokenId>{6});
  CHECK(matcher->accept(6));
  CHECK(allowed(*matcher, 41) == std::set<nv::TokenId>{2, 3, 7});
  CHECK_FALSE(matcher->is_finished());

  const auto other = matcher->clone();
  CHECK(matcher->accept(7));
  CHECK(matcher->is_finished());
  CHECK(allowed(*matcher, 41) == std::set<nv::TokenId>{2, 3});
  CHECK(other->accept(3));
  CHECK(other->is_finished());
  CHECK(allowed(*other, 41) == std::set<nv::TokenId>{2, 3});
  CHECK_FALSE(other->accept(7));
  CHECK(other->accept(2));
}

TEST_CASE("masks of random choices are those of the list") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Ids> choices(1 + random() % 12);
    for (Ids& choice : choices)
      for (std::size_t n = random() % 5; n > 0; --n)
        choice.push_back(static_cast<nv::TokenId>(random() % 4));
    const auto matcher = nv::ChoiceSource(choices, Ids{50}, 64).matcher();  // outlives its source
    Ids text;
    while (true) {
      std::set<nv::TokenId> expected;
      for (const Ids& choice : choices) {
        if (choice.size() < text.size() || !std::equal(text.begin(), text.end(), choice.begin()))
          continue;
        expected.insert(choice.size() == text.size() ? 50 : choice[text.size()]);
      }
      REQUIRE(allowed(*matcher, 64) == expected);
      REQUIRE(matcher->is_finished() == (expected == std::set<nv::TokenId>{50}));
      for (nv::TokenId id = -1; id < 66; ++id)
        REQUIRE(matcher->clone()->accept(id) == (expected.count(id) > 0));
      const auto drawn =
          *std::next(expected.begin(), static_cast<std::ptrdiff_t>(random() % expected.size()));
      REQUIRE(matcher->accept(drawn));
      if (drawn == 50) break;
      text.push_back(drawn);
    }
  }
}

TEST_CASE("choices that cannot be are refused") {
  using Choices = std::vector<Ids>;
  CHECK_THROWS_AS(nv::ChoiceSource(Choices{}, Ids{1}, 8), nv::RequestError);
  const auto unending = nv::ChoiceSource(Choices{{2}}, Ids{}, 8).matcher();
  CHECK_FALSE(unending->is_finished());
  CHECK(unending->accept(2));
  CHECK(unending->is_finished());  // no token says so
  CHECK_THROWS_AS(nv::ChoiceSource(Choices{{2, 1}}, Ids{1}, 8), nv::RequestError);
  CHECK_THROWS_AS(nv::ChoiceSource(Choices{{8}}, Ids{1}, 8), nv::RequestError);
  CHECK_THROWS_AS(nv::ChoiceSource(Choices{{-1}}, Ids{1}, 8), nv::RequestError);
  CHECK_THROWS_AS(nv::ChoiceSource(Choices{{2}}, Ids{8}, 8), nv::RequestError);
  CHECK_NOTHROW(nv::ChoiceSource(Choices{{}}, Ids{1}, 8));
}
