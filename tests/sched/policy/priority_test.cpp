#include "nanovllm/sched/policy/priority.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "kv/prefix/linear_cache.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "sched/policies.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

template <std::int64_t kWindow = 100, class Blocks = BlockManager<4>,
          class Preemption = RecomputePreemption>
using Simulated = simulator::Engine<PriorityWithin<kWindow>, Blocks, Preemption>;

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

/// Its order may throw where a request is added wholly or not at all.
struct Throwing : ContinuousBatching {
  static std::int64_t order(const Sequence&) { return 0; }
};

}  // namespace

TEST_CASE("which policies have an order of their own", "[priority]") {
  STATIC_REQUIRE(OrdersSequences<Priority>);
  STATIC_REQUIRE(OrdersSequences<Throwing>);  // and a message of the compiler's, see order_of
  STATIC_REQUIRE_FALSE(OrdersSequences<ContinuousBatching>);
  STATIC_REQUIRE_FALSE(OrdersSequences<PrefillFirst>);
  STATIC_REQUIRE(SchedulingPolicyLike<Priority, BlockManager<4>>);
  STATIC_REQUIRE(SchedulingPolicyLike<Priority, BlockManager<4, test::LinearCache<4>>>);
}

TEST_CASE("a request of priority p is served as if p windows of requests had come before it",
          "[priority]") {
  Simulated<3> engine({.max_num_seqs = 1, .max_num_batched_tokens = 64}, 64);
  for (const std::int32_t priority : {1, 0, 0, 0, 0, -1, 2}) engine.add(iota(4), 1, priority);
  std::string order;
  while (engine.scheduler.has_work()) order += engine.step()[2];
  // Orders 4, 2, 3, 4, 5, 3, 13: what is equal goes in the order of arrival.
  REQUIRE(order == "2361457");
}

TEST_CASE("without priorities, and under policies that know of none, it is continuous batching",
          "[priority]") {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 40; ++round) {
    const BatchConfig config{.max_num_seqs = 1 + below(6), .max_num_batched_tokens = 6 + below(20)};
    const std::int32_t num_blocks = 5 + below(12);
    simulator::Engine<ContinuousBatching, BlockManager<4>> plain(config, num_blocks),
        told(config, num_blocks);
    Simulated<> engine(config, num_blocks);
    for (int i = 0; i < 15; ++i) {
      const std::vector<TokenId> prompt = iota(1 + below(15), below(3));
      const int max_new = 1 + below(30);
      plain.add(prompt, max_new);
      told.add(prompt, max_new, below(100) - 50);
      engine.add(prompt, max_new, 7);
    }
    while (plain.scheduler.has_work()) {
      const std::string step = plain.step();
      REQUIRE(engine.step() == step);
      REQUIRE(told.step() == step);
    }
    REQUIRE_FALSE(engine.scheduler.has_work());
  }
}

TEST_CASE("a waiting request goes before another, and takes the place of a running one far behind",
          "[priority]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 64, false);
  engine.add(iota(4));
  engine.add(iota(4, 100), 1000, 1);
  engine.add(iota(4, 200));
  REQUIRE(engine.step() == "| 1:0-4! 3:0-4!");
  engine.add(iota(6, 300), 1000, -1);
  REQUIRE(engine.step() == "1:4-5! | 4:0-6! -3");
  REQUIRE(engine.requests[2]->num_preemptions == 1);
  // The third came before the fourth and goes before the second; it does not come back at once.
  REQUIRE(engine.step() == "4:6-7! 1:5-6! |");
  engine.scheduler.abort(*engine.requests[3]);
  REQUIRE(engine.step() == "1:6-7! | 3:0-5!");
}

TEST_CASE("a small lead takes nothing from what runs", "[priority]") {
  Simulated<8> engine({.max_num_seqs = 1, .max_num_batched_tokens = 64}, 64, false);
  engine.add(iota(4), 1000, 0);  // order 1
  engine.step();
  for (int i = 0; i < 4; ++i) engine.add(iota(4), 1000, 50);
  engine.add(iota(4), 2, -1);  // order -2: three behind, and the margin is four
  engine.step();
  REQUIRE(engine.scheduler.num_preemptions() == 0);
  engine.add(iota(4), 2, -2);  // order -9
  REQUIRE(engine.step() == "| 7:0-4! -1");
  REQUIRE(engine.step() == "7:4-5! |");
  // The sixth goes before the first, which waits with it now.
  REQUIRE(engine.step() == "| 6:0-4!");
}

TEST_CASE("none is preempted for one that would not get in all the same", "[priority]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 8, false);
  engine.add(iota(14), 2, -2);   // 4 blocks
  engine.add(iota(6), 1000, 2);  // 2 blocks, and may grow by one
  REQUIRE(engine.step() == "| 1:0-14! 2:0-6!");
  engine.add(iota(20), 1000, 0);  // goes before the second, but needs more than that has
  REQUIRE(engine.step() == "1:14-15! 2:6-7! |");
  REQUIRE(engine.requests[0]->finish_reason == FinishReason::length);
  REQUIRE(engine.scheduler.num_preemptions() == 0);
  REQUIRE(engine.step() == "| 3:0-20! -2");
}

TEST_CASE("the budget of a preempted decode is the new one's", "[priority]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 2}, 64, false);
  engine.add(iota(1));
  engine.add(iota(1, 50));
  REQUIRE(engine.step() == "| 1:0-1! 2:0-1!");
  engine.add(iota(3, 100), 1000, -1);
  REQUIRE(engine.step() == "1:1-2! | 3:0-1 -2");
  REQUIRE(engine.step() == "1:2-3! | 3:1-2");
}

TEST_CASE("none is preempted because others have used up a step's tokens", "[priority]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 8}, 64, false);
  engine.add(iota(1), 1000, 1);
  engine.add(iota(1, 50), 1000, 1);
  REQUIRE(engine.step() == "| 1:0-1! 2:0-1!");
  engine.add(iota(20, 100), 1000, -1);
  engine.add(iota(3, 200), 1000, -1);
  REQUIRE(engine.step() == "1:1-2! 2:1-2! | 3:0-6");
  REQUIRE(engine.step() == "1:2-3! 2:2-3! | 3:6-12");
  REQUIRE(engine.step() == "1:3-4! 2:3-4! | 3:12-18");
  REQUIRE(engine.step() == "1:4-5! 2:4-5! | 3:18-20! 4:0-3!");
}

TEST_CASE("the one that goes last gives way when a running one lacks a block", "[priority]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 6, false);
  engine.add(iota(4), 1000, 2);
  engine.add(iota(4, 100), 1000, 0);
  REQUIRE(engine.step() == "| 2:0-4! 1:0-4!");
  while (engine.scheduler.num_preemptions() == 0) engine.step();
  REQUIRE(engine.requests[0]->num_preemptions == 1);
  REQUIRE(engine.requests[1]->num_preemptions == 0);

  Simulated<100, BlockManager<4>, test::MostBlocks> largest(
      {.max_num_seqs = 4, .max_num_batched_tokens = 64}, 8, false);
  largest.add(iota(4), 1000, 0);
  largest.add(iota(10, 100), 1000, 1);
  largest.add(iota(3, 200), 1000, 2);
  REQUIRE(largest.step() == "| 1:0-4! 2:0-10! 3:0-3!");
  while (largest.scheduler.num_preemptions() == 0) largest.step();
  REQUIRE(largest.scheduler.preemption().last_id == 2);
}

TEST_CASE("any priority is allowed", "[priority]") {
  simulator::Engine<PriorityWithin<(std::int64_t{1} << 30)>, BlockManager<4>> engine(
      {.max_num_seqs = 1, .max_num_batched_tokens = 64}, 64);
  engine.add(iota(4), 1, kMost);
  engine.add(iota(4), 1, 0);
  engine.add(iota(4), 1, kLeast);
  engine.add(iota(4), 1, kLeast);
  std::string order;
  while (engine.scheduler.has_work()) order += engine.step()[2];
  REQUIRE(order == "3421");
}

TEST_CASE("nobody starves: fewer than a window of later requests go before, for each priority",
          "[priority]") {
  constexpr std::int64_t kWindow = 10;
  for (const std::int32_t priority : {1, 2, 5}) {
    // More urgent requests come without end, faster than they are served.
    Simulated<kWindow> engine({.max_num_seqs = 2, .max_num_batched_tokens = 8}, 12);
    for (int i = 0; i < 5; ++i) engine.add(iota(5, i), 3, 0);
    Sequence& patient = engine.add(iota(9, 50), 20, priority);
    std::int64_t num_steps = 0;
    for (; patient.status != SequenceStatus::finished; ++num_steps) {
      REQUIRE(num_steps < 1000);
      engine.add(iota(5, static_cast<TokenId>(num_steps % 7)), 3, 0);
      engine.add(iota(3), 2, 0);
      engine.step();
    }
    std::int64_t num_before = 0;
    for (const auto& s : engine.requests)
      num_before += s->arrival > patient.arrival && goes_before(*s, patient) ? 1 : 0;
    REQUIRE(num_before < priority * kWindow);
    std::int64_t num_served = 0;
    for (const auto& s : engine.requests)
      num_served += s->status == SequenceStatus::finished && s->arrival > patient.arrival ? 1 : 0;
    CAPTURE(priority, num_steps, num_served);
    // What goes behind may run beside it: one place of two, for 20 tokens.
    REQUIRE(num_served < priority * kWindow + 20);
    REQUIRE(num_served >= priority * kWindow - 2);
  }
}

TEST_CASE("no two preempt each other in turn", "[priority]") {
  std::mt19937 random(9);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 30; ++round) {
    Simulated<4> engine({.max_num_seqs = 3, .max_num_batched_tokens = 16}, 8 + below(8), false);
    std::int64_t num_preempting = 0;
    for (int step = 0; step < 400; ++step) {
      if (step < 200 && below(3) == 0) engine.add(iota(1 + below(12)), 1 + below(15), below(5) - 2);
      if (!engine.scheduler.has_work()) continue;
      const StepPlan plan = engine.start();
      for (const Sequence* victim : plan.preempted) {
        // Whoever runs on in its place goes before it, now and always.
        ++num_preempting;
        const auto last = std::ranges::max_element(
            plan.sequences, [](const PlannedSequence& a, const PlannedSequence& b) {
              return goes_before(*a.sequence, *b.sequence);
            });
        REQUIRE(goes_before(*last->sequence, *victim));
      }
      engine.scheduler.commit(plan, outcomes(plan));
    }
    REQUIRE_FALSE(engine.scheduler.has_work());
    CAPTURE(num_preempting);
  }
}

TEST_CASE("cached blocks of less urgent requests are given up first, where the cache can",
          "[priority]") {
  using Blocks = BlockManager<4>;
  simulator::Engine<Priority, Blocks> engine({.max_num_seqs = 1, .max_num_batched_tokens = 64}, 12);
  const auto run = [&](std::vector<TokenId> prompt, std::int32_t priority) {
    Sequence& s = engine.add(std::move(prompt), 1, priority);
    while (engine.scheduler.has_work()) engine.step();
    return s.num_cached_tokens;
  };
  run(iota(9, 100), -1);  // two full blocks each
  run(iota(9, 200), 0);
  run(iota(9, 300), 1);
  run(iota(9, 400), 0);
  run(iota(17, 500), 0);  // 5 blocks; 4 are free
  const auto& blocks = engine.scheduler.blocks();
  REQUIRE(blocks.match(iota(9, 100)).num_tokens == 8);
  REQUIRE(blocks.match(iota(9, 200)).num_tokens == 8);
  REQUIRE(blocks.match(iota(9, 300)).num_tokens == 4);
  REQUIRE(blocks.match(iota(9, 400)).num_tokens == 8);
  run(iota(17, 600), 0);
  REQUIRE(blocks.match(iota(9, 100)).num_tokens == 8);
  REQUIRE(blocks.match(iota(9, 200)).num_tokens == 0);

  // Policies that know of no priority give up the least recently used.
  simulator::Engine<ContinuousBatching, Blocks> plain(
      {.max_num_seqs = 1, .max_num_batched_tokens = 64}, 12);
  for (int i = 0; i < 4; ++i) {
    plain.add(iota(9, 100 + 100 * i), 1, i - 1);
    while (plain.scheduler.has_work()) plain.step();
  }
  plain.add(iota(17, 500), 1);
  while (plain.scheduler.has_work()) plain.step();
  REQUIRE(plain.scheduler.blocks().match(iota(9, 100)).num_tokens == 4);
  REQUIRE(plain.scheduler.blocks().match(iota(9, 300)).num_tokens == 8);
}

TEST_CASE("the radix cache gives up less urgent requests' blocks first, too", "[priority]") {
  simulator::Engine<Priority, BlockManager<4, RadixPrefixCache<4>>> engine(
      {.max_num_seqs = 1, .max_num_batched_tokens = 64}, 12);
  for (const auto& [first, priority] :
       {std::pair(100, -1), std::pair(200, 0), std::pair(300, 1), std::pair(400, 0)}) {
    engine.add(iota(9, first), 1, priority);  // three blocks each, the last one not full
    engine.step();
  }
  engine.add(iota(17, 500), 1, 0);  // five
  engine.step();
  const auto& blocks = engine.scheduler.blocks();
  REQUIRE(blocks.match(iota(9, 100)).num_tokens == 8);
  REQUIRE(blocks.match(iota(9, 200)).num_tokens == 4);
  REQUIRE(blocks.match(iota(9, 300)).num_tokens == 0);
  REQUIRE(blocks.match(iota(9, 400)).num_tokens == 8);
}

TEMPLATE_TEST_CASE("caches that do not know of priorities serve as they did", "[priority]",
                   (BlockManager<4, test::LinearCache<4>>), (BlockManager<4, NoPrefixCache<4>>)) {
  simulator::Engine<Priority, TestType> engine({.max_num_seqs = 3, .max_num_batched_tokens = 16},
                                               9);
  for (int i = 0; i < 12; ++i) engine.add(iota(3 + i, 3), 12, i % 3 - 1);
  while (engine.scheduler.has_work()) engine.step();
  for (const auto& s : engine.requests) REQUIRE(s->finish_reason == FinishReason::length);
  REQUIRE(engine.scheduler.blocks().num_free() == 9);
}
