// A constraint on text and the server's protocols. nanovllm::nanovllm has neither: a program that
// links nothing else compiles them, and one that links nanovllm::serve does not.
#include <nanovllm/api/grammar/bytes/grammar_vocabulary.hpp>
#include <nanovllm/api/grammar/regex/regex_source.hpp>
#include <nanovllm/api/serve/service.hpp>
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <memory>

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::fairytale>> engine({.model = argv[1]});
  const auto vocabulary = std::make_shared<nvllm::GrammarVocabulary>(
      engine.tokenizer(), engine.model_config().eos_token_ids);
  const auto constraint = std::make_shared<nvllm::RegexSource>(vocabulary, " [0-9]{3}");
  const nvllm::Output output =
      engine.generate("Once upon a time", {.temperature = 0.f, .token_masks = constraint});
  nvllm::serve::OpenAiService service(engine, {.model_names = {"fairytale"}});
  const nvllm::serve::HttpReply reply = service.answer({.method = "GET", .target = "/v1/models"});
  std::printf("%s\n%s\n", output.text.c_str(), reply.body.c_str());
  return output.text.size() == 4 && reply.body.find("fairytale") != std::string::npos ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::printf("%s\n", error.what());
  return 1;
}
