#pragma once
/// One connection of the HTTP server: a coroutine that waits in one place.
///
/// Reads, writes, wake-ups of the exchange and the handler's answer each leave what they have in a
/// member and cancel the timer that the coroutine waits on, with the stage's deadline. All of it
/// happens on the connection's io thread, so there is nothing to lock. A read is always under way,
/// also while the engine computes: that is how a client that leaves is noticed at once, and what
/// has come of the next request waits in `inbox_`.

#include <nanovllm/api/serve/exchange.hpp>
#include <nanovllm/api/serve/metrics.hpp>
#include <nanovllm/api/serve/request/api_error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "access.hpp"
#include "body_memory.hpp"
#include "http_server.hpp"
#include "http_text.hpp"
#include "io_thread.hpp"
#include "log.hpp"
#include "seconds.hpp"

namespace nanovllm::examples {

namespace http = boost::beast::http;
using boost::system::error_code;

using Clock = std::chrono::steady_clock;
using Socket = net::basic_stream_socket<net::ip::tcp, Executor>;
using Timer = net::basic_waitable_timer<Clock, net::wait_traits<Clock>, Executor>;
template <class T>
using Awaitable = net::awaitable<T, Executor>;
inline constexpr net::use_awaitable_t<Executor> kAwaitable{};

/// @tparam Stream  Socket, or a TLS stream on one.
template <class Stream>
class Connection final : public AnyConnection,
                         public std::enable_shared_from_this<Connection<Stream>> {
 public:
  static constexpr bool kIsTls = !std::is_same_v<Stream, Socket>;

  /// @param is_refused  there are too many: it only gets status 503.
  Connection(Stream stream, ServerState& server, IoThread& thread, bool is_refused)
      : stream_(std::move(stream)),
        event_(socket().get_executor(), Clock::time_point::max()),
        server_(server),
        thread_(thread),
        is_refused_(is_refused) {
    error_code ignored;
    const auto peer = socket().remote_endpoint(ignored);
    if (!ignored) {
      address_ = peer.address().to_string();
      peer_ = address_ + ":" + std::to_string(peer.port());
    }
    server_.counters->num_open_connections.fetch_add(1);
    server_.counters->num_connections.fetch_add(1);
    if (is_refused_) server_.counters->num_refused_connections.fetch_add(1);
    thread_.connections.insert(this);
  }

  ~Connection() override {
    thread_.connections.erase(this);
    server_.counters->num_open_connections.fetch_sub(1);
  }

  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Begins to serve; it keeps itself alive until it has ended.
  void start() {
    net::co_spawn(event_.get_executor(), run(), [self = this->shared_from_this()](auto error) {
      if (error) self->log_failure(error);
      if (self->exchange_) self->exchange_->cancel();
      self->exchange_.reset();
      self->close();
    });
  }

  void wake() override { event_.cancel(); }

  void on_update() override {
    has_update_ = true;
    event_.cancel();
  }

  void close() override {
    error_code ignored;
    socket().shutdown(Socket::shutdown_both, ignored);
    socket().close(ignored);
    is_gone_ = true;
    event_.cancel();
  }

 private:
  using Parser = http::request_parser<http::string_body>;
  using Deadline = Clock::time_point;

  static constexpr std::size_t kMaxAhead = 64 * 1024;  ///< read of what is not looked at yet
  static constexpr std::size_t kMaxKept = 256 * 1024;  ///< of memory for what is sent, once it is
  static constexpr std::string_view kDisconnected = "disconnected";  ///< an outcome
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  static constexpr HttpTimeouts::Seconds kFirstProbe{0.2};  ///< after the end of the input
  static constexpr int kGone = -1;  ///< in place of a status: the client has gone
  static constexpr std::string_view kKeyField =
      "x-api-key";  ///< in which Anthropic's clients send it

  /// What a line of the log says.
  struct Record {
    std::string method = "-", path = "-";
    int status = 0;
    Clock::time_point begin = Clock::now();
  };

  /// Counts a request as under way.
  struct RequestCount {
    explicit RequestCount(std::atomic<int>& count) : count_(count) { count_.fetch_add(1); }
    ~RequestCount() { count_.fetch_sub(1); }
    RequestCount(const RequestCount&) = delete;
    RequestCount& operator=(const RequestCount&) = delete;
    std::atomic<int>& count_;
  };

  void log_failure(const std::exception_ptr& thrown) const noexcept {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      server_.log.write("connection failed", error);
    } catch (...) {
      server_.log.write("connection failed");
    }
  }

  [[nodiscard]] Socket& socket() {
    if constexpr (kIsTls)
      return stream_.next_layer();
    else
      return stream_;
  }

  [[nodiscard]] const HttpServerConfig& config() const { return server_.config; }

  [[nodiscard]] static Deadline after(HttpTimeouts::Seconds time) {
    return examples::after<Clock>(time);
  }

  // ---- Waiting, reading, writing ----

  /// Waits until `ready()`, which others on this thread make true before they cancel the timer.
  /// Returns false if the deadline comes first.
  template <class Ready>
  Awaitable<bool> wait(Deadline deadline, Ready ready) {
    while (!ready()) {
      if (Clock::now() >= deadline) co_return false;
      event_.expires_at(deadline);
      error_code ignored;
      co_await event_.async_wait(net::redirect_error(kAwaitable, ignored));
    }
    co_return true;
  }

  /// Reads whenever there is room in the inbox.
  void start_read() {
    if (is_reading_ || is_gone_ || has_input_ended_ || inbox_.size() >= kMaxAhead) return;
    is_reading_ = true;
    stream_.async_read_some(net::buffer(chunk_),
                            [self = this->shared_from_this()](error_code error, std::size_t n) {
                              self->is_reading_ = false;
                              if (!self->is_discarding_)
                                self->inbox_.append(self->chunk_.data(), n);
                              if (error == net::error::eof)
                                self->on_end_of_input();
                              else if (error)
                                self->is_gone_ = true;
                              self->start_read();
                              self->event_.cancel();
                            });
  }

  /// The client sends no more. It may still read, or have left: then a reset answers what is sent.
  void on_end_of_input() {
    has_input_ended_ = true;
    socket().async_wait(Socket::wait_error, [self = this->shared_from_this()](error_code error) {
      if (error == net::error::operation_aborted) return;
      self->is_gone_ = true;
      self->event_.cancel();
    });
  }

  void consume(std::size_t n) {
    inbox_.erase(0, n);
    start_read();
  }

  /// Sends and clears `outbox_`. Returns false when it cannot be sent, or the client takes nothing
  /// of it for too long; the connection is closed then. One whose end of input has come may yet
  /// read.
  Awaitable<bool> flush() {
    for (std::size_t sent = 0; sent < outbox_.size(); sent += num_written_) {
      is_writing_ = true;
      stream_.async_write_some(net::buffer(outbox_.data() + sent, outbox_.size() - sent),
                               [self = this->shared_from_this()](error_code error, std::size_t n) {
                                 self->is_writing_ = false;
                                 self->has_write_failed_ = static_cast<bool>(error);
                                 self->num_written_ = n;
                                 self->event_.cancel();
                               });
      const bool in_time =
          co_await wait(after(config().timeouts.write), [this] { return !is_writing_; });
      if (!in_time || has_write_failed_) {
        if (!in_time) server_.counters->num_timeouts.fetch_add(1);
        close();
        co_return false;
      }
    }
    if (outbox_.capacity() > kMaxKept) outbox_ = {};
    outbox_.clear();
    co_return true;
  }

  /// Lets a client that is still sending read what it was told: to close at once would reset the
  /// connection under the reply.
  Awaitable<void> linger() {
    is_discarding_ = true;
    inbox_.clear();
    start_read();
    error_code ignored;
    socket().shutdown(Socket::shutdown_send, ignored);
    co_await wait(after(HttpTimeouts::Seconds(5)),
                  [this] { return is_gone_.load() || has_input_ended_ || server_.is_draining; });
  }

  // ---- A connection ----

  Awaitable<void> run() {
    if constexpr (kIsTls) {
      if (!co_await handshake()) co_return;
    }
    start_read();
    if (is_refused_) {
      Record record;
      co_await refuse(503, record);
      co_return;
    }
    while (co_await serve_request()) {
    }
    if constexpr (kIsTls) co_await say_goodbye();
  }

  Awaitable<bool> handshake() {
    bool is_done = false, is_good = false;
    stream_.async_handshake(std::remove_cvref_t<Stream>::server,
                            [&, self = this->shared_from_this()](error_code error) {
                              is_done = true;
                              is_good = !error;
                              self->event_.cancel();
                            });
    if (!co_await wait(after(config().timeouts.handshake), [&] { return is_done; })) {
      close();
      co_await wait(Deadline::max(), [&] { return is_done; });
    }
    co_return is_good;
  }

  /// TLS tells the end of a connection from a cut.
  Awaitable<void> say_goodbye() {
    bool is_done = false;
    stream_.async_shutdown([&, self = this->shared_from_this()](error_code) {
      is_done = true;
      self->event_.cancel();
    });
    if (!co_await wait(after(HttpTimeouts::Seconds(1)), [&] { return is_done; })) {
      close();
      co_await wait(Deadline::max(), [&] { return is_done; });
    }
  }

  /// Serves the next request. Returns whether there may be another one after it.
  Awaitable<bool> serve_request() {
    co_await wait(after(config().timeouts.idle), [this] {
      return !inbox_.empty() || is_gone_ || has_input_ended_ ||
             (server_.is_draining && has_served_);
    });
    if (inbox_.empty()) co_return false;
    has_served_ = true;

    const RequestCount counted(server_.num_requests);
    BodyShare body_share(server_.body_memory);
    Record record;
    Parser parser;
    parser.header_limit(static_cast<std::uint32_t>(config().max_header_bytes));
    parser.body_limit(config().max_body_bytes);
    reason_.clear();
    origin_.clear();
    int status = co_await read_header(parser);
    const auto& message = parser.get();
    if (!message.method_string().empty()) record.method = message.method_string();
    if (!message.target().empty()) record.path = path_of(message.target());
    if (status == 0) status = check_header(parser, record.path);
    if (status == 0) status = co_await read_body(parser, body_share);
    if (status == kGone) co_return false;
    if (status != 0) {
      parser.get().body() = std::string();  // to be refused may take time
      body_share.release();
      co_await refuse(status, record);
      co_return false;
    }
    co_return co_await reply(parser.get(), body_share, record);
  }

  [[nodiscard]] static std::string path_of(std::string_view target) {
    target = serve::origin_form(target);
    return std::string(target.substr(0, target.find('?')));
  }

  // ---- Requests ----

  /// Gives what has come to the parser until `is_done()`. Returns a status to refuse with, or 0.
  /// @param check  is called with the number of bytes that the parser has taken; returns the same.
  template <class IsDone, class Check>
  Awaitable<int> read(Parser& parser, Deadline deadline, IsDone is_done, Check check) {
    while (!is_done()) {
      if (!inbox_.empty()) {
        error_code error;
        const std::size_t used = parser.put(net::buffer(inbox_), error);
        consume(used);
        if (error && error != http::error::need_more) co_return status_of(error);
        if (const int status = check(used); status != 0) co_return status;
        if (is_done()) break;
        if (used != 0 && !inbox_.empty()) continue;
        // A line of a chunk, or the trailers: the parser wants them whole.
        if (inbox_.size() > config().max_header_bytes) co_return 431;
      }
      const std::size_t had = inbox_.size();
      const auto has_more = [&] { return inbox_.size() > had || is_gone_ || has_input_ended_; };
      if (!co_await wait(deadline, has_more)) co_return 408;
      if (inbox_.size() == had) co_return kGone;
    }
    co_return 0;
  }

  Awaitable<int> read_header(Parser& parser) {
    parser.eager(false);
    co_return co_await read(
        parser, after(config().timeouts.header), [&] { return parser.is_header_done(); },
        [](std::size_t) { return 0; });
  }

  Awaitable<int> read_body(Parser& parser, BodyShare& share) {
    const std::string_view expects = parser.get()[http::field::expect];
    if (!expects.empty() && !parser.is_done() && parser.get().version() >= 11) {
      if (!boost::beast::iequals(expects, "100-continue")) co_return 417;
      outbox_ = kContinue;
      if (!co_await flush()) co_return kGone;
    }
    // A chunk takes its data, and 16 bytes at most for its size and line ends. What is beyond that,
    // extensions and trailers, is not kept, but it is read.
    std::size_t num_chunks = 0, num_read = 0;
    auto count_chunk = [&](std::uint64_t, std::string_view, error_code&) { ++num_chunks; };
    if (parser.chunked()) parser.on_chunk_header(count_chunk);
    const auto check = [&](std::size_t num_bytes) {
      num_read += num_bytes;
      const std::size_t size = parser.get().body().size();
      if (!share.grow_to(size)) return 503;
      const bool is_within = num_read <= size + 16 * num_chunks + config().max_header_bytes;
      if (!is_within) reason_ = "the chunk extensions and trailers of the body are too long";
      return is_within ? 0 : 431;
    };
    parser.eager(true);
    co_return co_await read(
        parser, after(config().timeouts.body), [&] { return parser.is_done(); }, check);
  }

  [[nodiscard]] int status_of(const error_code& error) {
    if (error == http::error::body_limit) return 413;
    if (error == http::error::header_limit) return 431;
    if (error == http::error::bad_version) return 505;
    return malformed(broken_rule(error));
  }

  /// 400, with the rule of HTTP/1.1 that the request breaks.
  [[nodiscard]] int malformed(std::string_view rule) {
    reason_ = "this is not a request of HTTP/1.1: ";
    reason_ += rule;
    return 400;
  }

  [[nodiscard]] static std::string_view broken_rule(const error_code& code) {
    using http::error;
    switch (static_cast<error>(code.value())) {
      case error::bad_method: return "a request begins with a method, such as GET, and a space";
      case error::bad_target: return "a target, such as /health, and a space follow the method";
      case error::bad_line_ending: return "lines end with CR LF";
      case error::bad_field:
        return "a header field begins with its name and a colon, without blanks";
      case error::bad_value: return "the value of a header field has no control characters";
      case error::bad_content_length:
      case error::multiple_content_length:
        return "Content-Length is one decimal number, and not beside Transfer-Encoding";
      case error::bad_transfer_encoding:
        return "Transfer-Encoding is 'chunked', once, and not beside Content-Length";
      case error::bad_chunk:
        return "a chunk is its size in hexadecimal digits, CR LF, so many bytes, and CR LF";
      case error::bad_chunk_extension: return "a chunk extension is a semicolon and a name";
      case error::bad_obs_fold: return "a header field is one line";
      default: return "it cannot be parsed";
    }
  }

  /// What is wrong with a request as far as its header says so: a status, or 0.
  [[nodiscard]] int check_header(const Parser& parser, std::string_view path) {
    const auto& message = parser.get();
    if (message.version() != 10 && message.version() != 11) return 505;
    // A coding that is not undone would be taken for JSON, and leave the body's end to guesses.
    const bool is_coded = message.find(http::field::transfer_encoding) != message.end();
    if (is_coded && (message.count(http::field::transfer_encoding) != 1 ||
                     !boost::beast::iequals(message[http::field::transfer_encoding], "chunked")))
      return 501;
    const auto content_codings = message.equal_range(http::field::content_encoding);
    for (auto coding = content_codings.first; coding != content_codings.second; ++coding)
      if (!boost::beast::iequals(coding->value(), "identity")) return 415;
    if (const auto count = message.count(http::field::host); message.version() == 11 && count != 1)
      return malformed(count == 0 ? "there is no Host header" : "there are several Host headers");
    if (const int status = check_access(message, path); status != 0) return status;
    const bool is_open =
        path == "/" || path == "/health" || path == "/ping" || is_preflight(message);
    if (!is_open && !config().api_keys.empty() &&
        !has_key(config().api_keys, message[http::field::authorization]) &&
        !is_key(config().api_keys, message[kKeyField]))
      return 401;
    return 0;
  }

  /// 403 for what a page in a browser must not ask; else 0. Load balancers ask for the health of
  /// servers by whatever name they have.
  [[nodiscard]] int check_access(const Parser::value_type& message, std::string_view path) {
    const std::string_view host = message[http::field::host];
    const bool has_host = message.find(http::field::host) != message.end();
    const bool is_probe = path == "/health" || path == "/ping";
    if (has_host && !is_probe && !server_.access.allows_host(host)) {
      const std::string name = quotable(host_name(host));
      reason_ = "'" + name +
                "' is not a name of this server; if it is, start it with --allowed-host " + name;
      return 403;
    }
    const auto origin = message.find(http::field::origin);
    if (origin == message.end()) return 0;
    origin_ = origin->value();
    if (message.count(http::field::origin) == 1 && server_.access.allows_origin(origin_, host))
      return 0;
    const std::string name = quotable(origin_);
    reason_ = "pages of '" + name + "' may not ask this server; if they may, start it with " +
              "--cors-origin " + name;
    return 403;
  }

  /// Whether a browser asks on behalf of a page of another origin if it may ask.
  [[nodiscard]] bool is_preflight(const Parser::value_type& message) const {
    return !config().cors_origins.empty() && message.method() == http::verb::options &&
           message.find(http::field::access_control_request_method) != message.end();
  }

  // ---- Replies ----

  [[nodiscard]] std::string cors_headers() const {
    const std::vector<std::string>& origins = config().cors_origins;
    if (origins.empty()) return {};
    const auto lists = [&](std::string_view text) {
      return std::ranges::find(origins, text) != origins.end();
    };
    if (lists("*")) return "Access-Control-Allow-Origin: *\r\n";
    const std::string& origin = lists(origin_) ? origin_ : origins.front();
    return "Access-Control-Allow-Origin: " + origin + "\r\nVary: Origin\r\n";
  }

  /// Answers with an error of the transport's own, and gives the connection up.
  Awaitable<void> refuse(int status, Record& record) {
    serve::HttpHead head{.status = status};
    const std::string body = refusal_body(status, serve::error_form_of(record.path));
    if (status == 401) head.headers.emplace_back("WWW-Authenticate", "Bearer");
    if (status == 415) head.headers.emplace_back("Accept-Encoding", "identity");
    if (status == 503) head.headers.emplace_back("Retry-After", "1");
    outbox_ = head_text(head, BodyEnd::length, body.size(), false, cors_headers());
    if (record.method != "HEAD") outbox_ += body;
    record.status = status;
    server_.counters->refused.add(status);
    if (status == 408) server_.counters->num_timeouts.fetch_add(1);
    const bool is_sent = co_await flush();
    log(record, is_sent ? "refused" : kDisconnected, {});
    if (is_sent) co_await linger();
  }

  [[nodiscard]] std::string refusal_body(int status, serve::ErrorForm form) const {
    const char* code = status == 401 ? "invalid_api_key" : status == 503 ? "server_overloaded" : "";
    return serve::ApiError(status, refusal_reason(status), {}, code).body(form);
  }

  [[nodiscard]] std::string refusal_reason(int status) const {
    if (!reason_.empty()) return reason_;
    switch (status) {
      case 401:
        return "an API key is needed: the header 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'";
      case 408: return "the request took too long to come";
      case 413:
        return "a body may have " + std::to_string(config().max_body_bytes) + " bytes at the most";
      case 415: return "a body may have no Content-Encoding: send it as it is";
      case 417: return "of 'Expect' only 100-continue is understood";
      case 431: return "the header, a line of a chunk, or the trailers are too long";
      case 500: return "the server could not answer the request";
      case 501: return "of transfer codings only chunked is understood";
      case 503:
        return is_refused_ ? "there are too many connections"
                           : "the bodies of other requests take all the memory there is for them; "
                             "try again later";
      case 505: return "the version must be HTTP/1.0 or HTTP/1.1";
      default: return "the request cannot be answered";
    }
  }

  /// Answers a whole request. Returns whether the connection stays open.
  Awaitable<bool> reply(Parser::value_type& message, BodyShare& body_share, Record& record) {
    const bool is_head = message.method() == http::verb::head;
    const bool is_get = is_head || message.method() == http::verb::get;
    is_http10_ = message.version() == 10;
    keeps_alive_ = message.keep_alive() && !server_.is_draining;

    if (is_preflight(message)) {
      serve::HttpHead head{.status = 204};
      head.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                      {"Access-Control-Allow-Headers",
                       std::string(message[http::field::access_control_request_headers])},
                      {"Access-Control-Max-Age", "86400"}};
      co_return co_await send_whole(head, "", is_head, record);
    }
    if (is_get && record.path == "/" && !config().page.html.empty()) {
      serve::HttpHead head{.content_type = "text/html; charset=utf-8"};
      head.headers = {{"Content-Security-Policy", config().page.content_security_policy},
                      {"Referrer-Policy", "no-referrer"},
                      {"X-Frame-Options", "DENY"},
                      {"Cache-Control", "no-cache"}};
      co_return co_await send_whole(head, config().page.html, is_head, record);
    }

    if (config().log_bodies)
      server_.log.write(peer_ + " body " + escape_for_log(message.body(), 16 * 1024));
    serve::HttpRequest request{.method = is_head ? "GET" : std::string(message.method_string()),
                               .target = std::string(message.target()),
                               .body = std::move(message.body())};
    // Nobody's requests wait behind those of others: by key, or else by address.
    const bool has_bearer = message.find(http::field::authorization) != message.end();
    std::string client = config().api_keys.empty() ? address_
                         : has_bearer ? std::string(message[http::field::authorization])
                                      : std::string(message[kKeyField]);
    co_await handle(std::move(request), std::move(client));
    body_share.release();
    if (!exchange_) {
      if (is_gone_) co_return finish(record, false);
      co_await refuse(500, record);
      co_return false;
    }
    const bool is_sent = co_await send_exchange(is_head, record);
    co_return finish(record, is_sent);
  }

  /// Does `work` on this thread, of a pool, and tells the io thread. The pool keeps no share in the
  /// connection, which is its io thread's to destroy.
  template <class Work>
  static void do_work(std::shared_ptr<Connection> self, Work& work) {
    bool has_worked = false;
    try {
      work();
      has_worked = true;
    } catch (const std::exception& error) {
      self->server_.log.write("request failed", error);
    }
    const Executor executor = self->event_.get_executor();
    PostMemory& memory = self->end_of_work_;
    memory.post(executor, [self = std::move(self), has_worked]() mutable {
      self->has_worked_ = has_worked;
      self->is_working_ = false;
      self->event_.cancel();
    });
  }

  /// Runs `work` on a thread of `pool`, and waits for it; meanwhile nothing here may touch what it
  /// touches. Returns whether it has run and not thrown. `work` must not be a temporary where it
  /// has anything to destroy: GCC 12 would do so twice.
  template <class Work>
  Awaitable<bool> run_in(net::thread_pool& pool, Work work) {
    if (is_gone_) co_return false;  // the pool may be gone, too, and would not answer
    is_working_ = true;
    has_worked_ = false;
    net::post(pool, [self = this->shared_from_this(), work = std::move(work)]() mutable {
      do_work(std::move(self), work);
    });
    co_await wait(Deadline::max(), [this] { return !is_working_; });
    co_return has_worked_;
  }

  /// Lets the handler make the exchange. A client that leaves before its turn has come has none.
  Awaitable<void> handle(serve::HttpRequest request, const std::string client) {
    head_ = nullptr;
    const serve::Arrival arrival = server_.handler.arrive(request);
    exchange_ = arrival.exchange;
    if (exchange_) {
      head_ = exchange_->head();
      co_return;
    }
    auto work = [this, &request] {
      if (is_gone_) return;
      exchange_ = server_.handler.try_handle(request);
      if (exchange_) head_ = exchange_->head();
    };
    if (!co_await run_in(server_.handlers, work)) co_return;
    if (!exchange_ && !is_gone_) co_await handle_long(request, client);
  }

  /// The same for what takes long.
  Awaitable<void> handle_long(const serve::HttpRequest& request, const std::string& client) {
    is_working_ = true;
    const auto work = [self = this->shared_from_this(),
                       &request](const std::stop_token& stop) mutable {
      auto handling = [connection = self.get(), &request, &stop] {
        connection->exchange_ = connection->server_.handler.handle(request, stop);
        if (connection->exchange_) connection->head_ = connection->exchange_->head();
      };
      do_work(std::move(self), handling);
    };
    const FairPool::JobPtr job = server_.long_handlers.post(client, work);
    if (!job) {
      is_working_ = false;
      refuse_long(path_of(request.target));
      co_return;
    }
    co_await wait_with_client([this] { return !is_working_; });
    if (!is_working_ || server_.long_handlers.cancel(job)) co_return;
    co_await wait(Deadline::max(), [this] { return !is_working_; });
  }

  void refuse_long(std::string_view path) {
    serve::HttpHead head{.status = 429};
    head.headers.emplace_back("Retry-After", "1");
    server_.counters->refused.add(head.status);
    const serve::ApiError error(
        head.status, std::to_string(config().max_long_requests) +
                         " requests of this client with long texts, or forms of answers that are "
                         "new, wait already; try again later");
    exchange_ = std::make_shared<serve::WholeExchange>("refused", std::move(head),
                                                       error.body(serve::error_form_of(path)));
    head_ = exchange_->head();
  }

  /// Waits until `ready()`, as `wait` does, or the client has left. One that has ended its input
  /// may have done so, and answers with a reset then to what it is sent. So before the reply it is
  /// sent "100 Continue", which clients pass over, less and less often.
  template <class Ready>
  Awaitable<void> wait_with_client(Ready ready) {
    for (auto pause = kFirstProbe; !ready() && !is_gone_;) {
      const bool had_ended = has_input_ended_;
      const bool probes = had_ended && head_ == nullptr && !is_http10_;
      const bool in_time = co_await wait(probes ? after(pause) : Deadline::max(), [&, this] {
        return ready() || is_gone_ || has_input_ended_ != had_ended;
      });
      if (in_time) continue;
      outbox_ = kContinue;
      if (!co_await flush()) co_return;
      pause *= 2;
    }
  }

  /// Waits for something new of the exchange, which is an error when the time to drain is over.
  /// Returns false when the client has left.
  Awaitable<bool> wait_for_exchange() {
    has_update_ = false;
    exchange_->notify(
        [update = thread_.update, news = std::make_shared<News>(1, this->weak_from_this())] {
          update->push(*news);
        });
    co_await wait_with_client([this] { return has_update_ || server_.is_over; });
    if (!has_update_ && server_.is_over) {
      keeps_alive_ = false;
      exchange_->fail(
          {503, "the server is shutting down, and its time for requests under way is over"});
    }
    co_return !is_gone_;
  }

  /// Sends what the exchange has, as it comes. Returns whether the client got all of it.
  Awaitable<bool> send_exchange(bool is_head, Record& record) {
    while (head_ == nullptr) {
      if (!co_await wait_for_exchange()) co_return false;
      // A whole reply may be large: it is made where it holds up no other connection.
      if (!co_await run_in(server_.writers, [this] { head_ = exchange_->head(); })) co_return false;
    }
    record.status = head_->status;
    std::string piece;
    if (!head_->is_stream) {
      while (exchange_->take(piece)) {
        if (!co_await wait_for_exchange()) co_return false;
      }
      outbox_ = head_text(*head_, BodyEnd::length, piece.size(), keeps_alive_, cors_headers());
      if (is_head) piece.clear();
      if (piece.size() > kMaxKept) {  // to copy it takes long, too
        if (!co_await flush()) co_return false;
        outbox_ = std::move(piece);
      } else {
        outbox_ += piece;
      }
      co_return co_await flush();
    }

    const BodyEnd end = is_http10_ ? BodyEnd::close : BodyEnd::last_chunk;
    if (is_http10_) keeps_alive_ = false;
    outbox_ = head_text(*head_, end, 0, keeps_alive_, cors_headers());
    for (bool has_more = true; has_more;) {
      piece.clear();
      has_more = exchange_->take(piece);
      if (is_http10_)
        outbox_ += piece;
      else
        append_chunk(outbox_, piece);
      if (!has_more && !is_http10_) outbox_ += kLastChunk;
      if (!co_await flush()) co_return false;
      if (has_more && !co_await wait_for_exchange()) co_return false;
    }
    co_return true;
  }

  Awaitable<bool> send_whole(const serve::HttpHead& head, const std::string& body, bool is_head,
                             Record& record) {
    outbox_ = head_text(head, BodyEnd::length, body.size(), keeps_alive_, cors_headers());
    if (!is_head) outbox_ += body;
    record.status = head.status;
    const bool is_sent = co_await flush();
    log(record, is_sent ? "sent" : kDisconnected, {});
    co_return is_sent&& keeps_alive_;
  }

  /// Releases the exchange, and logs it. Returns whether the connection stays open.
  [[nodiscard]] bool finish(Record& record, bool is_sent) {
    serve::ExchangeSummary summary;
    if (exchange_) {
      if (!is_sent) exchange_->cancel();
      summary = exchange_->summary();
      exchange_.reset();
    }
    if (!is_sent && record.status == 0) record.status = 499;
    if (!is_sent) summary.outcome = kDisconnected;
    log(record, summary.outcome.empty() ? "sent" : summary.outcome, summary);
    return is_sent && keeps_alive_;
  }

  /// Counts and logs a request that has ended.
  void log(const Record& record, std::string_view outcome, const serve::ExchangeSummary& summary) {
    server_.counters->replies.add(record.status);
    if (outcome == kDisconnected) server_.counters->num_disconnects.fetch_add(1);
    if (summary.kind == "stats" && record.status < 400) return;  // each open page asks each second
    const std::chrono::duration<double> seconds = Clock::now() - record.begin;
    std::array<char, 192> numbers{};
    std::snprintf(numbers.data(), numbers.size(),
                  " prompt=%lld cached=%lld generated=%lld first=%.4f total=%.4f",
                  static_cast<long long>(summary.num_prompt_tokens),
                  static_cast<long long>(summary.num_cached_tokens),
                  static_cast<long long>(summary.num_generated_tokens),
                  summary.first_token_seconds.value_or(0), seconds.count());
    std::string line = peer_;
    line.append(" ").append(escape_for_log(record.method, 16));
    line.append(" ").append(escape_for_log(record.path));
    line.append(" ").append(std::to_string(record.status));
    line.append(" ").append(summary.kind.empty() ? "-" : summary.kind);
    line.append(numbers.data()).append(" ").append(outcome);
    server_.log.write(line);
  }

  Stream stream_;
  Timer event_;
  ServerState& server_;
  IoThread& thread_;
  std::string peer_ = "-", address_;  ///< the former with its port
  const bool is_refused_;

  std::array<char, 8 * 1024> chunk_{};  ///< what the read under way fills
  std::string inbox_, outbox_;
  std::atomic<bool> is_gone_ = false;  ///< nobody reads any more; the pool's threads look at it
  bool has_input_ended_ = false;       ///< nothing more will come
  bool is_reading_ = false, is_discarding_ = false;
  bool is_writing_ = false, has_write_failed_ = false;
  std::size_t num_written_ = 0;
  bool has_served_ = false;

  // Of the request under way.
  std::shared_ptr<serve::Exchange> exchange_;
  const serve::HttpHead* head_ = nullptr;  ///< the exchange's, once it is known
  bool is_working_ = false, has_worked_ = false, has_update_ = false;
  PostMemory end_of_work_;
  bool is_http10_ = false, keeps_alive_ = false;
  std::string origin_;  ///< of the page that asks, if a browser says so
  std::string reason_;  ///< why it is refused, if the status alone does not say so
};

}  // namespace nanovllm::examples
