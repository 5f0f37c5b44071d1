// A chat in the terminal. Usage: chat [MODEL_DIR] [--no-think]
//
// The whole conversation is sent again every turn, as with any chat API; the prefix cache makes
// that cheap, and the program shows by how much. An empty line or end of input ends the chat.
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "with_model.hpp"

namespace nv = nanovllm;

template <class Model>
int chat(const char* model, std::optional<bool> enable_thinking) {
  nv::Engine<Model> engine({.model = model, .on_load = nv::load_progress_line()});
  std::vector<nv::ChatMessage> history;
  for (std::string line; std::printf("\n> "), std::fflush(stdout), std::getline(std::cin, line);) {
    if (line.empty()) break;
    history.emplace_back("user", line);
    nv::Output answer;
    engine.submit(nv::ChatPrompt{history, {.enable_thinking = enable_thinking}},
                  {.max_tokens = 1024}, [&](const nv::TokenEvent& event) {
                    std::printf("%.*s", static_cast<int>(event.text.size()), event.text.data());
                    std::fflush(stdout);
                    if (event.output) answer = *event.output;
                  });
    while (engine.step()) {
    }
    const double seconds = answer.timings.finished - answer.timings.first_token;
    std::printf("\n[%d prompt tokens, %d from the prefix cache; %zu tokens, %.0f per second; %s]\n",
                answer.num_prompt_tokens, answer.num_cached_tokens, answer.token_ids.size(),
                seconds > 0 ? static_cast<double>(answer.token_ids.size() - 1) / seconds : 0.0,
                std::string(nv::name(answer.finish_reason)).c_str());
    history.emplace_back("assistant", answer.text);
  }
  return 0;
}

int main(int argc, char** argv) try {
  const char* model = "examples/models/fairytale";
  std::optional<bool> enable_thinking;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--no-think") {
      enable_thinking = false;
    } else {
      model = argv[i];
    }
  }
  using namespace nv::shapes;
  return nv::examples::with_model<fairytale, qwen3_0_6b, qwen3_1_7b, qwen3_4b, qwen3_8b, qwen3_14b,
                                  qwen3_32b>(nv::ModelConfig::load(model), [&]<class Model>() {
    return chat<Model>(model, enable_thinking);
  });
} catch (const nv::Error& error) {
  std::fprintf(stderr, "chat: %s\n", error.what());
  return 1;
}
