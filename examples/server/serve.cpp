// An OpenAI-compatible server for a checkpoint; docs/serving.md, `serve --help`.
#include <nanovllm/chat/lazy_chat_template.hpp>
#include <nanovllm/chat/tool_call_format.hpp>
#include <nanovllm/serve/metrics.hpp>
#include <nanovllm/serve/service.hpp>

#include <pthread.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "../command_line.hpp"
#include "../processes.hpp"
#include "constraints.hpp"
#include "engine_factory.hpp"
#include "http_server.hpp"
#include "log.hpp"
#include "options.hpp"
#include "page.hpp"  // made by CMake
#include "signals.hpp"

namespace nanovllm::examples {
namespace {

serve::ServiceConfig service_config(const ServeOptions& options) {
  serve::ServiceConfig config{.model_names = options.model_names,
                              .max_num_seqs = options.engine.max_num_seqs,
                              .max_queue = options.max_queue};
  if (config.model_names.empty()) {
    const std::filesystem::path path = std::filesystem::canonical(options.engine.model);
    config.model_names = {(path.extension() == ".gguf" ? path.stem() : path.filename()).string()};
  }
  config.tool_call_format = options.tool_call_parser == "none"     ? ToolCallFormat::none
                            : options.tool_call_parser == "hermes" ? ToolCallFormat::hermes
                                                                   : ToolCallFormat::qwen3_coder;
  return config;
}

/// Steps until it is told to stop. A step that fails has ended its requests with an error; others
/// go on.
void run_engine(AnyEngine& engine, const std::stop_token& stop, Log& log) {
  while (!stop.stop_requested()) {
    try {
      engine.run(stop);
      continue;
    } catch (const std::exception& error) {
      log.write("engine: " + escape_for_log(error.what(), 1024));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // no storm of failures
  }
}

/// Resets ranks that have failed: several, or one with a step over its time, fail every request
/// from then on, while `run` continues. Looks once a second, and less often after each
/// time that did not help.
void mend_engine(AnyEngine& engine, const std::stop_token& stop, Log& log) {
  constexpr std::chrono::seconds kFirstPause(1), kLongestPause(64);
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  for (auto pause = kFirstPause; !stop.stop_requested();) {
    never.wait_for(lock, stop, pause, [] { return false; });
    const Health health = engine.health();
    if (health.state == Health::State::ok && !health.is_unproven) pause = kFirstPause;
    if (health.state != Health::State::failed || stop.stop_requested()) continue;
    pause = std::min(2 * pause, kLongestPause);
    log.write("engine: " + escape_for_log(health.reason, 1024));
    try {
      engine.reset();
      log.write("engine: its ranks were made anew");
    } catch (const std::exception& error) {
      log.write("engine: " + escape_for_log(error.what(), 1024));
    }
  }
}

void serve_until_signalled(AnyEngine& engine, const ServeOptions& options,
                           TerminationSignals& signals) {
  Log log;
  if (const LazyChatTemplate& chats = engine.text().chat_template; !chats)
    log.write("chats will be refused: " + escape_for_log(chats.why_none(), 1024));
  const auto counters = std::make_shared<serve::HttpCounters>();
  serve::ServiceConfig service_settings = service_config(options);
  service_settings.constraints =
      make_constraint_compiler(engine, options.constraint_cache_mib << 20, options.allow_grammars);
  service_settings.http_counters = counters;
  serve::OpenAiService service(engine, std::move(service_settings));
  std::jthread steps([&](const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "engine");  // for top -H
    run_engine(engine, stop, log);
  });
  std::jthread mender([&](const std::stop_token& stop) { mend_engine(engine, stop, log); });
  HttpServerConfig config = http_config(options);
  config.page = {.html = std::string(kPage), .content_security_policy = std::string(kPagePolicy)};
  HttpServer server(
      std::move(config), [&](const serve::HttpRequest& request) { return service.handle(request); },
      counters, log);

  signals.expect();
  std::printf("listening on %s\n", server.url().c_str());
  std::fflush(stdout);
  const int signal = signals.wait();
  log.write(std::string(signal == SIGINT ? "SIGINT" : "SIGTERM") + ": draining");
  service.drain();
  const bool is_drained = server.drain(std::chrono::duration<double>(options.drain_timeout));
  log.write(is_drained ? "drained" : "the time to drain is over, what is left is cut off");
}

int run(const ServeOptions& options, Processes& processes, TerminationSignals& signals) {
  processes.join();
  EngineConfig config = engine_config(options.engine, processes.group());
  if (options.step_timeout > 0)
    config.step_timeout = std::chrono::duration<double>(options.step_timeout);
  const std::unique_ptr<AnyEngine> engine =
      make_engine(options.engine.device, options.engine.formats, std::move(config));
  if (processes.follows()) {
    signals.expect();  // a launcher signals all ranks; this one ends with the first
    engine->run_worker();
    return 0;
  }
  std::fprintf(stderr, "%s\n", engine->describe().c_str());
  serve_until_signalled(*engine, options, signals);
  if (options.check_invariants_at_exit) {
    while (engine->step()) {  // what was cut off ends
    }
    engine->check_invariants();
    std::printf("invariants hold\n");
  }
  return 0;
}

}  // namespace
}  // namespace nanovllm::examples

int main(int argc, char** argv) {
  using namespace nanovllm;
  using namespace nanovllm::examples;
  ServeOptions options;
  CLI::App app{
      "Serves a checkpoint by OpenAI's API: /v1/chat/completions, /v1/completions,\n"
      "/v1/embeddings, /score, /rerank, /v1/models, /tokenize, /detokenize, /metrics,\n"
      "/health, and a page at /.\n\n"
      "SIGTERM or SIGINT ends it once what is under way is answered; a second one at once."};
  add_options(app, options);
  if (const auto status = parse_command_line(app, argc, argv)) return *status;

  TerminationSignals signals;
  Processes processes;
  try {
    // The options take no notice of it, and a server without keys is open.
    const char* key = std::getenv("NANOVLLM_API_KEY");
    check<ConfigError>(key == nullptr || *key != '\0' || !options.http.api_keys.empty(),
                       "NANOVLLM_API_KEY is empty; unset it for a server without keys");
    return run(options, processes, signals);
  } catch (const std::exception& error) {
    processes.fail(error.what());
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
