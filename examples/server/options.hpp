#pragma once
/// The options of `serve`.

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "../command_line.hpp"
#include "../engine_options.hpp"
#include "http_server.hpp"

namespace nanovllm::examples {

struct ServeOptions {
  EngineOptions engine;
  double step_timeout = 300;
  bool is_verbose = false;

  // The protocol.
  std::vector<std::string> model_names;
  int max_queue = 1024;
  std::string tool_call_parser = "hermes";
  std::size_t constraint_cache_mib = 256;
  bool allow_grammars = false;
  bool enable_responses_store = false;
  std::size_t responses_store_mib = 256;

  // The server.
  HttpServerConfig http;
  std::size_t max_body_mib = 8, max_body_memory_mib = 1024;
  double handshake_timeout = 10, idle_timeout = 75, header_timeout = 10, body_timeout = 60;
  double write_timeout = 30, drain_timeout = 30;
  bool check_invariants_at_exit = false;
};

namespace detail {

inline void add_protocol_options(CLI::App& app, ServeOptions& options) {
  app.add_option("--served-model-name", options.model_names,
                 "what requests call the model, several times for several names; the directory's "
                 "name unless given");
  add_number(app, "--max-queue", options.max_queue,
             "sequences that may wait beyond those of a step; more are refused with 429");
  app.add_option("--tool-call-parser", options.tool_call_parser,
                 "the form in which the model writes tool calls")
      ->check(one_of({"hermes", "qwen3_coder", "none"}))
      ->capture_default_str();
  add_number(app, "--constraint-cache-mib", options.constraint_cache_mib,
             "compiled schemas and grammars that are kept for later requests, in MiB", 0, 1 << 20);
  app.add_flag("--allow-grammars", options.allow_grammars,
               "take guided_grammar; only from clients that are trusted: a grammar with many "
               "readings of a text can hold up a step");
  app.add_flag("--enable-responses-store", options.enable_responses_store,
               "keep responses of /v1/responses in memory, for previous_response_id; whoever has a "
               "key and a response's id can read it");
  add_number(app, "--responses-store-mib", options.responses_store_mib,
             "texts of responses that are kept at the most, in MiB; those that were not used "
             "for the longest time are dropped",
             1, 1 << 20);
}

inline void add_http_options(CLI::App& app, ServeOptions& options) {
  HttpServerConfig& http = options.http;
  app.add_option("--host", http.host, "address to listen on")->capture_default_str();
  add_number(app, "--port", http.port, "port to listen on; 0 for any that is free");
  app.add_option(
      "--api-key", http.api_keys,
      "a key that requests must have, several times for several keys; one more may be in "
      "the environment as NANOVLLM_API_KEY, which keeps it from lists of processes");
  app.add_option("--cors-origin", http.cors_origins,
                 "origin of web pages that may ask, e.g. https://example.com, several times for "
                 "several; * for all");
  app.add_option(
      "--allowed-host", http.allowed_hosts,
      "a name of this server, several times for several; * for all. Without keys and TLS "
      "other names are refused, but for addresses and localhost");
  app.add_option("--tls-cert", http.tls_certificate, "certificate chain, a PEM file");
  app.add_option("--tls-key", http.tls_key, "its private key, a PEM file");
  add_number(app, "--io-threads", http.io_threads, "threads for connections", 1, 256);
  add_number(app, "--handler-threads", http.handler_threads,
             "threads that read requests and make tokens of them", 1, 256);
  add_number(app, "--long-handler-threads", http.long_handler_threads,
             "threads, of a low priority, for what takes long: bodies above 16 KiB, and forms of "
             "answers that have to be compiled; clients take turns",
             1, 256);
  add_number(app, "--max-long-requests", http.max_long_requests,
             "requests that may wait for those threads, of a key, or else of an address; more "
             "are refused with 429",
             1, 1 << 20);
  add_number(app, "--max-connections", http.max_connections, "connections at the most", 1);
  add_number(app, "--max-body-mib", options.max_body_mib, "a request's body at the most, in MiB", 1,
             1024);
  add_number(app, "--max-body-memory-mib", options.max_body_memory_mib,
             "the bodies of all requests at the most, in MiB; more are refused with 503", 1,
             1 << 20);
  const auto add_timeout = [&](const char* name, double& value, const char* meaning) {
    app.add_option(name, value, meaning)->check(kPositive)->capture_default_str();
  };
  add_timeout("--handshake-timeout", options.handshake_timeout, "seconds for that of TLS");
  add_timeout("--idle-timeout", options.idle_timeout, "seconds without a request");
  add_timeout("--header-timeout", options.header_timeout, "seconds for a request's header");
  add_timeout("--body-timeout", options.body_timeout, "seconds for its body");
  add_timeout("--write-timeout", options.write_timeout,
              "seconds in which a client takes nothing of its reply");
  add_timeout("--drain-timeout", options.drain_timeout,
              "seconds for what is under way after SIGTERM or SIGINT");
  app.add_flag("--log-requests", http.log_bodies, "log the bodies of requests, prompts and all");
  app.add_flag("--check-invariants-at-exit", options.check_invariants_at_exit,
               "check the scheduler's books before leaving, for tests");
}

}  // namespace detail

inline void add_options(CLI::App& app, ServeOptions& options) {
  add_engine_options(app, options.engine);
  app.add_flag("-v,--verbose", options.is_verbose, "say at the start what the engine is made of");
  add_number(app, "--step-timeout", options.step_timeout,
             "seconds after which a step is given up, and /health says so; 0 for never");
  detail::add_protocol_options(app, options);
  detail::add_http_options(app, options);
}

/// `options.http`, with what other options say of it.
[[nodiscard]] inline HttpServerConfig http_config(const ServeOptions& options) {
  HttpServerConfig http = options.http;
  using Seconds = HttpTimeouts::Seconds;
  http.timeouts = {.handshake = Seconds(options.handshake_timeout),
                   .idle = Seconds(options.idle_timeout),
                   .header = Seconds(options.header_timeout),
                   .body = Seconds(options.body_timeout),
                   .write = Seconds(options.write_timeout)};
  http.max_body_bytes = options.max_body_mib << 20;
  http.max_body_memory = options.max_body_memory_mib << 20;
  return http;
}

}  // namespace nanovllm::examples
