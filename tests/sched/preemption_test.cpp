#include "nanovllm/sched/preemption.hpp"

#include <cstddef>
#include <span>
#include <vector>

#include "catch.hpp"
#include "sched/policies.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

/// May throw where a step must begin wholly or not at all.
struct Throwing {
  static std::size_t choose(std::span<Sequence* const>) { return 0; }
  void vacate(const Sequence&, std::vector<BlockCopy>&) {}
};

/// Chooses none of the candidates.
struct Confused : RecomputePreemption {
  static std::size_t choose(std::span<Sequence* const> candidates) { return candidates.size(); }
};

/// Saves a victim's first block in the pool's last one, as a swap to host memory would.
struct Saving : RecomputePreemption {
  static void vacate(const Sequence& s, std::vector<BlockCopy>& copies) noexcept {
    copies.push_back({s.block_table.front(), 100});
  }
};

template <class Preemption>
using Simulated = simulator::Engine<ContinuousBatching, BlockManager<4>, Preemption>;

/// Three sequences in a pool that becomes too small: of 3, 11 and 3 tokens.
template <class Preemption>
void fill(Simulated<Preemption>& engine) {
  engine.add(iota(3));
  engine.add(iota(11, 100));
  engine.add(iota(3, 200));
  REQUIRE(engine.step() == "| 1:0-3! 2:0-11! 3:0-3!");
}

}  // namespace

TEST_CASE("what is a preemption policy, and what is not", "[preemption]") {
  STATIC_REQUIRE(PreemptionLike<RecomputePreemption>);
  STATIC_REQUIRE(PreemptionLike<test::MostBlocks>);
  STATIC_REQUIRE_FALSE(PreemptionLike<Throwing>);
  STATIC_REQUIRE_FALSE(PreemptionLike<int>);
}

TEST_CASE("the sequence that came last gives way, or the one that the policy chooses",
          "[preemption]") {
  constexpr BatchConfig kConfig{.max_num_seqs = 4, .max_num_batched_tokens = 64};
  Simulated<RecomputePreemption> last(kConfig, 8, false);
  fill(last);
  while (last.scheduler.num_preemptions() == 0) last.step();
  REQUIRE(last.requests[2]->num_preemptions == 1);

  Simulated<test::MostBlocks> largest(kConfig, 8, false);
  fill(largest);
  while (largest.scheduler.num_preemptions() == 0) largest.step();
  REQUIRE(largest.requests[1]->num_preemptions == 1);
  REQUIRE(largest.scheduler.preemption().last_id == 2);
  REQUIRE(largest.scheduler.preemption().num_blocks >= 3);
  for (const auto& s : largest.requests) largest.scheduler.abort(*s);
  REQUIRE(largest.scheduler.blocks().num_free() == 8);
}

TEST_CASE("a policy that chooses no candidate is told so", "[preemption]") {
  Simulated<Confused> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 8, false);
  fill(engine);
  const auto run = [&] {
    for (int i = 0; i < 100; ++i) engine.step();
  };
  REQUIRE_THROWS_WITH(run(), Catch::Matchers::Contains("there is no candidate"));
  engine.scheduler.check_invariants();
}

TEST_CASE("the plan carries the copies that save a victim's blocks", "[preemption]") {
  Simulated<Saving> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 8, false);
  fill(engine);
  for (;;) {
    StepPlan plan = engine.scheduler.schedule();
    const std::vector<BlockId> table =
        plan.preempted.empty() ? std::vector<BlockId>() : plan.preempted[0]->block_table;
    engine.scheduler.begin(plan);
    engine.scheduler.commit(plan, outcomes(plan));
    if (table.empty()) {
      REQUIRE(plan.block_copies.empty());
      continue;
    }
    REQUIRE(plan.block_copies == std::vector<BlockCopy>{{table[0], 100}});
    break;
  }
}
