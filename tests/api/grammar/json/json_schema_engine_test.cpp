// Generations of an engine under JSON Schemas, as whole requests: masks are made while steps are
// under way, beside requests that have none.

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/grammar/json/random_schema.hpp"
#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEST_CASE("300 generations under random JSON Schemas are valid by them") {
  const std::string script = "python3 tests/oracle/validate_json_schema.py ";
  if (std::system("python3 -c 'import jsonschema' > /dev/null 2>&1") != 0) {
    WARN("skipped: there is no python3 with the package jsonschema");
    return;
  }
  Engine<Qwen3<shapes::fairytale>> engine({.model = model_directory("fairytale"),
                                           .num_threads = 2,
                                           .max_model_len = 512,
                                           .overlap = true});
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(
      engine.tokenizer(), engine.model_config().eos_token_ids);
  const JsonSchemaCompiler compiler(vocabulary);
  nanovllm_test::RandomSchema schemas(77);
  std::vector<nlohmann::json> of_request;
  std::vector<std::string> prompts;
  std::vector<SamplingParams> params;
  const SamplingParams free_run{.temperature = 1.f, .seed = 5, .max_tokens = 40};
  const TokenId quote = engine.tokenizer().encode("\"").at(0);
  for (int i = 0; i < 450; ++i) {
    of_request.push_back(i % 3 != 0 ? schemas.object(3) : schemas.schema(3));
    prompts.push_back("Once upon a time there was a king who wrote: ");
    params.push_back({.temperature = 2.5f, .seed = static_cast<std::uint64_t>(i)});
    params.back().max_tokens = 300;
    params.back().logit_bias = {{quote, 5.f}};  // strings come to an end
    params.back().token_masks = compiler.json_schema(of_request.back().dump());
    if (i % 50 == 0) {  // one without a mask
      of_request.emplace_back();
      prompts.push_back("Once upon a time");
      params.push_back(free_run);
    }
  }
  const Output alone = engine.generate("Once upon a time", free_run);
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("nanovllm_engine_" + std::to_string(::getpid()) + ".jsonl");
  int num_complete = 0;
  {
    std::ofstream out(file);
    const auto outputs = engine.generate(prompts, params);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      INFO(of_request[i].dump());
      REQUIRE(outputs[i].error == "");
      if (of_request[i].is_null()) {
        CHECK(outputs[i].token_ids == alone.token_ids);
        continue;
      }
      if (outputs[i].finish_reason != FinishReason::stop) continue;  // cut off by max_tokens
      out << nlohmann::json{{"schema", of_request[i]}, {"text", outputs[i].text}} << "\n";
      ++num_complete;
    }
  }
  CHECK(num_complete >= 300);
  CHECK(std::system((script + file.string()).c_str()) == 0);
  std::filesystem::remove(file);
}
