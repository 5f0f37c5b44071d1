#pragma once
/// What connections share: the state of their server, and the io threads that they live on.

#include <nanovllm/api/serve/metrics.hpp>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <memory>
#include <thread>
#include <unordered_set>
#include <utility>

#include "access.hpp"
#include "body_memory.hpp"
#include "fair_pool.hpp"
#include "http_server.hpp"
#include "log.hpp"
#include "news_queue.hpp"

namespace nanovllm::examples {

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
  std::atomic<bool> is_over = false;  ///< the time to drain is: replies end with an error
  std::atomic<int> num_requests = 0;  ///< of which a byte has come, and not the whole reply gone
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
