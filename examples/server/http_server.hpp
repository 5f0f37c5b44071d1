#pragma once
/// An HTTP/1.1 server in front of a handler of requests; http_server.cpp has it on Boost.Beast and
/// Asio.

#include <nanovllm/api/serve/exchange.hpp>
#include <nanovllm/api/serve/service_load.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace nanovllm::examples {

class Log;

/// How long each stage of a connection may take.
struct HttpTimeouts {
  using Seconds = std::chrono::duration<double>;
  Seconds handshake{10};  ///< of TLS
  Seconds idle{75};       ///< without a request
  Seconds header{10};     ///< from a request's first byte to the end of its header
  Seconds body{60};       ///< and from there to the end of its body
  Seconds write{30};      ///< while the client takes nothing of what is sent
};

/// What a GET of "/" is answered with.
struct HomePage {
  std::string html{};                     ///< empty: the handler is asked
  std::string content_security_policy{};  ///< the header of that name
};

struct HttpServerConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  ///< 0: any that is free
  int io_threads = 2;       ///< for sockets and the JSON of streams, and as many for whole replies
  int handler_threads = 2;  ///< for what is handled in milliseconds
  int long_handler_threads = 2;         ///< and for what takes longer
  std::size_t max_long_requests = 128;  ///< that wait for the latter, of one client or key
  int max_connections = 4096;
  std::size_t max_header_bytes = 16 * 1024;
  std::size_t max_body_bytes = 8 * 1024 * 1024;
  std::size_t max_body_memory = 1024 * 1024 * 1024;  ///< of all bodies together, see BodyShare
  HttpTimeouts timeouts{};
  std::vector<std::string> api_keys{};  ///< if any, requests need one, but of /health and "/"
  /// Origins of pages on other sites that may ask, "https://example.com"; "*": all pages.
  std::vector<std::string> cors_origins{};
  /// Names by which browsers may call the server, in addition to addresses and "localhost"; "*":
  /// all. Names are checked where there are neither keys nor TLS.
  std::vector<std::string> allowed_hosts{};
  std::string tls_certificate{}, tls_key{};  ///< PEM files; both or neither
  bool log_bodies = false;                   ///< of requests
  HomePage page{};
};

/// What answers requests, in three steps for three kinds of threads. Any thread may call each.
struct HttpHandler {
  /// A request has come: its answer if there is nothing to prepare. Takes microseconds.
  std::function<serve::Arrival(const serve::HttpRequest&)> arrive{};
  /// The answer if it takes milliseconds, else null.
  std::function<std::shared_ptr<serve::Exchange>(const serve::HttpRequest&)> try_handle{};
  /// The answer, however long it takes, or that there is none because it was told to stop.
  std::function<std::shared_ptr<serve::Exchange>(const serve::HttpRequest&, const std::stop_token&)>
      handle{};
};

/// Serves from construction to destruction, on its own threads.
///
/// A connection lives on one of the io threads, which never wait for anything but sockets. What
/// takes milliseconds is handled on threads of a pool, first come first served. What takes longer
/// (long texts, constraints to be compiled) is handled on threads of its own, which serve clients
/// in turn: nobody waits behind it but those who ask for it, and those by turns.
class HttpServer {
 public:
  /// Listens. Throws ConfigError when it cannot. `log` must outlive it.
  /// @param counters  what it counts in.
  HttpServer(HttpServerConfig config, HttpHandler handler,
             std::shared_ptr<serve::HttpCounters> counters, Log& log);

  /// Closes what is open and cancels the exchanges under way.
  ~HttpServer();

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// E.g. "http://127.0.0.1:8000", with the port that was found.
  [[nodiscard]] const std::string& url() const;

  /// Closes connections once they have no request, and returns when no request is under way; at
  /// the latest after `limit`. Returns whether all were answered. New ones are taken meanwhile, so
  /// that the handler can refuse them in words and a probe can see the state. What takes long and
  /// is not handled yet is told to stop at once; after `limit`, replies that have not begun are
  /// replaced by status 503, for which there is a second.
  bool drain(std::chrono::duration<double> limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nanovllm::examples
