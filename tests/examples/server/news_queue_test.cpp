// What other threads tell an io thread comes, in order, also where there is no memory left.

#if __has_include(<boost/asio/bind_allocator.hpp>)

#include "../../../examples/server/news_queue.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "failing_new.hpp"

using namespace nanovllm::examples;
using nanovllm::test::allocations_left;

namespace {

struct Listener final : AnyConnection {
  void wake() override {}
  void on_update() override { ++num_updates; }
  void close() override {}

  std::atomic<int> num_updates = 0;
};

/// An io thread for the length of a test.
struct Loop {
  net::io_context io{1};
  std::shared_ptr<NewsQueue> update = std::make_shared<NewsQueue>(io);
};

}  // namespace

TEST_CASE("news need no memory on the way", "[server]") {
  Loop loop;
  loop.io.poll();
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::shared_ptr<News>> news;
  for (int i = 0; i < 100; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    news.push_back(std::make_shared<News>(1, listeners.back()));
  }
  listeners[50].reset();  // its connection is gone
  std::thread engine([&] {
    allocations_left = 0;
    for (const auto& one : news) loop.update->push(*one);
    loop.update->push(*news.front());  // a second time: it is empty
    allocations_left = -1;
  });
  engine.join();
  loop.io.restart();
  loop.io.poll();
  for (const auto& listener : listeners) CHECK((listener == nullptr || listener->num_updates == 1));
}

TEST_CASE("news from many threads are heard once each", "[server]") {
  Loop loop;
  auto work = net::make_work_guard(loop.io);
  std::thread io([&] { loop.io.run(); });
  constexpr int kThreads = 4, kRounds = 2000;
  const auto listener = std::make_shared<Listener>();
  std::vector<std::thread> engines;
  for (int i = 0; i < kThreads; ++i) {
    engines.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        News one(1, listener);
        loop.update->push(one);
      }
    });
  }
  for (std::thread& engine : engines) engine.join();
  work.reset();
  io.join();
  CHECK(listener->num_updates == kThreads * kRounds);
  loop.update->close();
  News late(1, listener);
  loop.update->push(late);
  loop.io.restart();
  loop.io.poll();
  CHECK(listener->num_updates == kThreads * kRounds);
}

TEST_CASE("what was posted has run before its room is used again", "[server]") {
  net::io_context io{1};
  auto work = net::make_work_guard(io);
  std::thread thread([&] { io.run(); });
  PostMemory memory;
  int sum = 0;
  for (int i = 0; i < 1000; ++i) {
    std::atomic<bool> has_run = false;
    allocations_left = 0;
    memory.post(io.get_executor(), [&, i] {
      sum += i;
      has_run = true;
      has_run.notify_one();
    });
    allocations_left = -1;
    has_run.wait(false);
  }
  work.reset();
  thread.join();
  CHECK(sum == 999 * 1000 / 2);
}

#endif
