// Schemas as pydantic, Zod, zod-to-json-schema, schemars, .NET, OpenAPI tools and others emit them:
// nearly all are compiled, in little time; valid texts are taken, others are not.
//
// tests/fixtures/json_schemas.jsonl has a name, a schema, and valid and invalid texts a line, the
// texts with the spaces of Python's json.dumps. With NANOVLLM_SUITE_REPORT in the environment what is
// refused is listed, and what each schema took.

#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "api/grammar/json/random_schema.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nv = nanovllm;

namespace {

std::shared_ptr<const nv::GrammarVocabulary> fairytale_vocabulary() {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  const nv::TokenId stop = *tokenizer.token_to_id("<|endoftext|>");
  return std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&stop, 1));
}

std::vector<nv::Json> corpus() {
  std::vector<nv::Json> out;
  std::ifstream in("tests/fixtures/json_schemas.jsonl");
  for (std::string line; std::getline(in, line);) out.push_back(nv::parse_json(line));
  return out;
}

/// Whether the bytes of a text, one token each, and then the end are allowed.
bool takes(const nv::TokenMaskSource& source, const nv::GrammarVocabulary& vocabulary,
           const std::string& text) {
  static const std::map<std::string, nv::TokenId> of_byte = [&] {
    std::map<std::string, nv::TokenId> tokens;
    for (nv::TokenId id = 0; id < vocabulary.vocab_size(); ++id)
      if (vocabulary.bytes(id).size() == 1) tokens[std::string(vocabulary.bytes(id))] = id;
    return tokens;
  }();
  const auto matcher = source.matcher();
  for (const char c : text)
    if (!matcher->accept(of_byte.at(std::string(1, c)))) return false;
  return matcher->accept(vocabulary.stop_token_ids()[0]);
}

double cpu_milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

}  // namespace

TEST_CASE("schemas that tools emit are compiled within 0.2 s, and take what is valid") {
  const auto vocabulary = fairytale_vocabulary();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  const bool reports = std::getenv("NANOVLLM_SUITE_REPORT") != nullptr;
  const std::vector<nv::Json> cases = corpus();
  REQUIRE(cases.size() >= 100);
  std::size_t num_compiled = 0, most_steps = 0;
  double slowest = 0;
  for (const nv::Json& each : cases) {
    INFO(each["name"].string());
    const nv::CompileBudget budget;
    const double begin = cpu_milliseconds();
    std::shared_ptr<const nv::GrammarSource> source;
    try {
      source = compiler.json_schema(each["schema"].dump(), {}, budget);
    } catch (const nv::RequestError& error) {
      if (reports) std::cout << each["name"].string() << ": " << error.what() << "\n";
      continue;
    }
    const double taken = cpu_milliseconds() - begin;
    const std::size_t steps = nv::CompileBudget::kMaxSteps - budget.left();
    if (reports)
      std::cout << taken << " ms, " << steps << " steps: " << each["name"].dump() << "\n";
    slowest = std::max(slowest, taken);
    most_steps = std::max(most_steps, steps);
    ++num_compiled;
    for (const nv::Json& text : each["valid"]) {
      INFO(text.string());
      CHECK(takes(*source, *vocabulary, text.string()));
      CHECK(takes(*source, *vocabulary, nv::parse_json(text.string()).dump()));
    }
    for (const nv::Json& text : each["invalid"]) {
      INFO(text.string());
      CHECK_FALSE(takes(*source, *vocabulary, text.string()));
    }
  }
  if (reports)
    std::cout << num_compiled << " of " << cases.size() << " schemas compiled, the slowest in "
              << slowest << " ms, the largest in " << most_steps << " steps\n";
  CHECK(20 * num_compiled >= 19 * cases.size());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(slowest < 1000);  // 200 on a machine that does nothing else
#endif
}

TEST_CASE("what is drawn under schemas that tools emit is valid by them") {
  if (std::system("python3 -c 'import jsonschema' > /dev/null 2>&1") != 0) {
    WARN("skipped: there is no python3 with the package jsonschema");
    return;
  }
  const auto vocabulary = fairytale_vocabulary();
  const nv::JsonSchemaCompiler compiler(vocabulary);
  std::mt19937 random(9);
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("nanovllm_corpus_" + std::to_string(::getpid()) + ".jsonl");
  int num_texts = 0;
  {
    std::ofstream out(file);
    long steps = 0;
    for (const nv::Json& each : corpus()) {
      std::shared_ptr<const nv::GrammarSource> source;
      try {
        source = compiler.json_schema(each["schema"].dump());
      } catch (const nv::RequestError&) {
        continue;
      }
      for (int i = 0; i < 4; ++i) {
        const auto text = nanovllm_test::random_walk(*source, *vocabulary, random, 60, 1500, steps);
        if (!text) continue;
        nv::Json line = nv::Json::object();
        line["schema"] = nv::json_schema::without_nulls(each["schema"]);  // which Python refuses
        line["text"] = *text;
        out << line.dump() << "\n";
        ++num_texts;
      }
    }
  }
  CHECK(num_texts > 350);
  CHECK(std::system(("python3 tests/oracle/validate_json_schema.py " + file.string()).c_str()) ==
        0);
  std::filesystem::remove(file);
}
