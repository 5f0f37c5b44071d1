// Answers one request of the OpenAI API, without HTTP; `openai_request --help`.
#include <nanovllm/api/serve/service.hpp>
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <string>
#include <thread>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = "usage: openai_request [MODEL_DIR] ['BODY']\n"
               "Answers one request of the OpenAI API, without HTTP.\n",
       .most = 2});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, "examples/models/fairytale");
  const std::string body = line.argument(1, R"({
    "messages": [{"role": "user", "content": "Tell me of a fox and a raven."}],
    "max_tokens": 100
  })");

  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>> engine({.model = model});
  const std::jthread steps([&](const std::stop_token& stop) { engine.run(stop); });

  nvllm::serve::OpenAiService service(engine, {.model_names = {"fairytale"}});
  const nvllm::serve::HttpReply reply =
      service.answer({.method = "POST", .target = "/v1/chat/completions", .body = body});

  std::printf("%d %s\n%s\n", reply.head.status, reply.head.content_type.c_str(),
              reply.body.c_str());
  return reply.head.status == 200 ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "openai_request: %s\n", error.what());
  return 1;
}
