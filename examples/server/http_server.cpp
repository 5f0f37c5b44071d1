#include "http_server.hpp"

#include <nanovllm/core/error.hpp>

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <future>
#include <list>
#include <optional>
#include <thread>

#include "connection.hpp"

#if defined(NANOVLLM_SERVER_TLS)
#include <boost/asio/ssl.hpp>
#endif

namespace nanovllm::examples {

namespace {

using net::ip::tcp;

/// As many open files as the system allows, and how many that are.
int raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

}  // namespace

struct HttpServer::State {
  State(HttpServerConfig config, HttpHandler handler, std::shared_ptr<serve::HttpCounters> counters,
        Log& log)
      : shared(std::move(config), std::move(handler), std::move(counters), log) {}

  void listen();
  void accept();
  void take(Socket socket, IoThread& thread);

  /// Runs `act` with every connection, on its thread.
  template <class Act>
  void for_each_connection(Act act) {
    for (IoThread& thread : threads) {
      net::post(thread.io, [&thread, act] {
        for (AnyConnection* connection : thread.connections) act(*connection);
      });
    }
  }

  ServerState shared;
  std::list<IoThread> threads;
  std::list<IoThread>::iterator next;  ///< gets the next connection
  int max_connections = 0;
  std::atomic<bool> is_closed = false;  ///< no connection begins any more
  std::optional<net::basic_socket_acceptor<tcp, Executor>> acceptor;
  std::optional<Timer> pause;
  std::string url;
#if defined(NANOVLLM_SERVER_TLS)
  std::optional<net::ssl::context> tls;
#endif
};

void HttpServer::State::listen() {
  const HttpServerConfig& config = shared.config;
  check<ConfigError>(config.tls_certificate.empty() == config.tls_key.empty(),
                     "TLS needs both a certificate and its key");
  for (const std::string& key : config.api_keys) {
    // A header's value has none of these at its ends: with one no client would ever get in.
    const bool is_visible = std::ranges::all_of(key, [](char c) { return c > ' ' && c < 0x7f; });
    check<ConfigError>(!key.empty() && is_visible,
                       "an API key must be one or more visible ASCII characters, without spaces or "
                       "line ends");
  }
  check<ConfigError>(config.max_body_memory >= config.max_body_bytes, "the memory for all bodies, ",
                     config.max_body_memory, " bytes, is less than one may have, ",
                     config.max_body_bytes);
  const bool is_tls = !config.tls_key.empty();
#if defined(NANOVLLM_SERVER_TLS)
  if (is_tls) {
    tls.emplace(net::ssl::context::tls_server);
    tls->set_options(net::ssl::context::default_workarounds | net::ssl::context::no_tlsv1 |
                     net::ssl::context::no_tlsv1_1);
    error_code error;
    tls->use_certificate_chain_file(config.tls_certificate, error);
    check<ConfigError>(!error, "cannot use the certificate '", config.tls_certificate,
                       "': ", error.message());
    tls->use_private_key_file(config.tls_key, net::ssl::context::pem, error);
    check<ConfigError>(!error, "cannot use the key '", config.tls_key, "': ", error.message());
  }
#else
  check<ConfigError>(!is_tls, "this server was built without OpenSSL, and so without TLS");
#endif

  // Some descriptors are for the model, the log and connections that are refused.
  max_connections = std::min(config.max_connections, std::max(1, raise_file_limit() - 128));
  for (int i = 0; i < std::max(1, config.io_threads); ++i) threads.emplace_back();
  next = threads.begin();

  net::io_context& io = threads.front().io;
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(config.host, std::to_string(config.port), error);
  check<ConfigError>(!error && !found.empty(), "cannot listen on '", config.host,
                     "': ", error.message());
  const tcp::endpoint endpoint = *found.begin();
  shared.access = {.origins = config.cors_origins,
                   .hosts = config.allowed_hosts,
                   .is_local = endpoint.address().is_loopback(),
                   .any_host = is_tls || !config.api_keys.empty()};
  shared.access.hosts.push_back(config.host);
  acceptor.emplace(io.get_executor());
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(4096, error);
  check<ConfigError>(!error, "cannot listen on ", config.host, " port ", config.port, ": ",
                     error.message());
  pause.emplace(io.get_executor());

  const bool is_v6 = endpoint.address().is_v6();
  url = concat(is_tls ? "https://" : "http://", is_v6 ? "[" : "", endpoint.address().to_string(),
               is_v6 ? "]:" : ":", acceptor->local_endpoint().port());
  accept();
  for (IoThread& thread : threads) {
    thread.thread = std::thread([this, &thread] {
      pthread_setname_np(pthread_self(), "http-io");  // for top -H
      for (bool is_over = false; !is_over;) {
        try {
          thread.io.run();
          is_over = true;
        } catch (const std::exception& error) {  // out of memory, perhaps, for one of the sockets
          shared.log.write("an event was lost", error);
        }
      }
    });
  }
}

void HttpServer::State::accept() {
  IoThread& thread = *next;
  if (++next == threads.end()) next = threads.begin();
  acceptor->async_accept(
      thread.io.get_executor(), [this, &thread](error_code error, Socket socket) {
        if (!acceptor->is_open()) return;
        if (error) {
          // Out of descriptors, perhaps: some will be free soon.
          shared.log.write("cannot accept: " + escape_for_log(error.message()));
          pause->expires_after(std::chrono::milliseconds(100));
          pause->async_wait([this](error_code) {
            if (acceptor->is_open()) accept();
          });
          return;
        }
        net::post(thread.io, [this, &thread, socket = std::move(socket)]() mutable {
          take(std::move(socket), thread);
        });
        accept();
      });
}

void HttpServer::State::take(Socket socket, IoThread& thread) {
  constexpr int kMostRefused = 64;  // beyond them the connection is just closed
  if (is_closed) return;
  const auto count = shared.counters->num_open_connections.load();
  const bool is_refused = count >= max_connections;
  if (count >= max_connections + kMostRefused) return;
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
#if defined(NANOVLLM_SERVER_TLS)
  if (tls) {
    using TlsStream = net::ssl::stream<Socket>;
    std::make_shared<Connection<TlsStream>>(TlsStream(std::move(socket), *tls), shared, thread,
                                            is_refused)
        ->start();
    return;
  }
#endif
  std::make_shared<Connection<Socket>>(std::move(socket), shared, thread, is_refused)->start();
}

HttpServer::HttpServer(HttpServerConfig config, HttpHandler handler,
                       std::shared_ptr<serve::HttpCounters> counters, Log& log)
    : state_(std::make_unique<State>(std::move(config), std::move(handler), std::move(counters),
                                     log)) {
  state_->listen();
}

HttpServer::~HttpServer() {
  state_->is_closed = true;
  net::post(state_->threads.front().io, [this] {
    error_code ignored;
    state_->acceptor->close(ignored);
    state_->pause->cancel();
  });
  const auto wait_for_threads = [this] {
    for (IoThread& thread : state_->threads) {
      std::promise<void> seen;
      net::post(thread.io, [&seen] { seen.set_value(); });
      seen.get_future().wait();
    }
  };
  wait_for_threads();  // after this every one has seen that it is closed
  state_->for_each_connection([](AnyConnection& connection) { connection.close(); });
  wait_for_threads();  // and after this none gives the pool anything, which would not do it
  state_->shared.handlers.join();
  state_->shared.long_handlers.join();
  state_->shared.writers.join();
  for (IoThread& thread : state_->threads) {
    thread.update->close();  // what it has posted runs before the thread ends
    thread.work.reset();
    thread.thread.join();
  }
}

const std::string& HttpServer::url() const { return state_->url; }

bool HttpServer::drain(std::chrono::duration<double> limit) {
  constexpr std::chrono::seconds kForRefusals(1);
  const auto wake_all = [this] {
    state_->for_each_connection([](AnyConnection& connection) { connection.wake(); });
  };
  const auto wait_until = [this](Clock::time_point deadline) {
    while (state_->shared.num_requests != 0) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  };
  state_->shared.is_draining = true;
  state_->shared.long_handlers.cancel_all();
  wake_all();
  if (wait_until(after<Clock>(limit))) return true;
  state_->shared.is_over = true;
  wake_all();
  static_cast<void>(wait_until(after<Clock>(kForRefusals)));
  return false;
}

}  // namespace nanovllm::examples
