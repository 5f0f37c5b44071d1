// Texts drawn at random from what the grammar of a random JSON Schema allows are valid by the
// schema.

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/grammar/json/random_schema.hpp"
#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nv = nanovllm;
using nanovllm_test::random_walk;
using nanovllm_test::RandomSchema;

namespace {

std::shared_ptr<const nv::GrammarVocabulary> fairytale_vocabulary() {
  const auto tokenizer = nv::Tokenizer::from_file("examples/models/fairytale");
  const nv::TokenId stop = *tokenizer.token_to_id("<|endoftext|>");
  return std::make_shared<const nv::GrammarVocabulary>(tokenizer, std::span(&stop, 1));
}

/// Lines of {"schema", "text"} for random schemas; counts the walks that came to no end.
std::vector<nlohmann::json> random_texts(unsigned seed, int num_schemas, bool numbers,
                                         int& unfinished) {
  const auto vocabulary = fairytale_vocabulary();
  const nv::JsonSchemaCompiler compiler(vocabulary);
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
