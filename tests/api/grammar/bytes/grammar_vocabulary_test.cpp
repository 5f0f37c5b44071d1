#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using Ids = std::vector<nv::TokenId>;

TEST_CASE("the walk finds the tokens that a scan of the vocabulary finds") {
  std::mt19937 random(11);
  std::vector<std::string> words;
  for (int i = 0; i < 3000; ++i) {  // some of them twice
    std::string word;
    for (std::size_t n = 1 + random() % 6; n > 0; --n)
      word += static_cast<char>('a' + random() % 4);
    words.push_back(word);
  }
  words.push_back(std::string(3000, 'a'));
  const auto vocabulary = byte_vocabulary(words);
  for (int round = 0; round < 100; ++round) {
    // Reads a text letter by letter; `x` stands for any letter.
    std::string text;
    for (std::size_t n = random() % 8; n > 0; --n) text += static_cast<char>('a' + random() % 4);
    if (!text.empty() && round % 2) text[random() % text.size()] = 'x';
    const auto reads = [&](std::size_t at, char c) {
      return at < text.size() && (text[at] == 'x' || text[at] == c);
    };
    Ids found, expected;
    vocabulary->for_each_token(
        std::size_t{0},
        [&](std::size_t at, std::uint8_t byte, std::size_t& next) {
          next = at + 1;
          return reads(at, static_cast<char>(byte));
        },
        [&](nv::TokenId token) { found.push_back(token); });
    for (nv::TokenId id = 0; id < vocabulary->vocab_size(); ++id) {
      const std::string_view bytes = vocabulary->bytes(id);
      bool all = !bytes.empty();
      for (std::size_t i = 0; i < bytes.size(); ++i) all = all && reads(i, bytes[i]);
      if (all) expected.push_back(id);
    }
    std::sort(found.begin(), found.end());
    REQUIRE(found == expected);
  }
}

TEST_CASE("a tokenizer's special tokens stand for no text, and stop tokens stop") {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  std::optional<nv::TokenId> special;
  for (nv::TokenId id = 0; id < static_cast<nv::TokenId>(tokenizer.vocab_size()); ++id)
    if (tokenizer.is_special(id)) special = id;
  REQUIRE(special);
  const nv::TokenId word = tokenizer.encode(" the")[0];
  const nv::GrammarVocabulary vocabulary(tokenizer, Ids{word});
  CHECK(vocabulary.vocab_size() == static_cast<int>(tokenizer.vocab_size()));
  CHECK(vocabulary.bytes(*special).empty());
  CHECK(vocabulary.bytes(word).empty());
  CHECK(vocabulary.is_stop(word));
  CHECK_FALSE(vocabulary.is_stop(*special));
  CHECK(vocabulary.bytes(-1).empty());
  CHECK(vocabulary.bytes(vocabulary.vocab_size()).empty());
  int num_tokens = 0;
  vocabulary.for_each_token(
      0, [](int, std::uint8_t, int&) { return true; },
      [&](nv::TokenId token) {
        CHECK(vocabulary.bytes(token) == tokenizer.token_bytes(token));
        ++num_tokens;
      });
  int expected = 0;
  for (nv::TokenId id = 0; id < vocabulary.vocab_size(); ++id)
    expected += id != word && !tokenizer.is_special(id) && !tokenizer.token_bytes(id).empty();
  CHECK(num_tokens == expected);
}

TEST_CASE("vocabularies that no grammar can use are refused") {
  const std::vector<std::string_view> tokens{"a", "b"};
  CHECK_THROWS_AS(nv::GrammarVocabulary(tokens, Ids{}), nv::ConfigError);  // bytes without tokens
  CHECK_THROWS_AS(nv::GrammarVocabulary(tokens, Ids{2}), nv::RequestError);
  CHECK_THROWS_AS(nv::GrammarVocabulary(tokens, Ids{-1}), nv::RequestError);
  CHECK_THROWS_AS(nv::GrammarVocabulary(tokens, Ids{1}), nv::ConfigError);
  CHECK_NOTHROW(byte_vocabulary());
}
