#include "nanovllm/parallel/thread_group.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "parallel/collective_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Runs `body(communicator)` on one thread a rank.
template <class Body>
void run_ranks(int num_ranks, Body body) {
  std::vector<std::thread> threads;
  for (ThreadGroup& rank : ThreadGroup::make(num_ranks)) {
    threads.emplace_back([&body, comm = rank]() mutable { body(comm); });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The ranks of collective_cases.hpp.
template <class Comm>
struct Ranks {
  template <class Body>
  static std::vector<std::string> run(int size, const Body& body) {
    return run_ends(Comm::make(size), body);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("all_reduce gives every rank the sum in rank order, rounded once",
                   "[thread_group]", float, bf16) {
  for (int num_ranks : {1, 2, 3, 4}) {
    for (std::int64_t rows : {0, 1, 3}) {
      const std::int64_t width = 5;
      const auto value = [](int rank, std::int64_t i) {
        return TestType(0.37f * static_cast<float>(rank + 1) - 0.11f * static_cast<float>(i));
      };
      std::vector<std::vector<TestType>> data(static_cast<std::size_t>(num_ranks));
      for (int r = 0; r < num_ranks; ++r) {
        for (std::int64_t i = 0; i < rows * width; ++i)
          data[static_cast<std::size_t>(r)].push_back(value(r, i));
      }
      run_ranks(num_ranks, [&](ThreadGroup& comm) {
        for (int round = 0; round < 3; ++round) {  // the group is reusable
          auto& mine = data[static_cast<std::size_t>(comm.rank())];
          for (std::int64_t i = 0; i < rows * width; ++i)
            mine[static_cast<std::size_t>(i)] = value(comm.rank(), i);
          comm.all_reduce(MatrixView<TestType>(mine.data(), {rows, width}));
        }
      });
      for (const auto& mine : data) {
        for (std::int64_t i = 0; i < rows * width; ++i) {
          float sum = 0.f;
          for (int r = 0; r < num_ranks; ++r) sum += static_cast<float>(value(r, i));
          REQUIRE(static_cast<float>(mine[static_cast<std::size_t>(i)]) ==
                  static_cast<float>(TestType(sum)));
        }
      }
    }
  }
}

TEST_CASE("all_gather_columns puts the ranks' columns side by side on every rank",
          "[thread_group]") {
  const int num_ranks = 3;
  std::vector<std::vector<float>> wholes(num_ranks, std::vector<float>(2 * 6, -1.f));
  run_ranks(num_ranks, [&](ThreadGroup& comm) {
    std::vector<float> part(2 * 2);
    for (int i = 0; i < 4; ++i)
      part[static_cast<std::size_t>(i)] = static_cast<float>(10 * comm.rank() + i);
    comm.all_gather_columns(
        MatrixView<const float>(part.data(), {2, 2}),
        MatrixView<float>(wholes[static_cast<std::size_t>(comm.rank())].data(), {2, 6}));
  });
  for (const auto& whole : wholes) {
    CHECK(whole == std::vector<float>{0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23});
  }
}

TEST_CASE("a rank that aborts releases the others with an error", "[thread_group]") {
  std::vector<int> failed(3, 0);
  run_ranks(3, [&](ThreadGroup& comm) {
    if (comm.rank() == 1) return comm.abort();
    std::vector<float> x(4, 1.f);
    try {
      comm.all_reduce(MatrixView<float>(x.data(), {2, 2}));
    } catch (const Error&) {
      failed[static_cast<std::size_t>(comm.rank())] = 1;
    }
  });
  CHECK(failed == std::vector<int>{1, 0, 1});
}

TEST_CASE("ranks that have met leave together, also after an abort", "[thread_group]") {
  detail::AbortableBarrier barrier(2);
  std::atomic<bool> reads = true;
  bool left_first = true;
  std::thread other([&] {
    barrier.enter();
    barrier.leave();
    left_first = reads;
  });
  barrier.enter();
  barrier.abort();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  reads = false;
  barrier.leave();
  other.join();
  CHECK_FALSE(left_first);
  CHECK_THROWS_AS(barrier.enter(), Error);
}

TEMPLATE_TEST_CASE("sums of rows, scattered and gathered", "[thread_group][collectives]", float,
                   bf16) {
  check_sums_of_rows<TestType, Ranks<Single>>(1);
  for (int size : {1, 2, 3, 4}) check_sums_of_rows<TestType, Ranks<ThreadGroup>>(size);
}

TEMPLATE_TEST_CASE("rows from all to all, and back", "[thread_group][collectives]", float, bf16,
                   std::int32_t) {
  check_all_to_all<TestType, Ranks<Single>>(1);
  for (int size : {1, 2, 3, 4}) check_all_to_all<TestType, Ranks<ThreadGroup>>(size);
}

TEST_CASE("operands that do not fit are an error of all threads", "[thread_group][collectives]") {
  check_mismatches<Ranks<ThreadGroup>>(3);
}

TEST_CASE("an abort releases threads that wait for rows", "[thread_group][collectives]") {
  check_abort_releases<Ranks<ThreadGroup>>(3, "another rank failed");
}

TEST_CASE("Single names operands that do not fit", "[communicator][collectives]") {
  Single comm;
  std::vector<float> x(4), y(4);
  const MatrixView<const float> from(x.data(), {2, 2});
  const std::vector<int> two{2}, one{1};
  CHECK_THROWS_AS(comm.all_gather(from, MatrixView<float>(y.data(), {1, 2})), ShapeError);
  CHECK_THROWS_AS(comm.reduce_scatter(from, MatrixView<float>(y.data(), {1, 2})), ShapeError);
  CHECK_THROWS_WITH(comm.all_to_all(from, two, MatrixView<float>(y.data(), {1, 2}), one),
                    "all_to_all: rank 0 expected [1, 2] of rank 0, got [2, 2]");
}

TEST_CASE("Single refuses more than one rank and names the setting", "[communicator]") {
  CHECK(Single::make(1).size() == 1);
  CHECK_THROWS_AS(Single::make(2), ConfigError);
  CHECK_THROWS_AS(ThreadGroup::make(0), ConfigError);
}
