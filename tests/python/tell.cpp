// tell MODEL SEED MAX_TOKENS PROMPT...: what the C++ library makes of prompts. Each gives a line of
// token ids and its text, which ends with a zero byte.
#include <nanovllm/engine.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  if (argc < 5) return 2;
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>> engine(
      {.model = argv[1], .num_threads = 1});
  const std::vector<nvllm::Prompt> prompts(argv + 4, argv + argc);
  const nvllm::SamplingParams params{.temperature = 0.8f,
                                     .top_k = 40,
                                     .top_p = 0.95f,
                                     .seed = std::stoull(argv[2]),
                                     .max_tokens = static_cast<std::int32_t>(std::stol(argv[3]))};
  for (const nvllm::Output& output : engine.generate(prompts, params)) {
    for (const nvllm::TokenId token : output.token_ids) std::printf("%d ", token);
    std::printf("\n%s%c", output.text.c_str(), '\0');
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "tell: %s\n", error.what());
  return 1;
}
