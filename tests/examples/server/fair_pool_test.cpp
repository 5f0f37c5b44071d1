// Threads for long work: clients take turns, what is cancelled is not done, and nothing is lost.

#include "../../../examples/server/fair_pool.hpp"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

using nanovllm::examples::FairPool;

namespace {

/// Work that holds a thread until it is let go.
struct Gate {
  std::atomic<bool> is_held = false, is_open = false;
  FairPool::Work work() {
    return [this](const std::stop_token&) {
      is_held = true;
      while (!is_open) std::this_thread::yield();
    };
  }
  void wait() const {
    while (!is_held) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("clients take turns, and each has its own bound") {
  Gate gate;
  std::vector<std::string> order;  // of one thread, and read when that has ended
  std::atomic<int> num_done = 0;
  {
    FairPool pool(1, 3);
    REQUIRE(pool.post("gate", gate.work()) != nullptr);
    gate.wait();
    const auto post = [&](const std::string& client) {
      return pool.post(client, [&, client](const std::stop_token& stop) {
        if (!stop.stop_requested()) order.push_back(client);
        ++num_done;
      });
    };
    for (int i = 0; i < 3; ++i) CHECK(post("many") != nullptr);
    CHECK(post("many") == nullptr);  // but others may
    CHECK(post("few") != nullptr);
    CHECK(post("one") != nullptr);
    CHECK(post("few") != nullptr);
    gate.is_open = true;
    while (num_done < 6) std::this_thread::yield();
  }
  CHECK(std::vector<std::string>(order.begin(), order.begin() + 5) ==
        std::vector<std::string>{"many", "few", "one", "many", "few"});
}

TEST_CASE("cancelled work is not begun, or told to stop") {
  Gate gate;
  FairPool pool(1, 10);
  const auto held = pool.post("a", gate.work());
  gate.wait();
  std::atomic<int> num_done = 0;
  const auto count = [&](const std::stop_token&) { ++num_done; };
  const auto waiting = pool.post("a", count), other = pool.post("b", count);
  CHECK(pool.cancel(waiting));
  CHECK_FALSE(pool.cancel(waiting));
  CHECK_FALSE(pool.cancel(held));  // under way: it hears of it
  CHECK(held->stop.stop_requested());
  gate.is_open = true;
  while (num_done == 0) std::this_thread::yield();
  CHECK_FALSE(pool.cancel(other));
  pool.join();
  CHECK(num_done == 1);
}

TEST_CASE("once all is cancelled, work is called to say so, and nothing waits") {
  std::atomic<int> num_called = 0, num_stopped = 0;
  const auto work = [&](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
    ++num_called;
    num_stopped += stop.stop_requested();
  };
  FairPool pool(2, 100);
  for (int i = 0; i < 50; ++i) CHECK(pool.post(std::to_string(i % 7), work) != nullptr);
  pool.cancel_all();
  CHECK(pool.post("later", work) != nullptr);
  pool.join();
  CHECK(num_called == 51);
  CHECK(num_stopped == 51);
}

TEST_CASE("many clients at once: all work is done once or cancelled") {
  std::atomic<int> num_done = 0, num_posted = 0, num_cancelled = 0;
  {
    FairPool pool(3, 5);
    std::vector<std::jthread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937 random(static_cast<unsigned>(c));
        for (int i = 0; i < 500; ++i) {
          const auto job =
              pool.post(std::to_string(random() % 3), [&](const std::stop_token&) { ++num_done; });
          if (!job) continue;
          ++num_posted;
          if (random() % 3 == 0 && pool.cancel(job)) ++num_cancelled;
        }
      });
    }
  }
  CHECK(num_done + num_cancelled == num_posted);
}
