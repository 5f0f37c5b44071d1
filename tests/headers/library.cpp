// A shared library that uses the engine inside; built twice, with LIBRARY_NAME left and right.
#include <nanovllm/engine.hpp>

#include <string>
#include <vector>

#define PASTE_NOW(a, b) a##b
#define PASTE(a, b) PASTE_NOW(a, b)
#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace nv = nanovllm;

/// Greedy tokens for a fixed prompt with the checkpoint in `model`, into `tokens`.
EXPORTED void PASTE(LIBRARY_NAME, _generate)(const char* model, int count, int* tokens);
EXPORTED void PASTE(LIBRARY_NAME, _generate)(const char* model, int count, int* tokens) {
  nv::Engine<nv::Qwen3<nv::shapes::qwen3_any>, nv::Float32Policy> engine(
      {.model = model, .max_num_seqs = 4, .max_model_len = 64});
  const std::vector<nv::Prompt> prompts{std::vector<nv::TokenId>{1, 2, 3}};
  const auto outputs =
      engine.generate(prompts, {.temperature = 0.f, .max_tokens = count, .ignore_eos = true});
  for (std::size_t i = 0; i < outputs.at(0).token_ids.size(); ++i)
    tokens[i] = outputs[0].token_ids[i];
}
