#pragma once
/// The program `serve`, whatever its engines: an OpenAI-compatible server for a checkpoint;
/// docs/serving.md, `serve --help`.

#include <nanovllm/api/chat/answer_form.hpp>
#include <nanovllm/api/serve/metrics.hpp>
#include <nanovllm/api/serve/service.hpp>
#include <nanovllm/chat/lazy_chat_template.hpp>
#include <nanovllm/engine/any_engine.hpp>
#include <nanovllm/engine/request/frontend.hpp>
#include <nanovllm/with/tiers/options.hpp>

#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
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
#include "disk_watch.hpp"
#include "http_server.hpp"
#include "log.hpp"
#include "options.hpp"
#include "page.hpp"  // made by CMake
#include "seconds.hpp"
#include "signals.hpp"

namespace nanovllm::examples {

/// As `make_engine` of engine_factory.hpp, or `engine_of<Models>` of engine_of.hpp.
using MakeEngine = std::unique_ptr<AnyEngine> (*)(const std::string& device,
                                                  const NumberFormats& formats,
                                                  EngineConfig config);
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
  if (options.enable_responses_store) config.max_stored_responses = 100'000;
  config.max_stored_response_bytes = options.responses_store_mib << 20;
  return config;
}

/// Steps until it is told to stop. A step that fails has ended its requests with an error; others
/// go on.
inline void run_engine(AnyEngine& engine, const std::stop_token& stop, Log& log) {
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
/// time that did not help. Says what the disk does not take.
inline void watch_engine(AnyEngine& engine, const std::stop_token& stop, Log& log) {
  constexpr std::chrono::seconds kFirstPause(1), kLongestPause(64);
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  DiskWatch disk;
  for (auto pause = kFirstPause; !stop.stop_requested();) {
    never.wait_for(lock, stop, pause, [] { return false; });
    const auto num_failures = engine.stats().of<DiskKvStats>().num_failures;
    if (const auto line = disk.look(num_failures)) log.write("disk: " + *line);
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

inline void serve_until_signalled(AnyEngine& engine, const ServeOptions& options,
                                  TerminationSignals& signals) {
  const auto counters = std::make_shared<serve::HttpCounters>();
  Log log(counters->num_dropped_log_lines);
  if (const LazyChatTemplate& chats = engine.text().chat_template; !chats)
    log.write("chats will be refused: " + escape_for_log(chats.why_none(), 1024));
  serve::ServiceConfig service_settings = service_config(options);
  service_settings.constraints =
      make_constraint_compiler(engine, options.constraint_cache_mib << 20, options.allow_grammars);
  service_settings.http_counters = counters;
  serve::OpenAiService service(engine, std::move(service_settings));
  std::jthread steps([&](const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "engine");  // for top -H
    run_engine(engine, stop, log);
  });
  std::jthread watcher([&](const std::stop_token& stop) { watch_engine(engine, stop, log); });
  HttpServerConfig config = http_config(options);
  config.page = {.html = std::string(kPage), .content_security_policy = std::string(kPagePolicy)};
  const HttpHandler handler{
      .arrive = [&](const serve::HttpRequest& request) { return service.arrive(request); },
      .try_handle = [&](const serve::HttpRequest& request) { return service.try_handle(request); },
      .handle = [&](const serve::HttpRequest& request,
                    const std::stop_token& stop) { return service.handle(request, stop); }};
  HttpServer server(std::move(config), handler, counters, log);

  signals.expect();
  std::printf("listening on %s\n", server.url().c_str());
  std::fflush(stdout);
  const int signal = signals.wait();
  log.write(std::string(signal == SIGINT ? "SIGINT" : "SIGTERM") + ": draining");
  service.drain();
  const bool is_drained = server.drain(std::chrono::duration<double>(options.drain_timeout));
  log.write(is_drained ? "drained" : "the time to drain is over, what is left is cut off");
}

/// What people want to know of an engine at its start.
/// @param num_bytes  of its weights in the checkpoint.
inline std::string summary(const AnyEngine& engine, const std::string& name,
                           std::uint64_t num_bytes, double seconds) {
  std::array<char, 128> loaded{}, used{};
  std::snprintf(loaded.data(), loaded.size(), "%.1f MiB of weights, loaded in %.1f s",
                static_cast<double>(num_bytes) / (1 << 20), seconds);
  const std::string about = engine.describe();
  long num_pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*s %ld", &num_pages) != 1) num_pages = 0;
    std::fclose(file);
  }
  std::snprintf(
      used.data(), used.size(), "%.0f MiB in use",
      static_cast<double>(num_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20));
  return concat("model    ", name, ": ", loaded.data(), "\nmemory   ", used.data(), "; ",
                about.substr(0, about.find('\n')), ", up to ", engine.max_total_tokens(),
                " a sequence\n");
}

/// The memory of large bodies and replies goes back to the system when they are gone. Otherwise
/// glibc keeps what such sizes were freed of, in the heap of each thread that had one.
inline void give_large_memory_back() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

inline int run(const ServeOptions& options, MakeEngine make, Processes& processes,
               TerminationSignals& signals) {
  processes.join();
  EngineConfig config = engine_config(options.engine, processes.group());
  if (options.step_timeout > 0 && options.step_timeout < kForever.count())
    config.step_timeout = std::chrono::duration<double>(options.step_timeout);
  const auto num_bytes = std::make_shared<std::uint64_t>(0);
  config.on_load = [num_bytes, line = std::move(config.on_load)](const LoadProgress& progress) {
    *num_bytes = progress.bytes_total;
    if (line) line(progress);
  };
  const std::string drafts = drafts_line(config);
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<AnyEngine> engine =
      make(options.engine.device, options.engine.formats, std::move(config));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (processes.follows()) {
    signals.expect();  // a launcher signals all ranks; this one ends with the first
    engine->run_worker();
    return 0;
  }
  const std::string name = service_config(options).model_names.front();
  std::fputs(summary(*engine, name, *num_bytes, seconds.count()).c_str(), stderr);
  std::fputs(drafts.c_str(), stderr);
  if (options.is_verbose) std::fprintf(stderr, "%s\n", engine->describe().c_str());
  serve_until_signalled(*engine, options, signals);
  if (options.check_invariants_at_exit) {
    while (engine->step()) {  // what was cut off ends
    }
    engine->check_invariants();
    std::printf("invariants hold\n");
  }
  return 0;
}

/// The program. `make` makes the engine.
inline int serve_main(int argc, char** argv, MakeEngine make) {
  give_large_memory_back();
  ServeOptions options;
  CLI::App app{
      "Serves a checkpoint by OpenAI's API: /v1/chat/completions, /v1/completions,\n"
      "/v1/responses, /v1/embeddings, /score, /rerank, /v1/models, /tokenize, /detokenize,\n"
      "/metrics, /stats, /health, by Anthropic's, /v1/messages, and a page at /.\n\n"
      "SIGTERM or SIGINT ends it once what is under way is answered; a second one at once."};
  add_options(app, options);
  if (const auto status = parse_command_line(app, argc, argv)) return *status;

  TerminationSignals signals;
  Processes processes;
  try {
    // A server without keys is open: an empty one is not taken for none.
    if (const char* key = std::getenv("NANOVLLM_API_KEY")) {
      check<ConfigError>(*key != '\0',
                         "NANOVLLM_API_KEY is empty; unset it for a server without keys");
      options.http.api_keys.emplace_back(key);
    }
    return run(options, make, processes, signals);
  } catch (const std::exception& error) {
    processes.fail(error.what());
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}

}  // namespace nanovllm::examples
