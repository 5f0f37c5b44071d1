// At most one owner a device.

#include "nanovllm/cuda/runtime/device_claim.hpp"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

using nanovllm::cuda::WaitingGroup;
using nanovllm::cuda::WaitsForLaterBlocks;
using nanovllm::cuda::WaitsForPeers;
using DeviceClaim = nanovllm::cuda::DeviceClaim<WaitsForLaterBlocks>;

TEST_CASE("A device is claimed once at a time", "[device_claim]") {
  std::optional<DeviceClaim> first(std::in_place, 0);
  CHECK(*first);
  CHECK_FALSE(DeviceClaim(0));
  CHECK(DeviceClaim(1));  // and given back
  const DeviceClaim other(1);
  CHECK(other);
  first.reset();
  CHECK(DeviceClaim(0));
}

TEST_CASE("A claim moves with its owner", "[device_claim]") {
  DeviceClaim none, owner(3);
  CHECK_FALSE(none);
  none = std::move(owner);
  CHECK(none);
  CHECK_FALSE(owner);
  {
    const DeviceClaim next(std::move(none));
    CHECK(next);
    CHECK_FALSE(DeviceClaim(3));
  }
  CHECK(DeviceClaim(3));
}

/// As an engine at namespace scope has one: it ends after statics of functions that `main` calls.
std::optional<DeviceClaim> outlives_main;

TEST_CASE("A claim may end after main", "[device_claim]") {
  outlives_main.emplace(9);
  CHECK(*outlives_main);
}

TEST_CASE("A claim that is assigned to gives back what it had", "[device_claim]") {
  DeviceClaim claim(10);
  claim = DeviceClaim(11);
  CHECK(claim);
  CHECK(DeviceClaim(10));
  CHECK_FALSE(DeviceClaim(11));
  claim = {};
  CHECK_FALSE(claim);
  CHECK(DeviceClaim(11));
}

TEST_CASE("Waiting groups are counted", "[device_claim]") {
  CHECK(WaitingGroup::num_alive() == 0);
  {
    const WaitingGroup one;
    std::optional<WaitingGroup> other(std::in_place);
    CHECK(WaitingGroup::num_alive() == 2);
    other.reset();
    CHECK(WaitingGroup::num_alive() == 1);
  }
  CHECK(WaitingGroup::num_alive() == 0);
}

TEST_CASE("Claims of another right do not count", "[device_claim]") {
  const DeviceClaim one(5);
  const nanovllm::cuda::DeviceClaim<WaitsForPeers> other(5);
  CHECK(one);
  CHECK(other);
}

TEST_CASE("Of claims at the same time one is had", "[device_claim]") {
  for (int round = 0; round < 200; ++round) {
    constexpr int kThreads = 4;
    std::atomic<int> num_ready{0}, num_had{0}, num_done{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        ++num_ready;
        while (num_ready < kThreads) std::this_thread::yield();
        const DeviceClaim claim(7);
        num_had += static_cast<bool>(claim);
        ++num_done;
        while (num_done < kThreads) std::this_thread::yield();
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(num_had == 1);
  }
}
