#include "nanovllm/parallel/peer/begun_sums.cuh"

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include "catch.hpp"

using nanovllm::peer::BegunSums;

namespace {
constexpr auto kNever = [] {};
}

TEST_CASE("a rank waits until the other has begun its sum", "[peer]") {
  BegunSums sums;
  sums.count(0);
  CHECK(sums.wait(0, 0, 0, kNever));
  CHECK_FALSE(sums.wait(0, 1, 0.01, kNever));
  CHECK_FALSE(sums.wait(1, 0, 0.01, kNever));
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      sums.count(1);
    }
  });
  for (std::uint64_t n = 0; n < 100; ++n) CHECK(sums.wait(1, n, 60, kNever));
  other.join();
  CHECK_FALSE(sums.wait(1, 100, 0.01, kNever));
  sums.reset(1);
  CHECK_FALSE(sums.wait(1, 0, 0.01, kNever));
  CHECK(sums.wait(0, 0, 0, kNever));
}

TEST_CASE("a rank that waits for another's sum leaves when the group ends", "[peer]") {
  BegunSums sums;
  int num_checks = 0;
  const auto ends = [&] {
    if (++num_checks == 5) throw std::runtime_error("the group has ended");
  };
  CHECK_THROWS_AS(sums.wait(0, 0, 60, ends), std::runtime_error);
  CHECK(num_checks == 5);
}
