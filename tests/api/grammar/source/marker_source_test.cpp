#include "nanovllm/api/grammar/source/marker_source.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using Ids = std::vector<nv::TokenId>;

namespace {

/// Token ids of the words of `byte_vocabulary`.
constexpr nv::TokenId kStop = 0, kFirstWord = 258;

/// Whether the bytes of `text`, one a token, and then the end are allowed. Every mask on the way
/// must be what `accept` takes.
bool takes(const nv::TokenMaskSource& source, const std::string& text) {
  const auto matcher = source.matcher();
  for (char c : text)
    if (!matcher->accept(2 + static_cast<unsigned char>(c))) return false;
  return matcher->accept(kStop);
}

/// Goes a random way: what the mask allows is what `accept` takes, a refusal changes nothing, and a
/// clone goes on by itself. The text when it ended.
std::optional<std::string> lawful_walk(const nv::TokenMaskSource& source,
                                       const nv::GrammarVocabulary& vocabulary,
                                       std::mt19937& random, int max_steps) {
  auto matcher = source.matcher();
  std::string text;
  for (int step = 0; step < max_steps; ++step) {
    const Ids allowed = allowed_tokens(*matcher, vocabulary.vocab_size());
    REQUIRE_FALSE(allowed.empty());
    for (nv::TokenId id = -1; id <= vocabulary.vocab_size(); ++id) {
      const bool expected = std::binary_search(allowed.begin(), allowed.end(), id);
      REQUIRE(matcher->clone()->accept(id) == expected);
      if (!expected) REQUIRE_FALSE(matcher->accept(id));
    }
    REQUIRE(allowed_tokens(*matcher, vocabulary.vocab_size()) == allowed);
    REQUIRE(matcher->is_finished() == (allowed == Ids{kStop}));
    // Words are what markers are made of, so they come more often.
    nv::TokenId drawn = allowed[random() % allowed.size()];
    for (nv::TokenId id : allowed)
      if (id >= kFirstWord && random() % 6 == 0) drawn = id;
    if (allowed[0] == kStop && random() % 8 == 0) drawn = kStop;
    if (random() % 2 == 0) matcher = matcher->clone();
    REQUIRE(matcher->accept(drawn));
    if (drawn == kStop) return text;
    text += vocabulary.bytes(drawn);
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a constraint begins after a thought") {
  const auto vocabulary = byte_vocabulary({"</think>", "</th", "ink>", "\n\n", "ink>\n", "yes"});
  const auto inner = std::make_shared<const nv::RegexSource>(vocabulary, "yes|no");
  const auto source = nv::after_reasoning(vocabulary, inner);
  CHECK(source->vocab_size() == vocabulary->vocab_size());
  CHECK(takes(*source, "well </thin</think>yes"));
  CHECK(takes(*source, "</think>no"));
  CHECK(takes(*source, "a</think>\n\n \tno"));
  CHECK_FALSE(takes(*source, "yes"));
  CHECK_FALSE(takes(*source, "a</think>maybe"));
  CHECK_FALSE(takes(*source, "a</think>y\nes"));
  CHECK(takes(*source, "a</think>" + std::string(16, '\n') + "no"));
  CHECK_FALSE(takes(*source, "a</think>" + std::string(17, '\n') + "no"));

  const auto matcher = source->matcher();
  CHECK_FALSE(matcher->accept(kStop));
  CHECK_FALSE(matcher->accept(1));
  CHECK(matcher->accept(kFirstWord + 1));
  CHECK_FALSE(matcher->accept(kFirstWord + 4));  // the marker's end and more
  CHECK(matcher->accept(kFirstWord + 2));
  const Ids begin = allowed_tokens(*matcher, vocabulary->vocab_size());
  CHECK(begin == Ids{2 + '\t', 2 + '\n', 2 + '\r', 2 + ' ', 2 + 'n', 2 + 'y', kFirstWord + 3,
                     kFirstWord + 5});
  CHECK_FALSE(matcher->is_finished());
  CHECK(matcher->accept(kFirstWord + 5));
  CHECK(matcher->is_finished());
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == Ids{kStop});

  std::mt19937 random(3);
  int num_texts = 0;
  for (int i = 0; i < 60; ++i)
    if (const auto text = lawful_walk(*source, *vocabulary, random, 40)) {
      const auto end = text->find("</think>");
      REQUIRE(end != text->npos);
      const auto rest = text->find_first_not_of(" \t\r\n", end + 8);
      CHECK((text->substr(rest) == "yes" || text->substr(rest) == "no"));
      ++num_texts;
    }
  CHECK(num_texts > 20);
}

TEST_CASE("white space that the inner text begins with is the inner text's") {
  const auto vocabulary = byte_vocabulary();
  const auto inner = std::make_shared<const nv::RegexSource>(vocabulary, "\\na|b");
  const auto source = nv::after_reasoning(vocabulary, inner);
  CHECK(takes(*source, "</think>\na"));
  CHECK(takes(*source, "</think> b"));
  CHECK(takes(*source, "</think> \na"));
}

TEST_CASE("a marker that begins within itself is found") {
  const auto vocabulary = byte_vocabulary({"aab", "aaab", "ba"});
  const auto inner = std::make_shared<const nv::RegexSource>(vocabulary, "!");
  const nv::MarkerSource source(vocabulary, {.first = {.marker = "aabaaab"}}, inner);
  CHECK(takes(source, "aabaabaaab!"));
  CHECK(takes(source, "xaaabaaab!"));
  CHECK_FALSE(takes(source, "aabaab!"));
  CHECK_THROWS_AS(nv::MarkerSource(vocabulary, {}, inner), nv::RequestError);
}

TEST_CASE("parts between markers, in free text and without") {
  const auto vocabulary = byte_vocabulary({"<c>", "</c>", "1</c>", "</c>\n", "\n<c>"});
  const auto inner = std::make_shared<const nv::RegexSource>(vocabulary, "\\d+</c>");
  const nv::MarkerLead free_lead{.marker = "<c>"};
  const nv::MarkerSource free(
      vocabulary, {.first = free_lead, .may_end_before = true, .again = free_lead}, inner);
  CHECK(takes(free, ""));
  CHECK(takes(free, "any text </c> <c"));
  CHECK(takes(free, "a<c>12</c>b<c>3</c>"));
  CHECK(takes(free, "a<c>12</c>b<c>3</c>c"));
  CHECK_FALSE(takes(free, "a<c>12"));
  CHECK_FALSE(takes(free, "a<c>x</c>"));

  const nv::MarkerSource calls(vocabulary,
                               {.first = {.marker = "<c>", .any_text = false},
                                .again = nv::MarkerLead{.marker = "\n<c>", .any_text = false}},
                               inner);
  CHECK(takes(calls, "<c>1</c>"));
  CHECK(takes(calls, "<c>1</c>\n<c>2</c>"));
  for (const char* wrong : {"", "a<c>1</c>", "<c>1</c>\n", "<c>1</c>a", "<c>1</c><c>1</c>", "<c>"})
    CHECK_FALSE(takes(calls, wrong));
  const nv::MarkerSource one(vocabulary, {.first = {.marker = "<c>", .any_text = false}}, inner);
  CHECK(takes(one, "<c>1</c>"));
  CHECK_FALSE(takes(one, "<c>1</c>\n<c>2</c>"));

  std::mt19937 random(4);
  int num_texts = 0;
  for (const nv::MarkerSource* source : {&free, &calls, &one})
    for (int i = 0; i < 25; ++i)
      num_texts += lawful_walk(*source, *vocabulary, random, 30).has_value();
  CHECK(num_texts > 40);
}
