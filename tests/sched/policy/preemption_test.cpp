#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

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
using Simulated = simulator::Engine<ContinuousBatching, TieredBlockManager<4>, Preemption>;

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
  STATIC_REQUIRE(PreemptionLike<SwapPreemption>);
  STATIC_REQUIRE(SwapsSequences<SwapPreemption>);
  STATIC_REQUIRE_FALSE(SwapsSequences<test::MostBlocks>);
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

namespace {

/// Swaps only what is too long to be computed again.
struct SwapLong : RecomputePreemption {
  [[nodiscard]] static bool swaps(const Sequence& s) noexcept { return s.num_tokens() > 100; }
};

constexpr BatchConfig kSwapConfig{.max_num_seqs = 4, .max_num_batched_tokens = 64};

/// Steps until one preempts; its plan.
template <class Engine>
std::string until_preempted(Engine& engine) {
  for (;;) {
    const std::string plan = engine.step();
    if (engine.scheduler.num_preemptions() > 0) return plan;
  }
}

/// Tokens that are computed until all is done.
template <class Engine>
std::int64_t run_to_end(Engine& engine) {
  std::int64_t computed = 0;
  while (engine.scheduler.has_work()) {
    const StepPlan plan = engine.start();
    computed += plan.num_tokens;
    engine.scheduler.commit(plan, outcomes(plan));
    engine.scheduler.check_invariants();
  }
  return computed;
}

}  // namespace

TEST_CASE("a swapped sequence comes back with all its tokens, and none is computed twice",
          "[preemption][swap]") {
  const bool caching = GENERATE(true, false);
  Simulated<SwapPreemption> engine(kSwapConfig, 8, caching, 8);
  for (const int first : {0, 100, 200}) engine.add(iota(first == 100 ? 11 : 3, first), 14);
  const Sequence& victim = *engine.requests[2];
  std::int64_t computed = 0;
  while (engine.scheduler.num_preemptions() == 0) {
    const StepPlan plan = engine.start();
    computed += plan.num_tokens;
    engine.scheduler.commit(plan, outcomes(plan));
  }
  REQUIRE(victim.status == SequenceStatus::waiting);
  const std::int32_t num_swapped = victim.kept.num_tokens;
  REQUIRE(num_swapped == victim.num_tokens() - 1);
  REQUIRE(victim.kept.blocks.size() == static_cast<std::size_t>((num_swapped + 3) / 4));
  REQUIRE(engine.scheduler.blocks().swap_stats().num_out == 1);
  const auto num_host_free = static_cast<std::int32_t>(8 - victim.kept.blocks.size());
  REQUIRE(engine.scheduler.blocks().num_free_host() == num_host_free);
  computed += run_to_end(engine);
  REQUIRE(engine.scheduler.blocks().swap_stats().num_in ==
          engine.scheduler.blocks().swap_stats().num_out);
  REQUIRE(engine.scheduler.blocks().swap_stats().num_fallbacks == 0);
  REQUIRE(engine.scheduler.blocks().num_free_host() == 8);
  REQUIRE(computed == (3 + 11 + 3) + 3 * 13);  // the last token of each is never computed
}

TEST_CASE("without room in host memory a sequence is computed again", "[preemption][swap]") {
  const int num_host_blocks = GENERATE(0, 1, 2);
  Simulated<SwapPreemption> engine(kSwapConfig, 8, false, num_host_blocks);
  for (const int first : {0, 100, 200}) engine.add(iota(first == 100 ? 11 : 9, first), 14);
  until_preempted(engine);
  REQUIRE(engine.requests[2]->kept.blocks.empty());
  REQUIRE(engine.scheduler.blocks().swap_stats().num_out == 0);
  REQUIRE(engine.scheduler.blocks().swap_stats().num_fallbacks == 1);
  REQUIRE(engine.scheduler.blocks().num_free_host() == num_host_blocks);
  run_to_end(engine);
}

TEST_CASE("a policy may swap some sequences and compute others again", "[preemption][swap]") {
  Simulated<SwapLong> engine(kSwapConfig, 8, false, 100);
  fill(engine);
  until_preempted(engine);
  REQUIRE(engine.scheduler.blocks().swap_stats().num_out == 0);
  REQUIRE(engine.scheduler.blocks().swap_stats().num_fallbacks == 0);
}

TEST_CASE("what the prefix cache still has is not copied back", "[preemption][swap]") {
  Simulated<SwapPreemption> engine(kSwapConfig, 8, true, 8);
  engine.add(iota(12), 20);
  engine.add(iota(12), 20);  // the same prompt: its blocks are the first one's, too
  engine.step();
  until_preempted(engine);
  const Sequence& victim = *engine.requests[1];
  const std::size_t num_swapped = victim.kept.blocks.size();
  REQUIRE(num_swapped >= 3);
  while (victim.status == SequenceStatus::waiting) {
    const StepPlan plan = engine.start();
    if (victim.status == SequenceStatus::running) {
      REQUIRE(plan.copies_up.size() == num_swapped - plan.sequences.back().prefix.blocks.size());
      REQUIRE(plan.sequences.back().prefix.blocks.size() >= 2);
      REQUIRE(plan.sequences.back().num_tokens() == 1);
    }
    engine.scheduler.commit(plan, outcomes(plan));
  }
}

TEST_CASE("aborted, forgotten and cancelled sequences leave nothing in host memory",
          "[preemption][swap]") {
  Simulated<SwapPreemption> engine(kSwapConfig, 8, false, 8);
  fill(engine);
  SECTION("aborted") {
    until_preempted(engine);
    REQUIRE(engine.scheduler.blocks().num_free_host() < 8);
    engine.scheduler.abort(*engine.requests[2]);
  }
  SECTION("forgotten") {
    until_preempted(engine);
    engine.scheduler.forget_kv();
    REQUIRE(engine.scheduler.num_waiting() == 3);
  }
  SECTION("the step that swaps it out is cancelled") {
    StepPlan plan = engine.scheduler.schedule();
    for (; plan.preempted.empty(); plan = engine.scheduler.schedule()) engine.step();
    engine.scheduler.begin(plan);
    REQUIRE(plan.copies_down.size() == engine.requests[2]->kept.blocks.size());
    engine.scheduler.cancel(plan);
    REQUIRE(engine.requests[2]->kept.num_tokens == 0);
    REQUIRE(engine.scheduler.blocks().swap_stats().num_fallbacks == 1);
    REQUIRE(engine.scheduler.blocks().swap_stats().num_out == 0);
  }
  SECTION("the step that swaps it in is cancelled") {
    until_preempted(engine);
    for (const int i : {0, 1})
      engine.scheduler.abort(*engine.requests[static_cast<std::size_t>(i)]);
    const std::size_t num_swapped = engine.requests[2]->kept.blocks.size();
    StepPlan plan = engine.scheduler.schedule();
    engine.scheduler.begin(plan);
    REQUIRE(plan.copies_up.size() == num_swapped);
    REQUIRE(engine.scheduler.blocks().swap_stats().num_in == 1);
    engine.scheduler.cancel(plan);
    REQUIRE(engine.scheduler.blocks().swap_stats().num_in == 0);
    REQUIRE(engine.scheduler.blocks().swap_stats().num_dropped == 1);
    REQUIRE(engine.requests[2]->num_computed_tokens == 0);
    REQUIRE(engine.requests[2]->block_table.empty());
  }
  engine.scheduler.check_invariants();
  REQUIRE(engine.scheduler.blocks().num_free_host() == 8);
  for (int i = 0; i < 5; ++i) engine.step();
  for (const auto& s : engine.requests) engine.scheduler.abort(*s);
  REQUIRE(engine.scheduler.blocks().num_free() == 8);
}

TEST_CASE("a plan that brings back another's blocks is refused", "[preemption][swap]") {
  Simulated<SwapPreemption> engine(kSwapConfig, 8, false, 8);
  fill(engine);
  until_preempted(engine);
  for (const int i : {0, 1}) engine.scheduler.abort(*engine.requests[static_cast<std::size_t>(i)]);
  const StepPlan good = engine.scheduler.schedule();
  REQUIRE_FALSE(good.sequences.at(0).prefix.outside.empty());
  const auto refused = [&](auto change) {
    StepPlan plan = good;
    change(plan.sequences[0]);
    REQUIRE_THROWS_WITH(engine.scheduler.begin(plan), Catch::Matchers::Contains("of the host"));
    engine.scheduler.check_invariants();
  };
  refused([](PlannedSequence& p) { p.prefix.outside[0] += 1; });
  refused([](PlannedSequence& p) { p.prefix.outside.pop_back(); });
  refused([](PlannedSequence& p) { --p.prefix.num_tokens, --p.begin; });
  refused([](PlannedSequence& p) { p.prefix.copy_tail = 0; });
  StepPlan plan = good;
  engine.scheduler.begin(plan);
}
