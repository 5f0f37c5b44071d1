// A user's program: one include, one engine. The argument is a checkpoint's folder.
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <exception>
#include <vector>

namespace nvllm = nanovllm;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, nvllm::Float32Policy> engine(
        {.model = argv[1], .max_num_seqs = 4, .max_model_len = 64});
    const std::vector<nvllm::Prompt> prompts{std::vector<nvllm::TokenId>{1, 2, 3}};
    const auto outputs =
        engine.generate(prompts, {.temperature = 0.f, .max_tokens = 4, .ignore_eos = true});
    std::printf("%zu tokens\n", outputs.at(0).token_ids.size());
    return outputs.at(0).token_ids.size() == 4 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
