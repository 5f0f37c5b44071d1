// JSON-Schema-Test-Suite: every schema of two drafts is compiled or refused by name; what a grammar
// takes is valid, and so is what an engine generates. tests/oracle/json_schema_suite.py has the
// cases.
//
// With NANOVLLM_SUITE_REPORT in the environment valid texts that grammars do not take, and
// refusals, are listed.

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Scratch {
  std::filesystem::path path;

  explicit Scratch(const std::string& name)
      : path(std::filesystem::temp_directory_path() /
             ("nanovllm_suite_" + std::to_string(::getpid()) + name)) {}
  ~Scratch() { std::filesystem::remove(path); }
};

int run_script(const std::string& command, const Scratch& file) {
  const int status = std::system(
      ("python3 tests/oracle/json_schema_suite.py " + command + " " + file.path.string()).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Whether the bytes of a text, one token each, and then the end are allowed.
bool takes(const TokenMaskSource& source, const GrammarVocabulary& vocabulary,
           const std::string& text) {
  static const std::vector<TokenId> of_byte = [&] {
    std::vector<TokenId> tokens(256, -1);
    for (TokenId id = 0; id < vocabulary.vocab_size(); ++id)
      if (vocabulary.bytes(id).size() == 1)
        tokens[static_cast<unsigned char>(vocabulary.bytes(id)[0])] = id;
    return tokens;
  }();
  const auto matcher = source.matcher();
  for (char c : text)
    if (!matcher->accept(of_byte[static_cast<unsigned char>(c)])) return false;
  return matcher->accept(vocabulary.stop_token_ids()[0]);
}

}  // namespace

TEST_CASE("what a grammar takes and an engine generates is valid by JSON-Schema-Test-Suite") {
  const Scratch cases(".cases"), generated(".generated");
  if (const int status = run_script("write", cases); status != 0) {
    REQUIRE(status == 77);
    WARN("skipped: there is no JSON-Schema-Test-Suite, or no python3 with the package jsonschema");
    return;
  }
  Engine<Qwen3<shapes::fairytale>> engine(
      {.model = model_directory("fairytale"), .num_threads = 2, .max_model_len = 512});
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(
      engine.tokenizer(), engine.model_config().eos_token_ids);
  const JsonSchemaCompiler compiler(vocabulary);
  const bool reports = std::getenv("NANOVLLM_SUITE_REPORT") != nullptr;

  int num_refused = 0, num_wrong = 0, num_valid = 0, num_taken = 0;
  std::vector<Json> compiled;
  std::vector<SamplingParams> params;
  const TokenId quote = engine.tokenizer().encode("\"").at(0);
  std::ifstream in(cases.path);
  for (std::string line; std::getline(in, line);) {
    const Json entry = parse_json(line);
    const std::string schema = entry["schema"].dump();
    INFO(entry["draft"].string() << " " << entry["file"].string() << " " << schema);
    std::shared_ptr<const TokenMaskSource> source;
    try {
      source = compiler.json_schema(schema, {.strict = false});
    } catch (const RequestError& error) {
      CHECK_THAT(error.what(), Catch::Matchers::Contains("the JSON Schema is refused: "));
      ++num_refused;
      if (reports) std::cout << "refused: " << error.what() << "   " << schema << "\n";
      continue;
    }
    for (const Json& test : entry["tests"]) {
      const bool is_taken = takes(*source, *vocabulary, test["text"].string());
      const bool is_valid = test["valid"].boolean();
      INFO("text " << test["text"].string());
      CHECK((is_valid || !is_taken));
      num_wrong += is_taken && !is_valid;
      num_valid += is_valid;
      num_taken += is_taken && is_valid;
      if (reports && is_valid && !is_taken)
        std::cout << "not taken: " << test["text"].string() << "   " << schema << "\n";
    }
    for (const bool strict : {false, true}) {
      compiled.push_back(entry);
      SamplingParams next{.temperature = 2.f, .seed = compiled.size(), .max_tokens = 120};
      next.logit_bias = {{quote, 6.f}};  // strings come to an end
      try {
        next.token_masks = compiler.json_schema(schema, {.strict = strict});
      } catch (const RequestError&) {
        compiled.pop_back();
        continue;
      }
      params.push_back(std::move(next));
    }
  }
  const std::vector<std::string> prompts(params.size(), "The king wrote: ");
  int num_complete = 0;
  {
    std::ofstream out(generated.path);
    const auto outputs = engine.generate(prompts, params);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      INFO(compiled[i]["schema"].dump());
      REQUIRE(outputs[i].error == "");
      if (outputs[i].finish_reason != FinishReason::stop) continue;  // cut off by max_tokens
      Json line = Json::object();
      line["draft"] = compiled[i]["draft"];
      line["schema"] = compiled[i]["schema"];
      line["text"] = outputs[i].text;
      out << line.dump() << "\n";
      ++num_complete;
    }
  }
  std::cout << num_refused << " schemas refused, " << compiled.size() / 2 << " compiled; of "
            << num_valid << " valid texts " << num_taken << " taken, of the others " << num_wrong
            << "\n";
  CHECK(num_wrong == 0);
  CHECK(num_complete >= 500);
  CHECK(run_script("check", generated) == 0);
}
