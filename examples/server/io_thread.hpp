#pragma once
/// What connections share: the state of their server, and the io threads that they live on.

#include <nanovllm/serve/metrics.hpp>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "access.hpp"
#include "body_memory.hpp"
#include "fair_pool.hpp"
#include "http_server.hpp"
#include "log.hpp"

namespace nanovllm::examples {

namespace net = boost::asio;

using Executor = net::io_context::executor_type;

/// What all connections of a server share.
struct ServerState {
  ServerState(HttpServerConfig given, HttpHandler answers,
              std::shared_ptr<serve::HttpCounters> counts, Log& lines)
      : config(std::move(given)),
        handler(std::move(answers)),
        counters(std::move(counts)),
        log(lines),
        handlers(static_cast<std::size_t>(std::max(1, config.handler_threads))),
        long_handlers(static_cast<std::size_t>(config.long_handler_threads),
                      config.max_long_requests),
        writers(static_cast<std::size_t>(std::max(1, config.io_threads))),
        body_memory(config.max_body_memory) {}

  const HttpServerConfig config;
  AccessRules access;  ///< set before the first connection
  const HttpHandler handler;
  const std::shared_ptr<serve::HttpCounters> counters;
  Log& log;
  net::thread_pool handlers;
  FairPool long_handlers;
  net::thread_pool writers;  ///< of whole replies, which must not wait behind grammars
  BodyMemory body_memory;
  std::atomic<bool> is_draining = false;
  std::atomic<bool> is_over = false;  ///< the time to drain is: replies that have not begun are 503
  std::atomic<int> num_requests = 0;  ///< of which a byte has come, and not the whole reply gone
};

/// A connection as its io thread knows it. Members are called on that thread, its destructor too.
class AnyConnection {
 public:
  virtual ~AnyConnection() = default;
  virtual void wake() = 0;       ///< to look at ServerState again
  virtual void on_update() = 0;  ///< of its exchange
  virtual void close() = 0;      ///< at once, whatever is under way
};

/// Brings the wake-ups of a step's exchanges from the engine's thread to an io thread: one post for
/// all that come before they are heard, and a lock of a few instructions for each. An exchange may
/// keep it for longer than the server is there.
class NewsQueue {
 public:
  explicit NewsQueue(net::io_context& io) : io_(io) {}

  /// From any thread.
  void push(std::weak_ptr<AnyConnection> connection) {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    waiting_.push_back(std::move(connection));
    if (!std::exchange(is_posted_, true)) net::post(io_, [this] { deliver(); });
  }

  /// The io thread ends: nobody receives later updates.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }

 private:
  void deliver() {
    {
      const std::lock_guard lock(mutex_);
      std::swap(waiting_, delivered_);
      is_posted_ = false;
    }
    for (const std::weak_ptr<AnyConnection>& connection : delivered_) {
      if (const auto alive = connection.lock()) alive->on_update();
    }
    delivered_.clear();
  }

  net::io_context& io_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<AnyConnection>> waiting_, delivered_;  // both keep their memory
  bool is_posted_ = false, is_closed_ = false;
};

/// An io thread and its connections.
struct IoThread {
  net::io_context io{1};
  net::executor_work_guard<Executor> work{io.get_executor()};
  std::shared_ptr<NewsQueue> update = std::make_shared<NewsQueue>(io);
  std::unordered_set<AnyConnection*> connections;
  std::thread thread;
};

}  // namespace nanovllm::examples
