// README's program, with a model of 7 million parameters: the argument is its folder. It compiles
// nothing of the engine where the library is linked. The other two files do.
#include <nanovllm/engine.hpp>

#include <cstdio>

#include "consumer.hpp"

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::fairytale>> engine({.model = argv[1]});
  const auto outputs =
      engine.generate({consumer::kPrompt, "The fox"}, {.temperature = 0.f, .max_tokens = 12});
  for (const nvllm::Output& output : outputs)
    std::printf("%s\n", output.error.empty() ? output.text.c_str() : output.error.c_str());
  const bool is_same = consumer::text_of_own_policy(argv[1]) == outputs.at(0).text &&
                       consumer::text_of_own_shape(argv[1]) == outputs.at(0).text &&
                       consumer::text_of_own_model(argv[1]) == outputs.at(0).text;
  std::printf("a policy, a shape and a model of one's own: %s\n",
              is_same ? "the same" : "another text");
  return is_same && outputs.at(0).token_ids.size() == 12 &&
                 consumer::size_of_embedding(argv[1]) == 256
             ? 0
             : 1;
} catch (const nvllm::Error& error) {
  std::printf("%s\n", error.what());
  return 1;
}
