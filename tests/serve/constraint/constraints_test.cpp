#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "grammar/vocabularies.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/regex/regex_source.hpp"
#include "nanovllm/grammar/source/marker_source.hpp"
#include "nanovllm/serve/constraint/constraint_compiler.hpp"

namespace nv = nanovllm;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using Ids = std::vector<nv::TokenId>;
using Kind = nv::serve::OutputConstraint::Kind;

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

std::string refusal(auto&& call) {
  try {
    call();
  } catch (const nv::RequestError& error) {
    return error.what();
  }
  return "nothing refused";
}

}  // namespace

TEST_CASE("a constraint begins behind a thought") {
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

TEST_CASE("regular expressions and choices are compiled without another library") {
  const auto vocabulary = byte_vocabulary({"</think>"});
  nv::serve::RegexConstraintCompiler compiler(vocabulary, {.max_text_bytes = 100});
  CHECK(compiler.compile({}) == nullptr);
  CHECK(takes(*compiler.compile({.kind = Kind::regex, .text = "a+"}), "aaa"));
  const auto choice = compiler.compile({.kind = Kind::choice, .choices = {"a|b", "c"}});
  CHECK(takes(*choice, "a|b"));
  CHECK_FALSE(takes(*choice, "a"));
  CHECK(takes(*compiler.compile({.kind = Kind::regex, .text = "a+", .after_reasoning = true}),
              "hm</think>\na"));
  CHECK(compiler.compile_sized({.kind = Kind::regex, .text = "a+"}).size_bytes > 300);

  using Catch::Matchers::Contains;
  for (const Kind kind : {Kind::json_object, Kind::json_schema, Kind::grammar, Kind::tool_calls,
                          Kind::free_tool_calls})
    CHECK_THAT(refusal([&] { (void)compiler.compile({.kind = kind, .text = "{}"}); }),
               Contains("nanovllm::xgrammar"));
  CHECK_THAT(refusal([&] { (void)compiler.compile({.kind = Kind::regex, .text = "(a"}); }),
             Contains("(a"));
  CHECK_THAT(refusal([&] { (void)compiler.compile({.kind = Kind::choice}); }),
             Contains("at least one choice"));
  const auto too_long = [&] {
    (void)compiler.compile({.kind = Kind::regex, .text = std::string(101, 'a')});
  };
  CHECK_THAT(refusal(too_long), Contains("101 bytes"));
  nv::serve::OutputConstraint many{.kind = Kind::choice, .choices{1025, "a"}};
  CHECK_THAT(refusal([&] { (void)compiler.compile(many); }), Contains("1025 texts"));
  many.choices = {std::string(std::size_t{1} << 17, 'a')};
  CHECK_THAT(refusal([&] { (void)compiler.compile(many); }), Contains("131072 bytes"));
}

TEST_CASE("regular expressions that explode are refused in time") {
  const auto vocabulary = byte_vocabulary();
  nv::serve::RegexConstraintCompiler compiler(vocabulary);
  for (const char* pattern : {"(a|b)*a(a|b){30}", "(x{1,1000}){1,1000}", "(a{1,100000}){1,100000}",
                              "((((a?){30}){30}){30}){30}", ".{1,1000000}"}) {
    INFO(pattern);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(refusal([&] { (void)compiler.compile({.kind = Kind::regex, .text = pattern}); }) !=
          "nothing refused");
    CHECK(std::chrono::steady_clock::now() - begin <
          std::chrono::seconds(120));  // one, without a sanitizer
  }
}

namespace {

/// Compiles nothing, slowly, and counts.
struct SlowCompiler : nv::serve::SizedConstraintCompiler {
  std::shared_ptr<const nv::GrammarVocabulary> vocabulary = byte_vocabulary();
  std::atomic<int> num_calls = 0;

  nv::serve::CompiledConstraint compile_sized(
      const nv::serve::OutputConstraint& constraint) override {
    ++num_calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (constraint.text == "bad") throw nv::RequestError("bad");
    return {std::make_shared<const nv::RegexSource>(vocabulary, constraint.text),
            constraint.text.size()};
  }
};

}  // namespace

TEST_CASE("equal constraints are compiled once, by however many threads they are asked for") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 100);
  std::vector<std::shared_ptr<const nv::TokenMaskSource>> sources(8);
  std::atomic<int> num_failures = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < sources.size(); ++t) {
    threads.emplace_back([&, t] {
      sources[t] = cache.compile({.kind = Kind::regex, .text = "abc"});
      try {
        (void)cache.compile({.kind = Kind::regex, .text = "bad"});
      } catch (const nv::RequestError&) {
        ++num_failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& source : sources) CHECK(source == sources[0]);
  CHECK(num_failures == 8);
  CHECK(cache.size_bytes() == 3);
  const int before = inner->num_calls;
  CHECK(before >= 2);
  CHECK_THROWS_AS(cache.compile({.kind = Kind::regex, .text = "bad"}), nv::RequestError);
  CHECK(inner->num_calls == before + 1);  // failures are not remembered
  CHECK(cache.compile({.kind = Kind::regex, .text = "abc"}) == sources[0]);
  CHECK(inner->num_calls == before + 1);
  CHECK(cache.num_compiled() == static_cast<std::size_t>(before) + 1);
}

TEST_CASE("the cache forgets what was not asked for of late") {
  const auto inner = std::make_shared<SlowCompiler>();
  nv::serve::CachedConstraintCompiler cache(inner, 10);
  const auto compile = [&](const std::string& text) {
    return cache.compile({.kind = Kind::regex, .text = text});
  };
  CHECK(cache.compile({}) == nullptr);
  const auto first = compile("aaaa");
  (void)compile("bbbb");
  (void)compile("aaaa");
  CHECK(inner->num_calls == 2);
  (void)compile("cccc");  // bbbb goes
  CHECK(cache.size_bytes() == 8);
  CHECK(compile("aaaa") == first);
  CHECK(inner->num_calls == 3);
  (void)compile("bbbb");
  CHECK(inner->num_calls == 4);
  CHECK(takes(*first, "aaaa"));
  (void)compile(std::string(11, 'x'));  // larger than the cache: made, not remembered
  CHECK(cache.size_bytes() == 8);
  (void)compile(std::string(11, 'x'));
  CHECK(inner->num_calls == 6);
}

TEST_CASE("constraints that differ anywhere are not taken for each other") {
  const auto vocabulary = byte_vocabulary({"</think>"});
  nv::serve::CachedConstraintCompiler cache(
      std::make_shared<nv::serve::RegexConstraintCompiler>(vocabulary));
  const auto compile = [&](nv::serve::OutputConstraint constraint) {
    return cache.compile(constraint);
  };
  const std::vector<std::shared_ptr<const nv::TokenMaskSource>> sources{
      compile({.kind = Kind::regex, .text = "ab"}),
      compile({.kind = Kind::choice, .choices = {"ab"}}),
      compile({.kind = Kind::choice, .choices = {"a", "b"}}),
      compile({.kind = Kind::choice, .choices = {"a1:b"}}),
      compile({.kind = Kind::choice, .text = "ab", .choices = {"ab"}}),
      compile({.kind = Kind::regex, .text = "ab", .after_reasoning = true}),
      compile({.kind = Kind::regex, .text = "ab", .tools = nv::Json::array()}),
      compile({.kind = Kind::regex, .text = "ab", .parallel_tool_calls = false}),
      compile({.kind = Kind::regex,
               .text = "ab",
               .tool_call_format = nv::ToolCallFormat::qwen3_coder})};
  CHECK(cache.num_compiled() == sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(sources[i] != sources[j]);
}
