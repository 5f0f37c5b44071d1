#include "nanovllm/cpu/thread_pool.hpp"

#include <atomic>
#include <chrono>
#include <vector>

#include "catch.hpp"
#include "core/refused_threads.hpp"

using nanovllm::cpu::ThreadPool;

TEST_CASE("parallel_for visits every index exactly once, at any count and grain", "[thread_pool]") {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int count : {0, 1, 2, 63, 64, 65, 1000}) {
      for (int grain : {1, 7, 64, 5000}) {
        std::vector<int> visits(static_cast<std::size_t>(count), 0);
        std::atomic<int> bad_ranges{0};
        pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
          if (thread < 0 || thread >= threads) ++bad_ranges;
          if (begin % grain != 0 || end - begin > grain) ++bad_ranges;
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        REQUIRE(bad_ranges == 0);
        REQUIRE(visits == std::vector<int>(static_cast<std::size_t>(count), 1));
      }
    }
  }
}

TEST_CASE("what one loop wrote is visible to the next", "[thread_pool]") {
  ThreadPool pool(3);
  std::vector<long> values(257, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(257, 1, [&](std::int64_t begin, std::int64_t, int) {
      values[static_cast<std::size_t>(begin)] += 1 + values[static_cast<std::size_t>(begin)] % 2;
    });
  }
  for (long v : values) REQUIRE(v == values[0]);
  REQUIRE(values[0] >= 2000);
}

TEST_CASE("workers wake again after they have slept", "[thread_pool]") {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> sum{0};
    pool.parallel_for(100, 3, [&](std::int64_t begin, std::int64_t end, int) {
      sum += static_cast<int>(end - begin);
    });
    REQUIRE(sum == 100);
  }
}

TEST_CASE("defect 8: a thread pool that gets too few threads is an Error", "[thread_pool]") {
  for (const int num_left : {0, 1, 6}) {
    const nanovllm::test::RefusedThreads refused(num_left);
    CHECK_THROWS_WITH(ThreadPool(8),
                      Catch::Matchers::Contains("7 threads were wanted, " +
                                                std::to_string(num_left) + " could be started"));
  }
}
