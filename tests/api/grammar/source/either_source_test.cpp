#include "nanovllm/api/grammar/source/either_source.hpp"

#include <memory>
#include <string>
#include <vector>

#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/core/error.hpp"

using nanovllm::EitherSource;
using nanovllm::RegexSource;
using nanovllm::TokenId;

namespace {

const auto kVocabulary = nanovllm_test::byte_vocabulary({"ab", "abc"});

std::shared_ptr<const RegexSource> regex(const std::string& pattern) {
  return std::make_shared<const RegexSource>(kVocabulary, pattern);
}

/// Whether `source` takes all of `text`, byte by byte, and an end after it. At every step what may
/// come next is what is taken, and a token that is refused leaves no trace.
bool takes(const nanovllm::TokenMaskSource& source, const std::string& text) {
  auto matcher = source.matcher();
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const auto allowed = nanovllm_test::allowed_tokens(*matcher, source.vocab_size());
    std::vector<TokenId> accepted;
    for (TokenId token = 0; token < source.vocab_size(); ++token) {
      if (matcher->clone()->accept(token)) accepted.push_back(token);
    }
    CHECK(allowed == accepted);
    CHECK_FALSE(matcher->accept(1));  // stands for nothing
    CHECK(nanovllm_test::allowed_tokens(*matcher, source.vocab_size()) == allowed);
    CHECK(matcher->is_finished() == (allowed == std::vector<TokenId>{0}));
    const TokenId next =
        i == text.size() ? 0 : 2 + static_cast<TokenId>(static_cast<unsigned char>(text[i]));
    if (!matcher->accept(next)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("either of two constraints is kept, whichever the text turns out to be") {
  const EitherSource source(regex("ab*c"), regex("ab(d|x)"));
  for (const char* text : {"ac", "abc", "abbbc", "abd", "abx"}) CHECK(takes(source, text));
  for (const char* text : {"", "a", "ab", "abbd", "abdc", "d", "abcx"})
    CHECK_FALSE(takes(source, text));
}

TEST_CASE("one that ends where the other goes on leaves the choice to the text") {
  const EitherSource source(regex("ab"), regex("abab"));
  CHECK(takes(source, "ab"));
  CHECK(takes(source, "abab"));
  CHECK_FALSE(takes(source, "aba"));
}

TEST_CASE("a token that is both ways' beginning keeps both open") {
  const EitherSource source(regex("abcx"), regex("aby"));
  auto matcher = source.matcher();
  const TokenId ab = 258, abc = 259;
  CHECK(nanovllm_test::allowed_tokens(*matcher, source.vocab_size()) ==
        std::vector<TokenId>{2 + 'a', ab, abc});
  REQUIRE(matcher->accept(ab));
  CHECK(nanovllm_test::allowed_tokens(*matcher, source.vocab_size()) ==
        std::vector<TokenId>{2 + 'c', 2 + 'y'});
  const auto other = matcher->clone();
  REQUIRE(matcher->accept(2 + 'y'));
  REQUIRE(other->accept(2 + 'c'));
  CHECK(nanovllm_test::allowed_tokens(*matcher, source.vocab_size()) == std::vector<TokenId>{0});
  CHECK(nanovllm_test::allowed_tokens(*other, source.vocab_size()) ==
        std::vector<TokenId>{2 + 'x'});
}

TEST_CASE("constraints of two vocabularies are refused") {
  const auto other = std::make_shared<const RegexSource>(nanovllm_test::byte_vocabulary(), "a");
  CHECK_THROWS_AS(EitherSource(regex("a"), other), nanovllm::RequestError);
}
