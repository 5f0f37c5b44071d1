#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/regex/random_regex.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nv = nanovllm;
using nanovllm_test::Pcre2Oracle;
using nanovllm_test::RandomRegex;

namespace {

bool matches(const nv::ByteDfa& dfa, std::string_view text) {
  const auto state = dfa.next(nv::ByteDfa::kStart, text);
  return state != nv::ByteDfa::kDead && dfa.accepts(state);
}

bool matches(std::string_view pattern, std::string_view text) {
  return matches(nv::compile_regex(pattern), text);
}

/// A text that the automaton goes through at random until it may end.
std::string random_match(const nv::ByteDfa& dfa, std::mt19937& random) {
  std::string text;
  nv::ByteDfa::StateId state = nv::ByteDfa::kStart;
  for (int i = 0; i < 60 && dfa.goes_on(state); ++i) {
    if (dfa.accepts(state) && random() % 3 == 0) break;
    std::uint8_t byte;
    do {  // letters of the pattern are more likely than the rest of Unicode
      byte =
          static_cast<std::uint8_t>(random() % 4 != 0 ? "abc1_\n"[random() % 6] : random() % 256);
    } while (dfa.next(state, byte) == nv::ByteDfa::kDead && random() % 1000 != 0);
    if (dfa.next(state, byte) == nv::ByteDfa::kDead) continue;
    state = dfa.next(state, byte);
    text += static_cast<char>(byte);
  }
  return text;
}

}  // namespace

TEST_CASE("random patterns match the texts that PCRE2 matches") {
  RandomRegex regex(1);
  int num_patterns = 0, num_texts = 0, num_matches = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::string pattern = regex.pattern(5);
    INFO("pattern " << pattern);
    const Pcre2Oracle oracle(pattern);
    REQUIRE(oracle.is_valid());
    std::optional<nv::ByteDfa> dfa;
    try {
      dfa.emplace(nv::compile_regex(pattern));
    } catch (const nv::RequestError& error) {
      // [^…] of everything, or anchors in the middle.
      CHECK(std::string(error.what()) == "the regular expression matches no text at all");
      for (int i = 0; i < 200; ++i) CHECK_FALSE(oracle.matches(regex.text(6)).value_or(false));
      continue;
    }
    ++num_patterns;
    for (int i = 0; i < 60; ++i) {
      std::string text = i % 2 == 0 ? random_match(*dfa, regex.random) : regex.text(6);
      if (i % 4 == 2 && !text.empty()) text[regex.random() % text.size()] = "ab\x82\xF0"[i % 4];
      const std::optional<bool> expected = oracle.matches(text);
      const bool is_utf8 = nv::utf8::valid_prefix(text) == text.size();
      if (is_utf8 && !expected) continue;  // PCRE2 gave up
      ++num_texts;
      num_matches += expected.value_or(false);
      INFO("text " << text);
      REQUIRE(matches(*dfa, text) == expected.value_or(false));
    }
  }
  CHECK(num_patterns > 1400);
  CHECK(num_matches > num_texts / 5);
  CHECK(num_matches < num_texts * 4 / 5);
}

TEST_CASE("every state can be completed, and only states that go on have a next byte") {
  RandomRegex regex(2);
  for (int round = 0; round < 300; ++round) {
    const std::string pattern = regex.pattern(5);
    INFO("pattern " << pattern);
    std::optional<nv::ByteDfa> dfa;
    try {
      dfa.emplace(nv::compile_regex(pattern));
    } catch (const nv::RequestError&) {
      continue;
    }
    // The states that can reach the end, by rounds of looking one byte ahead.
    std::vector<bool> ends(dfa->num_states(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t s = 0; s < ends.size(); ++s) {
        const auto state = static_cast<nv::ByteDfa::StateId>(s);
        bool goes_on = false, reaches = dfa->accepts(state);
        for (int byte = 0; byte < 256; ++byte) {
          const auto next = dfa->next(state, static_cast<std::uint8_t>(byte));
          if (next == nv::ByteDfa::kDead) continue;
          goes_on = true;
          reaches = reaches || ends[static_cast<std::size_t>(next)];
        }
        REQUIRE(dfa->goes_on(state) == goes_on);
        if (reaches && !ends[s]) ends[s] = changed = true;
      }
    }
    for (std::size_t s = 0; s < ends.size(); ++s) REQUIRE(ends[s]);
  }
}

TEST_CASE("states are alike to a depth if they can read the same texts up to it") {
  RandomRegex regex(4);
  int num_alike = 0, num_pairs = 0;
  for (int round = 0; round < 200; ++round) {
    const std::string pattern = round % 2 ? "[ab]{1,20}" : regex.pattern(4);
    std::optional<nv::ByteDfa> dfa;
    try {
      dfa.emplace(nv::compile_regex(pattern));
    } catch (const nv::RequestError&) {
      continue;
    }
    if (dfa->num_states() > 40) continue;
    const std::size_t depth = regex.random() % 5;
    const auto alike = dfa->alike_to_depth(depth);
    REQUIRE(alike.size() == dfa->num_states());
    const auto reads_the_same = [&](const auto& self, nv::ByteDfa::StateId a,
                                    nv::ByteDfa::StateId b, std::size_t d) -> bool {
      if (a == b || d == 0) return true;
      for (int byte = 0; byte < 256; ++byte) {
        const auto next_a = dfa->next(a, static_cast<std::uint8_t>(byte));
        const auto next_b = dfa->next(b, static_cast<std::uint8_t>(byte));
        if ((next_a == nv::ByteDfa::kDead) != (next_b == nv::ByteDfa::kDead)) return false;
        if (next_a != nv::ByteDfa::kDead && byte > 0 &&
            next_a == dfa->next(a, static_cast<std::uint8_t>(byte - 1)) &&
            next_b == dfa->next(b, static_cast<std::uint8_t>(byte - 1)))
          continue;  // as with the byte before
        if (next_a != nv::ByteDfa::kDead && !self(self, next_a, next_b, d - 1)) return false;
      }
      return true;
    };
    INFO("pattern " << pattern << ", depth " << depth);
    for (std::size_t a = 0; a < alike.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b, ++num_pairs) {
        const bool same = reads_the_same(reads_the_same, static_cast<nv::ByteDfa::StateId>(a),
                                         static_cast<nv::ByteDfa::StateId>(b), depth);
        REQUIRE((alike[a] == alike[b]) == same);
        num_alike += same;
      }
    }
  }
  CHECK(num_alike > num_pairs / 10);
  CHECK(num_alike < num_pairs * 9 / 10);

  const auto alike = nv::compile_regex("[ab]{1,500}").alike_to_depth(128);
  CHECK(alike.size() == 501);
  CHECK(*std::max_element(alike.begin(), alike.end()) == 128);
}

TEST_CASE("ranges of code points are the bytes of their UTF-8, and no others") {
  std::mt19937 random(3);
  const char32_t edges[] = {0,      0x7F,   0x80,    0x7FF,   0x800,   0xFFF,   0x1000,   0xD7FF,
                            0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF};
  for (int round = 0; round < 400; ++round) {
    const auto pick = [&] {
      const char32_t near = edges[random() % std::size(edges)] + random() % 5;
      return std::min<char32_t>(random() % 2 ? near : random() % 0x110000, 0x10FFFF);
    };
    char32_t first = pick(), last = pick();
    if (first > last) std::swap(first, last);
    nv::RegexNode node{.kind = nv::RegexNode::Kind::characters};
    node.characters.add(first, last);
    if (node.characters.ranges().empty()) continue;
    const nv::ByteDfa dfa(nv::make_nfa(node));
    for (int i = 0; i < 300; ++i) {
      const char32_t near = i % 2 ? first : last;
      char32_t c = i % 3 == 0 ? random() % 0x110000 : near - 3 + random() % 7;
      if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) continue;
      std::string text;
      nv::utf8::append(text, c);
      REQUIRE(matches(dfa, text) == (c >= first && c <= last));
    }
  }
  const nv::ByteDfa all = nv::compile_regex("[\\x00-\\u{10FFFF}]");
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      text += static_cast<char>(random() % 3 ? 0x80 + random() % 0x80 : random() % 256);
    const nv::utf8::Char c = nv::utf8::decode(text, 0);
    REQUIRE(matches(all, text) == (c.status == nv::utf8::Status::kValid && c.size == text.size()));
  }
}

TEST_CASE("repetition by numbers") {
  const nv::ByteDfa dfa = nv::compile_regex("(ab){3,5}c{2}d{2,}");
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 5; ++j) {
      for (int k = 0; k < 5; ++k) {
        std::string text;
        for (int n = 0; n < i; ++n) text += "ab";
        text += std::string(static_cast<std::size_t>(j), 'c') +
                std::string(static_cast<std::size_t>(k), 'd');
        CHECK(matches(dfa, text) == (i >= 3 && i <= 5 && j == 2 && k >= 2));
      }
    }
  }
  CHECK(nv::compile_regex(".{0,1000}").num_states() < 10'000);
}

TEST_CASE("anchors hold at the ends of the text alone") {
  CHECK(matches("^abc$", "abc"));
  CHECK(matches("(^a|b)c", "ac"));
  CHECK(matches("x*^a", "a"));
  CHECK_FALSE(matches("x*^a", "xa"));
  CHECK(matches("a(b|$)", "a"));
  CHECK(matches("a$b*", "a"));
  CHECK_FALSE(matches("a$b*", "ab"));
  CHECK_FALSE(matches("a$", "a\n"));
  CHECK(matches("^^a$$", "a"));
  CHECK(matches("^$", ""));
}

TEST_CASE("patterns that match nothing or need too much are refused") {
  const auto message = [](const std::string& pattern) -> std::string {
    try {
      (void)nv::compile_regex(pattern);
    } catch (const nv::RequestError& error) {
      return error.what();
    }
    return "";
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(message("a$b"), Contains("matches no text"));
  CHECK_THAT(message("[^\\s\\S]"), Contains("matches no text"));
  CHECK_THAT(message("((a{1000}){1000}){1000}"), Contains("500000 states"));
  CHECK_THAT(message("(((){1000}){1000}){1000}"), Contains("500000 states"));
  CHECK_THAT(message("(a|b)*a(a|b){30}"), Contains("work"));
  CHECK_THAT(message("(abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ){4000}"),
             Contains("work"));
  CHECK_THAT(message("([a-z]{0,500}[0-9]{0,500}){0,100}"), Contains("work"));
}
