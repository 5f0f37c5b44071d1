#include "nanovllm/core/thread.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "catch.hpp"
#include "core/refused_threads.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

TEST_CASE("threads are started with their numbers", "[thread]") {
  std::atomic<int> sum = 0;
  for (std::thread& thread : start_threads(
           "test", 4, [&](int i) { sum += 1 << i; }, [] {}))
    thread.join();
  CHECK(sum == 15);
  CHECK(start_threads(
            "test", 0, [](int) {}, [] {})
            .empty());
}

TEST_CASE("defect 8: a thread that cannot be created is an Error that counts them", "[thread]") {
  const RefusedThreads refused(2);
  std::atomic<bool> stopped = false;
  std::atomic<int> num_ended = 0;
  const auto work = [&](int) {
    while (!stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++num_ended;
  };
  CHECK_THROWS_WITH(start_threads("the test's", 5, work, [&] { stopped = true; }),
                    Contains("the test's: 5 threads were wanted, 2 could be started: "));
  CHECK(num_ended == 2);
}
