#include "nanovllm/grammar/xgrammar_source.hpp"

#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "grammar/json/random_schema.hpp"
#include "grammar/vocabularies.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::random_walk;
using nanovllm_test::RandomSchema;
using Ids = std::vector<nv::TokenId>;

namespace {

std::shared_ptr<const nv::GrammarVocabulary> fairytale_vocabulary() {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  const nv::TokenId stop = *tokenizer.token_to_id("<|endoftext|>");
  return std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&stop, 1));
}

/// Whether the bytes of `text`, one a token, and then the end are allowed.
bool takes(const nv::TokenMaskSource& source, const std::string& text) {
  const auto matcher = source.matcher();
  for (char c : text)
    if (!matcher->accept(2 + static_cast<unsigned char>(c))) return false;
  return matcher->accept(0);
}

/// Lines of {"schema", "text"} for random schemas; counts the walks that came to no end.
std::vector<nlohmann::json> random_texts(unsigned seed, int num_schemas, bool numbers,
                                         int& unfinished) {
  const auto vocabulary = fairytale_vocabulary();
  const nv::XGrammarCompiler compiler(vocabulary);
  RandomSchema schemas(seed);
  schemas.numbers = numbers;
  std::vector<nlohmann::json> lines;
  long steps = 0;
  for (int i = 0; i < num_schemas; ++i) {
    const nlohmann::json schema = i % 3 ? schemas.object(3) : schemas.schema(3);
    INFO("schema " << schema.dump());
    nv::JsonStyle style;
    style.any_whitespace = i % 7 == 1;
    style.compact = i % 7 == 0;
    const auto source = compiler.json_schema(schema.dump(), style);
    const auto text = random_walk(*source, *vocabulary, schemas.random, 80, 1500, steps);
    if (!text) {
      ++unfinished;
      continue;
    }
    lines.push_back({{"schema", schema}, {"text", *text}});
  }
  return lines;
}

}  // namespace

TEST_CASE("what is drawn under a random JSON Schema is JSON") {
  int unfinished = 0;
  for (const nlohmann::json& line : random_texts(31, 150, false, unfinished)) {
    INFO(line.dump());
    CHECK(nlohmann::json::accept(line["text"].get<std::string>()));
  }
  CHECK(unfinished <= 3);
}

TEST_CASE("what is drawn under 1000 random JSON Schemas is valid by them") {
  const std::string script = "python3 tests/oracle/validate_json_schema.py ";
  if (std::system("python3 -c 'import jsonschema' > /dev/null 2>&1") != 0) {
    WARN("skipped: there is no python3 with the package jsonschema");
    return;
  }
  int unfinished = 0;
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("nanovllm_schemas_" + std::to_string(::getpid()) + ".jsonl");
  {
    std::ofstream out(file);
    for (const nlohmann::json& line : random_texts(32, 1000, true, unfinished)) out << line << "\n";
  }
  CHECK(unfinished <= 10);
  CHECK(std::system((script + file.string()).c_str()) == 0);
  std::filesystem::remove(file);
}

TEST_CASE("a JSON Schema says what comes next") {
  const auto vocabulary = byte_vocabulary({"{\"", "true", "tru", "\": "});
  const nv::XGrammarCompiler compiler(vocabulary);
  nv::JsonStyle style;
  style.compact = true;
  const auto source = compiler.json_schema(
      R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})", style);
  CHECK(source->vocab_size() == vocabulary->vocab_size());
  CHECK(source->size_bytes() > 0);
  CHECK(takes(*source, R"({"a":true})"));
  CHECK_FALSE(takes(*source, R"({"a":tru})"));
  CHECK_FALSE(takes(*source, R"({"b":true})"));

  const nv::TokenId first_word = 258;
  const auto matcher = source->matcher();
  const Ids begin{2 + '{', first_word};
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == begin);
  CHECK_FALSE(matcher->accept(first_word + 1));
  CHECK_FALSE(matcher->accept(0));
  CHECK_FALSE(matcher->accept(1));
  CHECK_FALSE(matcher->accept(-1));
  CHECK_FALSE(matcher->accept(vocabulary->vocab_size()));
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == begin);  // refusals change nothing
  CHECK(matcher->accept(first_word));
  const auto other = matcher->clone();
  for (char c : std::string("a\":true")) CHECK(matcher->accept(2 + c));
  CHECK_FALSE(matcher->is_finished());
  CHECK(matcher->accept(2 + '}'));
  CHECK(matcher->is_finished());
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == Ids{0});
  CHECK(matcher->accept(0));
  CHECK(matcher->is_finished());
  CHECK(allowed_tokens(*matcher, vocabulary->vocab_size()) == Ids{0});
  CHECK(matcher->accept(0));
  CHECK_FALSE(matcher->accept(2 + 'a'));
  CHECK(other->accept(2 + 'a'));
}

TEST_CASE("a mask may be longer than the vocabulary") {
  const auto vocabulary = byte_vocabulary();
  const auto source = nv::XGrammarCompiler(vocabulary).regex("(.|\\n)*");
  std::vector<std::uint32_t> bits(nv::num_mask_words(1000), 0);
  source->matcher()->fill(bits);
  CHECK(nv::is_allowed(bits, 0));
  CHECK_FALSE(nv::is_allowed(bits, 1));
  CHECK(nv::is_allowed(bits, 2 + 'a'));
  for (nv::TokenId id = vocabulary->vocab_size(); id < 1024; ++id)
    REQUIRE_FALSE(nv::is_allowed(bits, id));
}

TEST_CASE("JSON, grammars and regular expressions by XGrammar") {
  const auto vocabulary = byte_vocabulary();
  const nv::XGrammarCompiler compiler(vocabulary);
  CHECK(takes(*compiler.json(), R"({"a": [1, 2.5, "x\n", null]})"));
  CHECK_FALSE(takes(*compiler.json(), R"({"a": [1,})"));
  for (const char* value : {"[]", "{}", "[[-1.5e3]]"}) CHECK(takes(*compiler.json(), value));
  CHECK_FALSE(takes(*compiler.json(), "3"));
  for (const char* value : {"3", "-1.5e3", "\"x\"", "null", "[]"})
    CHECK(takes(*compiler.json_schema("true"), value));
  const auto nested = compiler.ebnf("root ::= \"a\" root \"b\" | \"\"");
  CHECK(takes(*nested, "aaabbb"));
  CHECK(takes(*nested, ""));
  CHECK_FALSE(takes(*nested, "aab"));
  CHECK(takes(*compiler.regex("[a-c]+\\d{2}"), "abc12"));
  CHECK_FALSE(takes(*compiler.regex("[a-c]+\\d{2}"), "abc1"));
}

TEST_CASE("several threads compile grammars and go through one") {
  const auto vocabulary = byte_vocabulary();
  const nv::XGrammarCompiler compiler(vocabulary);
  const auto shared = compiler.json();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string name(1, static_cast<char>('a' + (t + i) % 5));
        const auto own =
            compiler.json_schema(R"({"type": "object", "properties": {")" + name +
                                 R"(": {"type": "string"}}, "required": [")" + name + R"("]})");
        const std::string text = "{\"" + name + "\": \"x\"}";
        if (!takes(*own, text) || takes(*own, "{}") || !takes(*shared, text)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("what XGrammar refuses is an error with its reason") {
  const auto vocabulary = byte_vocabulary();
  const nv::XGrammarCompiler compiler(vocabulary);
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const nv::RequestError& error) {
      return error.what();
    }
    return "nothing refused";
  };
  using Catch::Matchers::Contains;
  const std::string not_json = message([&] { (void)compiler.json_schema("{"); });
  CHECK_THAT(not_json, Contains("the JSON Schema is refused: "));
  CHECK(not_json.size() > 35);
  CHECK(not_json.find(".cc:") == not_json.npos);
  CHECK_THAT(message([&] { (void)compiler.json_schema(R"({"type": "strange"})"); }),
             Contains("strange"));
  CHECK_THAT(message([&] { (void)compiler.ebnf("root ::= other"); }), Contains("other"));
  CHECK_THAT(message([&] { (void)compiler.regex("(a"); }), Contains("refused"));
}
