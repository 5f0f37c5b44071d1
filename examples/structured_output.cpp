// Texts of a given form: one of a list, what matches a regular expression, JSON by a JSON Schema.
// Usage: structured_output [MODEL_DIR]
//
// A constraint is compiled once and shared by any number of requests. Before every draw it says
// which tokens may come next; whatever the model would rather say, the text has the form.
#include <nanovllm/api/grammar/json/json_schema_compiler.hpp>
#include <nanovllm/api/grammar/regex/regex_source.hpp>
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = "usage: structured_output [MODEL_DIR]\n"
               "Answers that are held to choices, a regular expression and a JSON Schema.\n",
       .most = 1});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, "examples/models/fairytale");
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::fairytale>> engine({.model = model, .seed = 5});
  const auto vocabulary = std::make_shared<nvllm::GrammarVocabulary>(
      engine.tokenizer(), engine.model_config().eos_token_ids);

  struct Constraint {
    const char* prompt;
    const char* pattern;
    std::shared_ptr<const nvllm::TokenMaskSource> source;
  };
  const char* name = " (Jack|Hans|Gretel) and the [a-z]{3,9} [a-z]{3,9}";
  const char* speech = " \"(Yes|No), dear (child|king|queen), [a-z ]{8,40}(\\.|!)\"";
  const char* treasure = "\\{\"gold\":\\d{1,4},\"name\":\"[a-zA-Z ]{1,12}\"\\}";
  std::vector<Constraint> constraints{
      {"Once upon a time there lived a", " (fox|wolf|bear|golden bird)",
       nvllm::text_choices(vocabulary,
                           std::vector<std::string>{" fox", " wolf", " bear", " golden bird"})},
      {"The tale of", name, std::make_shared<nvllm::RegexSource>(vocabulary, name)},
      {"The old woman answered:", speech, std::make_shared<nvllm::RegexSource>(vocabulary, speech)},
      {"The king's treasure: ", treasure,
       nvllm::JsonSchemaCompiler(vocabulary)
           .json_schema(R"({
      "type": "object", "required": ["gold", "name"], "additionalProperties": false,
      "properties": {"gold": {"type": "integer", "minimum": 0, "maximum": 9999},
                     "name": {"type": "string", "pattern": "^[a-zA-Z ]{1,12}$"}}})",
                        {.compact = true})}};

  std::vector<std::string> prompts;
  std::vector<nvllm::SamplingParams> params;
  for (const Constraint& constraint : constraints) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      prompts.push_back(constraint.prompt);
      params.push_back({.temperature = 0.9f, .token_masks = constraint.source, .seed = seed});
    }
  }
  const auto outputs = engine.generate(prompts, params);
  bool all_fit = true;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool fits = std::regex_match(outputs[i].text, std::regex(constraints[i / 3].pattern));
    std::printf("%s%s%s\n", prompts[i].c_str(), outputs[i].text.c_str(), fits ? "" : "  <- no!");
    all_fit = all_fit && fits;
  }
  return all_fit ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "structured_output: %s\n", error.what());
  return 1;
}
