#include "nanovllm/sched/queues.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "catch.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

TEST_CASE("the waiting queue agrees with a sorted list on random operations", "[queues]") {
  std::mt19937 random(77);
  std::vector<Sequence> all(30);
  const bool has_orders = GENERATE(false, true);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].arrival = i + 1;
    if (has_orders) all[i].order = static_cast<std::int64_t>(random() % 10) - 5;
  }
  WaitingQueue queue;
  std::vector<Sequence*> model;
  for (int step = 0; step < 5000; ++step) {
    Sequence* const s = &all[random() % all.size()];
    if (const auto found = std::find(model.begin(), model.end(), s); found != model.end()) {
      queue.erase(*s);
      model.erase(found);
    } else {
      queue.insert(*s);
      model.push_back(s);
      std::ranges::sort(model,
                        [](const Sequence* a, const Sequence* b) { return goes_before(*a, *b); });
    }
    queue.check_invariants();
    REQUIRE(queue.size() == model.size());
    REQUIRE(queue.empty() == model.empty());
    REQUIRE(std::equal(queue.begin(), queue.end(), model.begin(), model.end()));
    REQUIRE(queue.front() == (model.empty() ? nullptr : model.front()));
    REQUIRE(queue.back() == (model.empty() ? nullptr : model.back()));
  }
}

TEST_CASE("defect 10: aborting many waiting requests is quadratic", "[queues][scheduler]") {
  constexpr int kNumRequests = 80000;
  Scheduler<ContinuousBatching, BlockManager<4>> scheduler(
      {.max_num_seqs = 4, .max_num_batched_tokens = 64}, BlockManager<4>(64, true));
  std::vector<std::unique_ptr<Sequence>> requests;
  for (int i = 0; i < kNumRequests; ++i) {
    requests.push_back(request(static_cast<RequestId>(i), {1, 2, 3}, 4));
    scheduler.add(*requests.back());
  }
  std::vector<Sequence*> order;
  for (const auto& s : requests) order.push_back(s.get());
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  const auto begin = std::chrono::steady_clock::now();
  for (Sequence* s : order) scheduler.abort(*s);
  REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500));
  REQUIRE_FALSE(scheduler.has_work());
  scheduler.check_invariants();
}
