#include "nanovllm/parallel/rank_threads.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "catch.hpp"
#include "core/refused_threads.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("every rank runs once, rank 0 on the caller's thread unless it has its own",
          "[rank_threads]") {
  for (const bool own : {false, true}) {
    RankThreads threads(3, own);
    CHECK(threads.num_ranks() == 3);
    for (int round = 0; round < 100; ++round) {
      std::atomic<int> sum = 0;
      std::thread::id first;
      threads.run([&](int rank) {
        sum += 1 << rank;
        if (rank == 0) first = std::this_thread::get_id();
      });
      REQUIRE(sum == 7);
      REQUIRE((first == std::this_thread::get_id()) != own);
    }
  }
}

TEST_CASE("the first error is rethrown once all have ended", "[rank_threads]") {
  RankThreads threads(3);
  for (int failing = 0; failing < 3; ++failing) {
    std::atomic<int> released = -1;
    const auto task = [&](int rank) {
      if (rank == failing) throw Error("on fire");
      while (released < 0) std::this_thread::yield();
      throw Error("released");
    };
    const auto release = [&](int rank) {
      if (rank == failing) released = rank;
    };
    CHECK_THROWS_WITH(threads.run(task, release), "on fire");
    CHECK(released == failing);
  }
}

TEST_CASE("defect 18: an error while others are released does not end the process",
          "[rank_threads]") {
  for (const bool own : {false, true}) {
    RankThreads threads(3, own);
    for (int failing = 0; failing < 3; ++failing) {
      const auto task = [&](int rank) {
        if (rank == failing) throw Error("on fire");
      };
      CHECK_THROWS_WITH(threads.run(task, [](int) { throw Error("and more"); }), "on fire");
      CHECK_THROWS_AS(threads.run([](int) { throw 42; }, [](int) { throw 43; }), int);
    }
    CHECK_NOTHROW(threads.run([](int) {}));
  }
}

TEST_CASE("defect 8: ranks that get too few threads are an Error", "[rank_threads]") {
  const RefusedThreads refused(1);
  CHECK_THROWS_WITH(RankThreads(4), Contains("ranks: 3 threads were wanted, 1 could be started"));
}

TEST_CASE("a rank that hangs is named and left behind with its task", "[rank_threads]") {
  const auto kept = std::make_shared<std::atomic<bool>>(false);  // lets it go
  {
    RankThreads threads(3, true);
    std::atomic<bool> released = false;
    bool late = false;
    threads.start([kept, &released](int rank) {
      if (rank == 1) {
        while (!*kept) std::this_thread::sleep_for(milliseconds(1));
      } else {
        while (!released) std::this_thread::sleep_for(milliseconds(1));
        throw Error("released");
      }
    });
    const auto hanging = threads.join_for(
        milliseconds(100), milliseconds(200), [&] { released = true; }, late);
    CHECK(late);
    CHECK(hanging == std::vector<int>{1});
    CHECK(threads.hanging() == std::vector<int>{1});
    CHECK_THROWS_WITH(threads.run([](int) {}), Contains("rank 1 hangs"));
    SECTION("until it comes back") {
      *kept = true;
      while (!threads.hanging().empty()) std::this_thread::sleep_for(milliseconds(1));
      CHECK_NOTHROW(threads.run([](int) {}));
    }
    SECTION("for longer than the others live") {}
  }
  *kept = true;
  for (int i = 0; i < 5000 && kept.use_count() > 1; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(kept.use_count() == 1);  // its thread has ended
}

TEST_CASE("ranks in time are as without a limit", "[rank_threads]") {
  RankThreads threads(2, true);
  bool late = true;
  const auto join = [&] {
    return threads.join_for(
        seconds(10), seconds(1), [] {}, late);
  };
  CHECK(join().empty());  // nothing was started
  CHECK_FALSE(late);
  threads.start([](int) {});
  CHECK(join().empty());
  CHECK_FALSE(late);
  threads.start([](int) { throw Error("on fire"); });
  CHECK_THROWS_WITH(join(), "on fire");
  CHECK_NOTHROW(threads.join());
}

TEST_CASE("what was started is joined once, by whoever comes first", "[rank_threads]") {
  std::atomic<int> num_done = 0;
  {
    RankThreads threads(3);
    std::atomic<bool> released = false;
    const auto wait = [&](int rank) {
      while (rank > 0 && !released) std::this_thread::sleep_for(milliseconds(1));
      ++num_done;
    };
    threads.start(wait);
    CHECK(num_done == 1);  // the caller's part
    released = true;
    threads.join();
    CHECK(num_done == 3);
    CHECK_NOTHROW(threads.join());

    released = false;
    threads.start(wait);
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(10));
      released = true;
    });
    threads.start(wait);  // after the one before
    CHECK(num_done >= 7);
    other.join();
    threads.run(wait);
    CHECK(num_done == 12);

    for (const int failing : {0, 2}) {
      std::atomic<int> handled = -1;
      threads.start(
          [&](int rank) {
            if (rank == failing) throw Error("on fire");
          },
          [&](int rank) { handled = rank; });
      CHECK_THROWS_WITH(threads.run(wait), "on fire");  // which does not begin
      CHECK(handled == failing);
      CHECK(num_done == 12);
    }
    threads.start(wait);
  }
  CHECK(num_done == 15);  // they end what they have begun
}
