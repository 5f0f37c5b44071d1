#include "nanovllm/api/grammar/ebnf/used_texts.hpp"

#include <random>
#include <string>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;

namespace {

std::vector<std::string> texts_of(const nv::UsedTexts& used, std::int32_t scope) {
  std::vector<std::string> out;
  used.for_each(scope, [&](std::string_view text) { out.emplace_back(text); });
  return out;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a scope has its own texts, and one that is over is forgotten") {
  nv::UsedTexts used;
  used.add(0, "a");
  used.add(0, "b");
  nv::UsedTexts copy = used;
  CHECK(copy == used);
  used.add(7, "a");
  CHECK_FALSE(copy == used);
  CHECK(texts_of(used, 0) == Texts{"b", "a"});
  CHECK(texts_of(used, 7) == Texts{"a"});
  CHECK(texts_of(used, 3).empty());
  CHECK(texts_of(copy, 7).empty());
  used.add(0, "c");
  CHECK(texts_of(used, 7).empty());
  CHECK(texts_of(used, 0) == Texts{"c", "b", "a"});
  for (int i = 0; i < 300'000; ++i) used.add(1, "k");  // is freed without recursion
}

TEST_CASE("an unused text is none that is taken or used, and can end as long as one is left") {
  const nv::ByteDfa dfa = nv::compile_regex("a[xy]|b|c+d");
  const nv::UnusedText unused = nv::make_unused(dfa, {"b", "b"});
  nv::UsedTexts used;
  CHECK_FALSE(unused.allows("b", used, 0));
  CHECK(unused.allows("ax", used, 0));
  const auto can_end = [&](const std::string& begin) {
    return unused.can_end(dfa, dfa.next(nv::ByteDfa::kStart, begin), begin, used, 0);
  };
  CHECK(can_end("a"));
  CHECK_FALSE(can_end("b"));
  used.add(0, "ax");
  used.add(0, "b");
  CHECK_FALSE(unused.allows("ax", used, 0));
  CHECK(unused.allows("ax", used, 5));
  CHECK(can_end("a"));
  CHECK_FALSE(can_end("ax"));
  used.add(0, "ay");
  CHECK_FALSE(can_end("a"));
  CHECK(can_end("cc"));
  CHECK(can_end(""));
  CHECK(nv::make_unused(nv::compile_regex("\"[a-z]*\""), {}).num_texts.empty());
  CHECK_THROWS_AS(nv::make_unused(nv::compile_regex("a*"), {}), nv::RequestError);
  CHECK_THROWS_AS(nv::make_unused(nv::compile_regex("(ab)*c"), {}), nv::RequestError);
}

TEST_CASE("what $unused reads differs within its $scope") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary({"a,", ",b", "a,a", "b,a", "1,", "12"}));
  const auto list = compiler.grammar(
      "root ::= list\nlist ::= $scope \"(\" item (\",\" item)* \")\"\n"
      "item ::= $unused(\"x\") <[a-c] | \"1\"[0-9]* | \"x\"> | \"-\" list");
  for (const char* yes :
       {"(a)", "(a,b,c)", "(1,12,123)", "(12,1)", "(a,-(a,b,-(a)),b)", "(-(a),a)"})
    CHECK(takes(*list, yes));
  for (const char* no : {"(a,a)", "(x)", "(1,12,1)", "(a,-(b),a)", "(a,-(b,b))", "(a,b,c,b)"})
    CHECK_FALSE(takes(*list, no));
  CHECK_FALSE(takes(*list, "(x", true));
  CHECK(takes(*list, "(1,1", true));
  CHECK_FALSE(takes(*list, "(1,1,", true));
  const auto keys = compiler.grammar(
      "root ::= list\nlist ::= $scope (item \" \")*\nitem ::= $unused(\"\\\"no\\\"\") $key");
  CHECK(takes(*keys, R"("a" "\"" "\n" "é" "" )"));
  for (const char* no : {R"("a" "a" )", R"("no" )", R"("\u0061" )", R"("\/" )"})
    CHECK_FALSE(takes(*keys, no));
  const auto refused = [&](const std::string& ebnf) -> std::string {
    try {
      static_cast<void>(compiler.grammar(ebnf));
    } catch (const nv::RequestError& error) {
      return error.what();
    }
    return "nothing refused";
  };
  CHECK_THAT(refused("root ::= $scope \"a\""), Contains("has a $scope"));
  CHECK_THAT(refused("root ::= $unused() $string"), Contains("one automaton"));
  CHECK_THAT(refused("root ::= $unused() (\"a\" \"b\")"), Contains("one automaton"));
  CHECK_THAT(refused("root ::= $unused() \"\""), Contains("may not be empty"));
  CHECK_THAT(refused("root ::= $unused(a) \"b\""), Contains("to have )"));
}

TEST_CASE("masks of unused texts are what is taken, and none leads to a dead end") {
  std::mt19937 random(17);
  const std::string pieces[] = {"\"", "a", "b", "\":1", ",", "\\", "n", "{", "}", "\",\"", "1"};
  std::vector<std::string> words;
  while (words.size() < 300) {
    std::string word;
    for (unsigned i = 0, n = 2 + random() % 4; i < n; ++i)
      word += pieces[random() % std::size(pieces)];
    words.push_back(word);
  }
  const auto vocabulary = byte_vocabulary(words);
  const nv::JsonSchemaCompiler compiler(vocabulary);
  for (const char* key : {"$key", "<\"\\\"\" [ab]{0,2} \"\\\"\">", "<\"\\\"\" [a-z]{0,3} \"\\\"\">",
                          "<\"\\\"\" [^\\\"]{1,40} \"\\\"\">"}) {
    INFO(key);
    const bool is_small = std::string(key).find("[ab]") != std::string::npos;
    const auto source = compiler.grammar(
        std::string("root ::= object\nobject ::= $scope \"{\" (member (\",\" member)") +
        (is_small ? "{0,5}" : "*") + ")? \"}\"\nmember ::= $unused(\"\\\"a\\\"\") " + key +
        " \":\" (\"1\" | object)");
    for (int walk = 0; walk < 12; ++walk) {
      const auto matcher = source->matcher();
      for (int step = 0; step < 60 && !matcher->is_finished(); ++step) {
        const auto tokens = allowed_tokens(*matcher, vocabulary->vocab_size());
        std::vector<nv::TokenId> taken;
        for (nv::TokenId token = 0; token < vocabulary->vocab_size(); ++token)
          if (matcher->clone()->accept(token)) taken.push_back(token);
        REQUIRE(tokens == taken);
        REQUIRE(!tokens.empty());
        REQUIRE(matcher->accept(tokens[random() % tokens.size()]));
      }
    }
  }
}
