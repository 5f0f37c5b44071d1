#include "nanovllm/sched/policy/continuous_batching.hpp"

#include <vector>

#include "catch.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

template <int kBlockSize = 4>
using Simulated = simulator::Engine<ContinuousBatching, BlockManager<kBlockSize>>;

}  // namespace

TEST_CASE("decodes and prompt chunks share a step, decodes first", "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 8}, 32);
  engine.add(iota(3));
  REQUIRE(engine.step() == "| 1:0-3!");
  engine.add(iota(12, 100));
  engine.add(iota(2, 200));
  REQUIRE(engine.step() == "1:3-4! | 2:0-7");
  REQUIRE(engine.step() == "1:4-5! | 2:7-12! 3:0-2!");
  REQUIRE(engine.step() == "1:5-6! 2:12-13! 3:2-3! |");
}

TEST_CASE("the budget is cut among new prompts first come first served", "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 3, .max_num_batched_tokens = 10}, 64);
  for (int i = 0; i < 4; ++i) engine.add(iota(4, 100 * i));
  REQUIRE(engine.step() == "| 1:0-4! 2:0-4! 3:0-2");
  REQUIRE(engine.step() == "1:4-5! 2:4-5! | 3:2-4!");  // the fourth waits for a place
  REQUIRE(engine.scheduler.num_waiting() == 1);
}

TEST_CASE("cached tokens cost no budget", "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 6}, 64);
  engine.add(iota(16), 1);
  while (engine.scheduler.has_work()) engine.step();
  Sequence& s = engine.add(iota(18));
  engine.add(iota(17));
  REQUIRE(engine.step() == "| 2:16-18! 3:16-17!");
  REQUIRE(s.num_cached_tokens == 16);
}

TEST_CASE("the last-come sequence gives way when a running one lacks a block, and comes back first",
          "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 5, false);
  engine.add(iota(4));
  engine.add(iota(4, 100));
  REQUIRE(engine.step() == "| 1:0-4! 2:0-4!");
  engine.add(iota(4, 200));
  for (int i = 4; i < 8; ++i) {  // one block each, one left, and it is promised
    REQUIRE(engine.step() == concat("1:", i, "-", i + 1, "! 2:", i, "-", i + 1, "! |"));
  }
  // The first takes the fifth block. The second has none to go on, and pauses with what it has.
  for (int i = 8; i < 12; ++i) REQUIRE(engine.step() == concat("1:", i, "-", i + 1, "! |"));
  REQUIRE(engine.requests[1]->block_table.size() == 2);
  REQUIRE(engine.step() == "1:12-13! | -2");
  REQUIRE(engine.requests[1]->num_preemptions == 1);
  REQUIRE(engine.requests[1]->block_table.empty());
  REQUIRE(engine.scheduler.num_waiting() == 2);
  engine.scheduler.abort(*engine.requests[0]);
  // The second's prompt and what it generated are one prompt chunk now; the third, for which there
  // would be blocks but no reserve, does not overtake.
  REQUIRE(engine.step() == "| 2:0-9!");
  REQUIRE(engine.step() == "2:9-10! |");
}

TEST_CASE(
    "nano-vllm bug 6: a preempted sequence recomputes prompt and generated tokens as a prompt, "
    "less what is still cached",
    "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 6, true);
  engine.add(iota(8));
  Sequence& second = engine.add(iota(7, 100));
  REQUIRE(engine.step() == "| 1:0-8! 2:0-7!");
  while (second.num_preemptions == 0) engine.step();
  REQUIRE(second.num_generated_tokens() > 1);
  REQUIRE(second.num_cached_tokens == 0);
  engine.scheduler.abort(*engine.requests[0]);
  const int n = second.num_tokens();
  const StepPlan plan = engine.start();
  REQUIRE(plan.num_decodes == 0);
  REQUIRE(plan.sequences.size() == 1);
  const PlannedSequence& p = plan.sequences[0];
  REQUIRE(p.begin == p.prefix.num_tokens);
  REQUIRE(p.begin == static_cast<int>(p.prefix.blocks.size()) * 4);
  REQUIRE(p.end == n);
  REQUIRE(p.rows == RowUses{{RowKind::draw, n - 1, 1}});
  REQUIRE(second.num_cached_tokens == 0);  // counts what the first admission saved
}

TEST_CASE("nano-vllm bug 5: chunks of any size cover a prompt exactly once and sample at its end",
          "[continuous_batching]") {
  for (int length = 1; length <= 13; ++length) {
    for (int chunk = 1; chunk <= length + 1; ++chunk) {
      Simulated<> engine({.max_num_seqs = 1, .max_num_batched_tokens = chunk}, 8);
      const Sequence& s = engine.add(iota(length), 1);
      for (int begin = 0; begin < length; begin += chunk) {
        REQUIRE(s.status != SequenceStatus::finished);
        const StepPlan plan = engine.start();
        REQUIRE(plan.sequences.size() == 1);
        REQUIRE(plan.sequences[0].begin == begin);
        REQUIRE(plan.sequences[0].end == std::min(length, begin + chunk));
        REQUIRE(plan.sequences[0].rows.num_logits() == (begin + chunk >= length ? 1 : 0));
        engine.scheduler.commit(plan, outcomes(plan));
      }
      REQUIRE(s.status == SequenceStatus::finished);
    }
  }
}

TEST_CASE("nano-vllm bug 7: a decode computes the token that was sampled last, at its position",
          "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 1, .max_num_batched_tokens = 64}, 8);
  const Sequence& s = engine.add(iota(5));
  engine.step(77);
  const StepPlan plan = engine.start();
  REQUIRE(plan.num_decodes == 1);
  REQUIRE(plan.sequences[0].begin == 5);
  REQUIRE(plan.sequences[0].end == 6);
  REQUIRE(s.tokens[5] == 77);
}

TEST_CASE("an older prompt takes blocks of younger ones, and a paused sequence goes on later",
          "[continuous_batching]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 8}, 4, false);
  engine.add(iota(14));  // alone, it gets in although its last block is not there for long
  REQUIRE(engine.step() == "| 1:0-8");
  engine.add(iota(1, 100));
  REQUIRE(engine.step() == "| 1:8-14!");
  REQUIRE(engine.scheduler.num_running() == 1);
  engine.step();
  engine.step();
  REQUIRE(engine.requests[0]->num_tokens() == 17);
  REQUIRE(engine.requests[0]->finish_reason == FinishReason::length);
  REQUIRE(engine.step() == "| 2:0-1!");
}

TEST_CASE("a full pool does not preempt and recompute at every step", "[continuous_batching]") {
  Simulated<16> engine({.max_num_seqs = 64, .max_num_batched_tokens = 512}, 64, false);
  for (int i = 0; i < 200; ++i) engine.add(iota(40, 50 * i), 100);
  std::int64_t num_computed = 0;
  while (engine.scheduler.has_work()) {
    const StepPlan plan = engine.start();
    num_computed += plan.num_tokens;
    engine.scheduler.commit(plan, outcomes(plan));
  }
  constexpr std::int64_t kNeeded = 200 * (40 + 100 - 1);
  CAPTURE(engine.scheduler.num_preemptions(), num_computed, kNeeded);
  REQUIRE(engine.scheduler.num_preemptions() > 0);
  REQUIRE(num_computed < kNeeded * 2);
}
