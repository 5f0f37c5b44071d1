#include "nanovllm/api/grammar/ebnf/grammar_source.hpp"

#include <time.h>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/json/random_schema.hpp"
#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_readings.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::allowed_tokens;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::random_walk;
using nanovllm_test::RandomSchema;

namespace {

using VocabularyPtr = std::shared_ptr<const nv::GrammarVocabulary>;

std::shared_ptr<const nv::GrammarSource> grammar(const std::string& ebnf,
                                                 VocabularyPtr vocabulary = byte_vocabulary()) {
  return nv::JsonSchemaCompiler(std::move(vocabulary)).grammar(ebnf);
}

/// Whether the bytes of `text`, one a token, can be read, and the text may end there.
bool takes(const nv::TokenMaskSource& source, const std::string& text, bool as_begin = false) {
  const auto matcher = source.matcher();
  for (char c : text)
    if (!matcher->accept(2 + static_cast<unsigned char>(c))) return false;
  return as_begin || matcher->accept(0);
}

std::string message(const std::string& ebnf) {
  try {
    static_cast<void>(grammar(ebnf));
  } catch (const nv::RequestError& error) {
    return error.what();
  }
  return "nothing refused";
}

/// A token may come next if and only if the matcher takes it.
void check_mask(const nv::TokenMatcher& matcher, const nv::GrammarVocabulary& vocabulary) {
  const std::vector<nv::TokenId> tokens = allowed_tokens(matcher, vocabulary.vocab_size());
  std::vector<nv::TokenId> taken;
  for (nv::TokenId token = 0; token < vocabulary.vocab_size(); ++token)
    if (matcher.clone()->accept(token)) taken.push_back(token);
  REQUIRE(tokens == taken);
  REQUIRE(!tokens.empty());
  REQUIRE(matcher.is_finished() == (tokens == std::vector<nv::TokenId>{0}));
}

std::size_t num_code_points(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++count) i += nv::utf8::decode(text, i).size;
  return count;
}

/// Of sanitizers' code, which is many times as slow, no time is asked.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr bool kTimed = false;
#else
constexpr bool kTimed = true;
#endif

double cpu_milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TEST_CASE("texts of grammars are taken and no others") {
  struct Case {
    const char* grammar;
    std::vector<std::string> yes, no;
  };
  const std::vector<Case> cases{
      {"root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"aab", "ba", "abb"}},
      {"root ::= \"a\" | \"a\" root root", {"a", "aaa", "aaaaaaaaa"}, {"", "aa", "b"}},
      {"root ::= empty \"x\" root | empty\nempty ::= none none\nnone ::= \"\" | \"y\"",
       {"", "x", "yyx", "yyxxyy", "yxxy"},
       {"yyy", "xyyy"}},
      {"root ::= [a-c\\u00E9]{2,3} (\"\\\"\" | \"\\n\")?", {"ab", "écb\"", "aa\n"}, {"a", "abcb"}},
      {"root ::= <number (\",\" number)*> \";\"\nnumber ::= [0-9]+", {"1;", "12,3;"}, {"1,;", ";"}},
      {"root ::= [^a\\]]+ \"a\"", {"éa", "b\na"}, {"a", "]a"}},
      {"root ::= $until \"<ab\" \"!\"", {"<ab!", "<<a<ab!", "é\n<ab!"}, {"<ab", "<ab<ab!"}},
      {"root ::= ($string{2,3} \" \")* $string{1,}",
       {R"("a")", R"("ab" "\n\"é" "x")", R"("\ud83d\ude00x" "\u0061bc")"},
       {R"("a" "b")", R"("")", R"("abcd" "a")", R"("\ude00x")", R"("a)", "\"a\tb\""}},
  };
  for (const Case& each : cases) {
    INFO(each.grammar);
    const auto source = grammar(each.grammar);
    for (const std::string& text : each.yes) {
      INFO(text);
      CHECK(takes(*source, text));
      for (std::size_t size = 0; size < text.size(); ++size)
        CHECK(takes(*source, text.substr(0, size), true));
    }
    for (const std::string& text : each.no) {
      INFO(text);
      CHECK_FALSE(takes(*source, text));
    }
  }
}

TEST_CASE("what is no grammar is refused") {
  CHECK_THAT(message("a ::= \"x\""), Contains("no rule 'root'"));
  CHECK_THAT(message("root ::= a"), Contains("no rule 'a'"));
  CHECK_THAT(message("root ::= \"x\"\nroot ::= \"y\""), Contains("another rule"));
  CHECK_THAT(message("root ::= (\"x\""), Contains("to have ) at byte 13"));
  CHECK_THAT(message("root ::= \"x"), Contains("a character"));
  CHECK_THAT(message("root ::= [b-a]"), Contains("a range that goes up"));
  CHECK_THAT(message("root ::= \"x\"{3,2}"), Contains("no fewer than before"));
  CHECK_THAT(message("root ::= \"x\" root"), Contains("has no text"));
  CHECK_THAT(message("root ::= root root | \"a\""),
             Contains("the rule 'root' calls itself before it reads anything"));
  CHECK_THAT(message("root ::= top\ntop ::= a \"x\" | \"y\"\na ::= b top last\nb ::= \"z\"?\n"
                     "last ::= \"w\""),
             Contains("calls itself before it reads anything") &&
                 (Contains("the rule 'a'") || Contains("the rule 'top'")));
  CHECK_THAT(message("root ::= <\"x\" root>"), Contains("leads back to itself"));
  const auto beyond = [](const std::string& ebnf, nv::GrammarLimits limits,
                         std::size_t max_steps = nv::CompileBudget::kMaxSteps) -> std::string {
    try {
      static_cast<void>(nv::make_grammar_network(ebnf, 16, limits, nv::CompileBudget(max_steps)));
    } catch (const nv::RequestError& error) {
      return error.what();
    }
    return "nothing refused";
  };
  CHECK_THAT(beyond("root ::= \"x\"{1000000}", {.max_nodes = 1000}), Contains("1000 states"));
  CHECK_THAT(beyond("root ::= <[ab]* [a] [ab]{30}>", {}, 10'000),
             Contains("the part <[ab]* [a] [ab]{30}> of the grammar") && Contains("too much work"));
  CHECK_THAT(beyond("root ::= <\"(\" [^x)]{1,50} \")\">", {.max_wide_bytes = 5000}),
             Contains("5000 bytes"));
  CHECK_THAT(beyond("root ::= \"abc\" \"abd\"", {.max_terminal_bytes = 100}),
             Contains("100 bytes"));
  CHECK_THAT(beyond("root ::= <@\"the pattern 'é'\" [ab]* [a] [ab]{30}>", {}, 300),
             Contains("the pattern 'é': ") && Contains("too much work"));
  CHECK(message("root ::= \"x\" | \"y\" root2\nroot2 ::= \"z\" root2") == "nothing refused");
}

TEST_CASE("masks are what is taken") {
  std::mt19937 random(7);
  std::vector<std::string> words;
  const std::string pieces[] = {"\"", "\\", "u",     "00", "e9", "a",        ",",
                                ":",  " ",  "{",     "}",  "é",  "\xF0\x9F", "\x98\x80",
                                "1",  "-",  "\"a\"", "[",  "]",  "n",        "\",\""};
  while (words.size() < 400) {
    std::string word;
    for (unsigned i = 0, n = 2 + random() % 4; i < n; ++i)
      word += pieces[random() % std::size(pieces)];
    words.push_back(word);
  }
  const auto vocabulary = byte_vocabulary(words);
  const nv::JsonSchemaCompiler compiler(vocabulary);
  for (
      const char* schema :
      {R"({"type": "string", "minLength": 3, "maxLength": 6})",
       R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "n": true}})",
       R"({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 4},
                      {"type": "string", "pattern": "^a{3,5}$"}]})",
       R"({"type": "array", "items": {"type": ["string", "integer"], "pattern": "^[^a]{1,4}$"},
            "minItems": 2, "maxItems": 3})",
       R"({"properties": {"aa": {"type": "null"}}, "additionalProperties": {"type": "integer"}})"}) {
    INFO(schema);
    const auto source = compiler.json_schema(schema);
    for (int walk = 0; walk < 6; ++walk) {
      const auto matcher = source->matcher();
      for (int step = 0; step < 25 && !matcher->is_finished(); ++step) {
        check_mask(*matcher, *vocabulary);
        const auto tokens = allowed_tokens(*matcher, vocabulary->vocab_size());
        const nv::TokenId token = tokens[random() % tokens.size()];
        REQUIRE(matcher->accept(token));
        if (token == 0) break;
      }
    }
  }
}

TEST_CASE("branches with strings of other lengths are told apart by what comes before and after") {
  const auto source = nv::JsonSchemaCompiler(byte_vocabulary()).json_schema(R"({"anyOf": [
      {"properties": {"s": {"type": "string", "maxLength": 3}, "t": {"type": "integer"}},
       "required": ["s", "t"]},
      {"properties": {"s": {"type": "string", "minLength": 3}, "t": {"type": "boolean"}},
       "required": ["s", "t"]},
      {"properties": {"k": {"const": "x"}, "s": {"type": "string", "maxLength": 1}},
       "required": ["k", "s"]}]})");
  CHECK(takes(*source, R"({"s": "ab", "t": 1})"));
  CHECK(takes(*source, R"({"s": "abc", "t": 1})"));
  CHECK(takes(*source, R"({"s": "abc", "t": true})"));
  CHECK(takes(*source, R"({"k": "x", "s": "a"})"));
  CHECK_FALSE(takes(*source, R"({"s": "ab", "t": t)", true));
  CHECK_FALSE(takes(*source, R"({"s": "abcd", "t": 1)", true));
  CHECK_FALSE(takes(*source, R"({"k": "x", "s": "ab)", true));
}

TEST_CASE("deep nesting and many readings end in neither recursion nor growth without end") {
  const auto brackets = grammar("root ::= \"[\" root \"]\" | \"x\"");
  const std::size_t depth = 50'000;
  {
    const auto takes_all = [&](nv::TokenMatcher& matcher, char bracket) {
      for (std::size_t i = 0; i < depth; ++i)
        if (!matcher.accept(2 + bracket)) return false;
      return true;
    };
    const auto matcher = brackets->matcher();
    REQUIRE(takes_all(*matcher, '['));
    const auto other = matcher->clone();
    REQUIRE(other->accept(2 + 'x'));
    REQUIRE(takes_all(*other, ']'));
    CHECK(other->is_finished());
    CHECK_FALSE(matcher->is_finished());
  }
  const auto twice = nv::JsonSchemaCompiler(byte_vocabulary()).json_schema(R"({"anyOf": [
      {"type": "array", "items": {"$ref": "#"}},
      {"type": "array", "items": {"$ref": "#"}, "maxItems": 5}]})");
  CHECK(takes(*twice, std::string(500, '[') + std::string(500, ']')));

  const auto ambiguous = grammar("root ::= \"a\" root root | \"a\" root | \"a\"");
  const auto matcher = ambiguous->matcher();
  const auto read_on = [&] {
    for (std::size_t i = 0; i < 2 * nv::GrammarReader::kMaxCallers; ++i)
      if (!matcher->accept(2 + 'a')) return;
  };
  CHECK_THROWS_AS(read_on(), nv::RequestError);
}

TEST_CASE("random schemas with a tokenizer give texts that can be read") {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  const nv::TokenId stop = *tokenizer.token_to_id("<|endoftext|>");
  const auto vocabulary =
      std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&stop, 1));
  const nv::JsonSchemaCompiler compiler(vocabulary);
  const auto walks = [&](unsigned seed) {
    RandomSchema schemas(seed);
    int num_ended = 0;
    long steps = 0;
    for (int i = 0; i < 40; ++i) {
      const auto source = compiler.json_schema(schemas.object(3).dump());
      const auto text = random_walk(*source, *vocabulary, schemas.random, 80, 1500, steps);
      if (text && nlohmann::json::accept(*text)) ++num_ended;
    }
    return num_ended;
  };
  std::vector<std::future<int>> all;  // which share the masks of strings
  for (unsigned seed = 0; seed < 3; ++seed)
    all.push_back(std::async(std::launch::async, walks, seed));
  for (std::future<int>& each : all) CHECK(each.get() >= 36);
}

TEST_CASE("what a schema repeats costs no more than once, and multiples no more than they are") {
  std::string types = "\"object\"", properties = "\"p\": {}";
  for (int i = 0; i < 5000; ++i) types += ", \"object\"";
  for (int i = 0; i < 250; ++i) properties += ", \"p" + std::to_string(i) + "\": {}";
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  CHECK(takes(
      *compiler.json_schema("{\"type\": [" + types + "], \"properties\": {" + properties + "}}"),
      R"({"p3": 1, "p7": 2})"));
  const auto multiples =
      compiler.json_schema(R"({"type": "integer", "minimum": -7, "maximum": 9, "multipleOf": 3})");
  for (const char* yes : {"-6", "-3", "0", "3", "9"}) CHECK(takes(*multiples, yes));
  for (const char* no : {"-9", "-7", "1", "12"}) CHECK_FALSE(takes(*multiples, no));
}

TEST_CASE("schemas that would take long to compile are refused at once, with the reason") {
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  const auto list = [](int count, const auto& element) {
    std::string out;
    for (int i = 0; i < count; ++i) out += (i == 0 ? "" : ", ") + element(i);
    return out;
  };
  const auto number = [](int i) { return std::to_string(i); };
  const auto name = [](int i) { return "\"p" + std::to_string(i) + "\""; };
  const auto property = [&](int i) { return name(i) + ": {}"; };
  const auto refused = [&](const std::string& schema, const std::string& why) {
    const double begin = cpu_milliseconds();
    std::string found = "nothing refused";
    try {
      static_cast<void>(compiler.json_schema(schema));
    } catch (const nv::RequestError& error) {
      found = error.what();
    }
    CHECK_THAT(found, Contains(why));
    const double taken = cpu_milliseconds() - begin;
    if (kTimed) CHECK(taken < 3000);
  };
  refused(R"({"allOf": [)" +
              list(6000,
                   [&](int i) {
                     return R"({"properties": {"x": {"minLength": )" + number(i) + "}}}";
                   }) +
              "]}",
          "'allOf' has 6000 elements");
  refused(R"({"anyOf": [)" + list(19'000, [](int) { return std::string("{}"); }) +
              R"(], "properties": {)" + list(280, property) + "}}",
          "'anyOf' has 19000 elements");
  refused(R"({"required": [)" + list(20'000, name) + "]}", "'required' has 20000 elements");
  refused(R"({"patternProperties": {)" +
              list(5000, [&](int i) { return "\"^x" + number(i) + "$\": {}"; }) + "}}",
          "'patternProperties' has 5000 elements");
  refused(R"({"patternProperties": {)" +
              list(30, [&](int i) { return "\"^" + number(i) + "[ab]*a[ab]{13}$\": {}"; }) + "}}",
          "takes too much work");
  refused(R"({"allOf": [{"enum": [)" + list(10'000, number) + R"(]}, {"enum": [)" +
              list(10'000, number) + "]}]}",
          "'enum' has 10000 elements");
  refused(R"({"$defs": {"big": {"properties": {)" + list(280, property) +
              R"(}, "additionalProperties": true}}, "properties": {)" +
              list(1500,
                   [&](int i) {
                     return name(i) + R"(: {"$ref": "#/$defs/big", "required": [)" + name(0) + "]}";
                   }) +
              "}}",
          "takes more than 200000 steps");
  refused(R"({"oneOf": [)" +
              list(100,
                   [&](int i) {
                     return R"({"enum": [)" +
                            list(300, [&](int j) { return number(1000 * i + j); }) + "]}";
                   }) +
              "]}",
          "takes more than 200000 steps");
  CHECK(takes(*compiler.json_schema(R"({"type": "string", "maxLength": 2147483647})"), "\"ab\""));
  refused(R"({"type": "string", "minLength": 2147483647})", "'minLength' is larger than 2^30");
}

TEST_CASE("with Qwen3's vocabulary no schema's masks take long") {
  const char* model = "../shared/qwen3";
  if (!std::filesystem::exists(std::string(model) + "/tokenizer.json")) {
    WARN("skipped: there is no " << model);
    return;
  }
  const auto tokenizer = nv::Tokenizer::from_file(model);
  const nv::TokenId stop = *tokenizer.token_to_id("<|im_end|>");
  const auto vocabulary =
      std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&stop, 1));
  const nv::JsonSchemaCompiler compiler(vocabulary);
  // Ten times what is measured, for machines that do other things as well.
  constexpr double kMaxMask = kTimed ? 20 : 1e9, kMaxCompile = kTimed ? 2000 : 1e9;
  std::mt19937 random(3);
  const auto walk = [&](const std::string& schema, std::size_t num_steps) {
    INFO(schema);
    double begin = cpu_milliseconds();
    const auto source = compiler.json_schema(schema);
    CHECK(cpu_milliseconds() - begin < kMaxCompile);
    const auto matcher = source->matcher();
    std::string text;
    for (std::size_t step = 0; step < num_steps && !matcher->is_finished(); ++step) {
      std::vector<std::uint32_t> bits(
          nv::num_mask_words(static_cast<std::size_t>(vocabulary->vocab_size())));
      begin = cpu_milliseconds();
      matcher->fill(bits);
      CHECK(cpu_milliseconds() - begin < kMaxMask);
      std::vector<nv::TokenId> tokens;
      for (nv::TokenId token = 0; token < vocabulary->vocab_size(); ++token)
        if (nv::is_allowed(bits, token)) tokens.push_back(token);
      REQUIRE(!tokens.empty());
      const nv::TokenId token = tokens[random() % tokens.size()];
      REQUIRE(matcher->accept(token));
      text += vocabulary->bytes(token);
    }
    return text;
  };
  for (const auto& [min, max] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 8}, {3, 40}, {150, 200}}) {
    const nlohmann::json schema{{"type", "string"}, {"minLength", min}, {"maxLength", max}};
    for (int i = 0; i < 5; ++i) {
      const std::string text = walk(schema.dump(), 10'000);
      INFO(text);
      const std::size_t size = num_code_points(nlohmann::json::parse(text).get<std::string>());
      CHECK(size >= min);
      CHECK(size <= max);
    }
  }
  nlohmann::json many{{"type", "object"}};
  for (int i = 0; i < 300; ++i)
    many["properties"]["name " + std::to_string(i)] = {{"type", "string"}, {"maxLength", 20}};
  walk(many.dump(), 60);
  for (
      const char* schema :
      {R"({"type": "string", "pattern": "^[^x]{0,1000}$"})",
       R"({"type": "string", "format": "uri"})",
       R"({"properties": {"a": true}, "additionalProperties": {"type": "string", "maxLength": 9}})",
       R"({"type": "array", "items": {"type": "string", "maxLength": 64}, "minItems": 1000})"})
    walk(schema, 60);
}
