// A chat in the terminal; `chat --help`.
//
// A session keeps the conversation and what was computed of it; the program shows how much that is.
// /save FILE, /load FILE, /fork, /back and /clear do with the session what they say. An empty line
// or end of input ends the chat.
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/any/all_models.hpp>
#include <nanovllm/with/any/make_engine.hpp>
#include <nanovllm/with/sessions.hpp>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

constexpr const char* kUsage =
    "usage: chat [MODEL_DIR] [options]\n"
    "A chat in the terminal. An empty line or end of input ends it.\n"
    "  --no-think            turns reasoning off in hybrid models\n"
    "  --chat-template FILE  instead of the checkpoint's: a file of Jinja, or the text of one\n"
    "  --version             prints the library's version\n"
    "In the chat: /save FILE, /load FILE, /fork, /back after a /fork, /clear\n";

/// The current session, and the points that /back returns to.
class Chat {
 public:
  Chat(nvllm::AnyEngine& engine, std::optional<bool> enable_thinking)
      : engine_(engine), session_(engine), enable_thinking_(enable_thinking) {}

  void command(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string file = space == line.npos ? "" : line.substr(space + 1);
    if (name == "/save" && !file.empty()) {
      session_.save(file);
    } else if (name == "/load" && !file.empty()) {
      session_ = nvllm::Session::load(engine_, file);
    } else if (name == "/fork") {
      forks_.push_back(session_.fork());
    } else if (name == "/back" && !forks_.empty()) {
      session_ = std::move(forks_.back());
      forks_.pop_back();
    } else if (name == "/clear") {
      session_.clear();
    } else {
      return void(std::printf("/save FILE, /load FILE, /fork, /back after a /fork, /clear\n"));
    }
    std::printf("[%zu messages]\n", session_.messages().size());
  }

  void say(const std::string& line) {
    const nvllm::ChatPrompt prompt{{{"user", line}}, {.enable_thinking = enable_thinking_}};
    const nvllm::Output answer =
        session_.generate(prompt, {.max_tokens = 1024}, [](const nvllm::TokenEvent& event) {
          std::printf("%.*s", static_cast<int>(event.text.size()), event.text.data());
          std::fflush(stdout);
        });
    if (!answer.error.empty()) return void(std::printf("[%s]\n", answer.error.c_str()));
    const double seconds = answer.timings.finished - answer.timings.first_token;
    std::printf("\n[%d prompt tokens, %d of them kept; %zu tokens, %.0f per second; %s]\n",
                answer.num_prompt_tokens, answer.num_cached_tokens, answer.token_ids.size(),
                seconds > 0 ? static_cast<double>(answer.token_ids.size() - 1) / seconds : 0.0,
                std::string(nvllm::name(answer.finish_reason)).c_str());
  }

 private:
  nvllm::AnyEngine& engine_;
  nvllm::Session session_;
  std::vector<nvllm::Session> forks_;
  std::optional<bool> enable_thinking_;
};

void run(nvllm::AnyEngine& engine, std::optional<bool> enable_thinking) {
  Chat chat(engine, enable_thinking);
  for (std::string line; std::printf("\n> "), std::fflush(stdout), std::getline(std::cin, line);) {
    if (line.empty()) break;
    if (line.front() != '/') {
      chat.say(line);
      continue;
    }
    try {
      chat.command(line);
    } catch (const nvllm::Error& error) {  // a file that is not there, or another model's
      std::printf("[%s]\n", error.what());
    }
  }
}

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = kUsage, .most = 1, .flags = {"--no-think"}, .settings = {"--chat-template"}});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, "examples/models/fairytale");
  std::optional<bool> enable_thinking;
  if (line.has("--no-think")) enable_thinking = false;
  nvllm::EngineConfig config{
      .model = model, .on_load = nvllm::load_progress_line(), .on_warning = nvllm::warning_lines()};
  if (const auto file = line.value("--chat-template"))
    config.chat_template = nvllm::ChatTemplate::from_argument(*file);
  const auto engine = nvllm::make_engine<nvllm::PublishedModels>(std::move(config));
  run(*engine, enable_thinking);
  return 0;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "chat: %s\n", error.what());
  return 1;
}
