// Holds an answer to a form.
//
//   structured_output MODEL_DIR "prompt" choice TEXT TEXT...
//   structured_output MODEL_DIR "prompt" regex PATTERN
//   structured_output MODEL_DIR "prompt" schema FILE      with nanovllm::xgrammar
#include <nanovllm/engine.hpp>
#include <nanovllm/grammar/text_choices.hpp>
#if __has_include(<xgrammar/xgrammar.h>)
#include <nanovllm/grammar/xgrammar_source.hpp>
#endif

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nv = nanovllm;

/// The constraint that the arguments behind the prompt ask for.
std::shared_ptr<const nv::TokenMaskSource> constraint(
    const std::shared_ptr<const nv::GrammarVocabulary>& vocabulary,
    std::span<const std::string> arguments) {
  const std::string& kind = arguments[0];
  if (kind == "choice") return nv::text_choices(vocabulary, arguments.subspan(1));
  nv::check<nv::RequestError>(arguments.size() == 2, kind, " takes one argument");
  if (kind == "regex") return std::make_shared<const nv::RegexSource>(vocabulary, arguments[1]);
#if __has_include(<xgrammar/xgrammar.h>)
  if (kind == "schema") {
    std::ifstream file(arguments[1]);
    nv::check<nv::LoadError>(file.is_open(), "cannot read '", arguments[1], "'");
    const std::string schema(std::istreambuf_iterator<char>(file), {});
    return nv::XGrammarCompiler(vocabulary).json_schema(schema);
  }
#endif
  throw nv::RequestError(nv::concat("there is no form '", kind, "' in this program"));
}

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fprintf(stderr, "usage: structured_output MODEL_DIR PROMPT choice|regex|schema ...\n");
    return 2;
  }
  nv::Engine<nv::Qwen3<nv::shapes::qwen3_any>> engine({.model = argv[1]});
  const auto vocabulary = std::make_shared<const nv::GrammarVocabulary>(
      engine.tokenizer(), engine.model_config().eos_token_ids);
  const std::vector<std::string> arguments(argv + 3, argv + argc);

  nv::SamplingParams params;
  params.temperature = 0.7f;
  const auto token_masks = constraint(vocabulary, arguments);
  [&](auto& settings) {  // as soon as the engine has the field: params.token_masks = token_masks
    if constexpr (requires { settings.token_masks; }) settings.token_masks = token_masks;
  }(params);
  const nv::Output output = engine.generate(argv[2], params);
  if (!output.error.empty()) throw nv::Error(output.error);
  std::printf("%s\n", output.text.c_str());
} catch (const nv::Error& error) {
  std::fprintf(stderr, "structured_output: %s\n", error.what());
  return 1;
}
