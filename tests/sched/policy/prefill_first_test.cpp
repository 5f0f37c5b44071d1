#include "nanovllm/sched/policy/prefill_first.hpp"

#include <vector>

#include "catch.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

using Simulated = simulator::Engine<PrefillFirst, BlockManager<4>>;

}  // namespace

TEST_CASE("prompts go first, whole and batched, and then all sequences decode", "[prefill_first]") {
  Simulated engine({.max_num_seqs = 4, .max_num_batched_tokens = 10}, 64);
  engine.add(iota(4));
  engine.add(iota(5, 100));
  engine.add(iota(2, 200));
  REQUIRE(engine.step() == "| 1:0-4! 2:0-5!");  // one token of budget left, two needed
  REQUIRE(engine.step() == "| 3:0-2!");
  REQUIRE(engine.step() == "1:4-5! 2:5-6! 3:2-3! |");
  engine.add(iota(3, 300));
  REQUIRE(engine.step() == "| 4:0-3!");
  REQUIRE(engine.step() == "1:5-6! 2:6-7! 3:3-4! 4:3-4! |");
}

TEST_CASE("only the first prompt is cut, and only when it exceeds the budget alone",
          "[prefill_first]") {
  Simulated engine({.max_num_seqs = 4, .max_num_batched_tokens = 10}, 64);
  engine.add(iota(4));
  engine.add(iota(25, 100));
  engine.add(iota(3, 200));
  engine.add(iota(3, 300));
  REQUIRE(engine.step() == "| 1:0-4!");
  REQUIRE(engine.step() == "| 2:0-10");
  REQUIRE(engine.step() == "| 2:10-20");
  REQUIRE(engine.step() == "| 2:20-25! 3:0-3!");
  REQUIRE(engine.step() == "| 4:0-3!");
  REQUIRE(engine.step() == "1:4-5! 2:25-26! 3:3-4! 4:3-4! |");
}

TEST_CASE("decoding goes on while the first in line does not fit", "[prefill_first]") {
  Simulated engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 4, false);
  engine.add(iota(6));
  engine.add(iota(8, 100));
  REQUIRE(engine.step() == "| 1:0-6!");
  for (int i = 6; i < 16; ++i) REQUIRE(engine.step() == concat("1:", i, "-", i + 1, "! |"));
  REQUIRE(engine.requests[0]->finish_reason == FinishReason::length);
  REQUIRE(engine.step() == "| 2:0-8!");
}

TEST_CASE("a preempted sequence comes back as a prompt, in the order of arrival",
          "[prefill_first]") {
  Simulated engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 5, false);
  engine.add(iota(4));
  engine.add(iota(4, 100));
  engine.add(iota(4, 200));
  REQUIRE(engine.step() == "| 1:0-4! 2:0-4!");
  while (engine.scheduler.num_preemptions() == 0) engine.step();
  REQUIRE(engine.requests[1]->status == SequenceStatus::waiting);
  engine.scheduler.abort(*engine.requests[0]);
  REQUIRE(engine.step() == "| 2:0-9!");
  REQUIRE(engine.step() == "2:9-10! |");
}
