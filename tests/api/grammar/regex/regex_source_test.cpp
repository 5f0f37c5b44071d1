#include "nanovllm/api/grammar/regex/regex_source.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/grammar/regex/random_regex.hpp"
#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/bytes/mask_cache.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::Pcre2Oracle;
using nanovllm_test::RandomRegex;
using Ids = std::vector<nv::TokenId>;

namespace {

/// Words of the letters of RandomRegex, cut anywhere, also within letters.
std::vector<std::string> random_words(RandomRegex& regex, int count) {
  std::vector<std::string> words;
  while (static_cast<int>(words.size()) < count) {
    const std::string text = regex.text(4);
    if (text.size() < 2) continue;
    const std::size_t begin = regex.random() % text.size();
    const std::size_t size = 1 + regex.random() % (text.size() - begin);
    words.push_back(text.substr(begin, size));
  }
  return words;
}

/// Every text of at most `max` of the first six letters of RandomRegex.
std::vector<std::string> all_texts(int max) {
  std::vector<std::string> texts{""};
  for (std::size_t begin = 0, end = 1; max > 0; --max, begin = end, end = texts.size()) {
    for (std::size_t i = begin; i < end; ++i)
      for (const char* letter : {"a", "b", "c", "1", "_", "é"}) texts.push_back(texts[i] + letter);
  }
  return texts;
}

}  // namespace

TEST_CASE("a token is allowed if and only if a text that matches goes on with it") {
  RandomRegex regex(21, true);
  const auto vocabulary = byte_vocabulary(random_words(regex, 300));
  const std::vector<std::string> texts = all_texts(RandomRegex::kMaxChars);
  int num_steps = 0;
  for (int round = 0; round < 60; ++round) {
    const std::string pattern = regex.pattern(4);
    INFO("pattern " << pattern);
    const Pcre2Oracle oracle(pattern);
    REQUIRE(oracle.is_valid());
    std::vector<std::string> language;
    for (const std::string& text : texts)
      if (oracle.matches(text).value()) language.push_back(text);
    REQUIRE_FALSE(language.empty());

    const nv::RegexSource source(vocabulary, pattern);
    const auto matcher = source.matcher();
    std::string text;
    while (true) {
      Ids expected;
      for (nv::TokenId id = 1; id < vocabulary->vocab_size(); ++id) {
        const std::string next = text + std::string(vocabulary->bytes(id));
        const bool fits = next.size() > text.size() &&
                          std::any_of(language.begin(), language.end(),
                                      [&](const std::string& t) { return t.starts_with(next); });
        if (fits) expected.push_back(id);
      }
      REQUIRE(matcher->is_finished() == expected.empty());
      const bool ends = std::find(language.begin(), language.end(), text) != language.end();
      if (ends) expected.insert(expected.begin(), 0);
      INFO("text " << text);
      REQUIRE(allowed_tokens(*matcher, vocabulary->vocab_size()) == expected);
      for (nv::TokenId id = -1; id <= vocabulary->vocab_size(); ++id) {
        const bool is_allowed = std::find(expected.begin(), expected.end(), id) != expected.end();
        REQUIRE(matcher->clone()->accept(id) == is_allowed);
      }
      ++num_steps;
      const nv::TokenId drawn = expected[regex.random() % expected.size()];
      REQUIRE(matcher->accept(drawn));
      if (drawn == 0) break;
      text += vocabulary->bytes(drawn);
    }
    REQUIRE(matcher->is_finished());
    REQUIRE(allowed_tokens(*matcher, vocabulary->vocab_size()) == Ids{0});
    REQUIRE(matcher->accept(0));
    REQUIRE_FALSE(matcher->accept(2 + 'a'));
  }
  CHECK(num_steps > 150);
}

TEST_CASE("what is drawn under a random pattern matches it") {
  RandomRegex regex(22);
  const auto vocabulary = byte_vocabulary(random_words(regex, 300));
  int num_texts = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string pattern = regex.pattern(5);
    INFO("pattern " << pattern);
    std::unique_ptr<nv::RegexSource> source;
    try {
      source = std::make_unique<nv::RegexSource>(vocabulary, pattern, round % 2 ? 2000 : 1 << 20);
    } catch (const nv::RequestError&) {
      continue;  // matches nothing
    }
    const Pcre2Oracle oracle(pattern);
    for (int i = 0; i < 5; ++i) {
      const auto matcher = source->matcher();
      std::string text;
      bool ended = false;
      for (int step = 0; step < 50 && !ended; ++step) {
        const Ids tokens = allowed_tokens(*matcher, vocabulary->vocab_size());
        REQUIRE_FALSE(tokens.empty());
        const bool stops = tokens[0] == 0 && regex.random() % 3 == 0;
        const nv::TokenId drawn = stops ? 0 : tokens[regex.random() % tokens.size()];
        REQUIRE(matcher->accept(drawn));
        text += vocabulary->bytes(drawn);
        ended = drawn == 0;
      }
      const std::optional<bool> matches = oracle.matches(text);
      if (!ended || !matches) continue;
      INFO("text " << text);
      REQUIRE(*matches);
      ++num_texts;
    }
    if (round % 2) REQUIRE(source->mask_bytes() <= 2000 + sizeof(nv::CompactMask) + 300);
  }
  CHECK(num_texts > 1500);
}

TEST_CASE("matchers of one source go on by themselves, in several threads") {
  const auto vocabulary = byte_vocabulary({"abc", "bca", "cab", "ab"});
  auto source = std::make_unique<nv::RegexSource>(vocabulary, "(abc)*|[a-c]{7,9}", 100);
  const auto shared = source->matcher();
  REQUIRE(shared->accept(2 + 'a'));
  source.reset();  // matchers keep what they need
  std::vector<Ids> seen(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const auto matcher = shared->clone();
        for (const char c : std::string("bcabcabc")) {
          const Ids tokens = allowed_tokens(*matcher, vocabulary->vocab_size());
          if (round == 0) seen[t].insert(seen[t].end(), tokens.begin(), tokens.end());
          if (!matcher->accept(2 + c)) return seen[t].clear();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(seen[0].empty());
  for (const Ids& ids : seen) CHECK(ids == seen[0]);
}

TEST_CASE("choices of texts, however they are spelt") {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  const Ids stops{*tokenizer.token_to_id("<|endoftext|>")};
  const auto vocabulary = std::make_shared<const nv::GrammarVocabulary>(tokenizer, stops);
  const std::vector<std::string> texts{"the king", "the (queen)?", "thé"};

  const auto source = nv::text_choices(vocabulary, texts);
  const auto spell = [&](const nv::TokenMaskSource& from, const Ids& ids) {
    const auto matcher = from.matcher();
    for (nv::TokenId id : ids)
      if (!matcher->accept(id)) return false;
    return matcher->accept(stops[0]);
  };
  Ids letters;
  for (char c : texts[1]) letters.push_back(tokenizer.encode(std::string(1, c))[0]);
  for (const std::string& text : texts) CHECK(spell(*source, tokenizer.encode(text)));
  CHECK(spell(*source, letters));
  CHECK_FALSE(spell(*source, tokenizer.encode("the queen")));

  const auto encoded = nv::encoded_choices(tokenizer, texts, stops);
  for (const std::string& text : texts) CHECK(spell(*encoded, tokenizer.encode(text)));
  CHECK_FALSE(spell(*encoded, letters));
  CHECK_FALSE(spell(*encoded, tokenizer.encode("the queen")));

  CHECK_THROWS_AS(nv::text_choices(vocabulary, {}), nv::RequestError);
  CHECK_THROWS_AS(nv::encoded_choices(tokenizer, {}, stops), nv::RequestError);
}
