// Prompts of which all logits are wanted: how they are cut, and what they may not share.

#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "nanovllm/sched/policy/priority.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

using Blocks = TieredBlockManager<4>;

/// Rows of logits: "1:0+3 1:5*" for those of positions 0, 1, 2 of request 1, and one to draw from.
std::string rows(const StepPlan& plan) {
  std::string text;
  for (const PlannedSequence& p : plan.sequences) {
    const RowUse scores = p.rows.of(RowKind::score);
    if (scores.count > 0) text += concat(p.sequence->id, ":", scores.first, "+", scores.count, " ");
    if (p.rows.count(RowKind::draw) > 0) text += concat(p.sequence->id, ":", p.end - 1, "* ");
  }
  return text;
}

template <class Policy, class Preemption = RecomputePreemption>
struct Served : simulator::Engine<Policy, Blocks, Preemption> {
  using simulator::Engine<Policy, Blocks, Preemption>::Engine;

  /// A request all of whose prompt's logits are wanted.
  Sequence& add_scored(std::vector<TokenId> tokens, std::int32_t max_new = 3) {
    Sequence& s = *this->requests.emplace_back(
        request(this->requests.size() + 1, std::move(tokens), max_new));
    s.scores.count = s.num_prompt_tokens - 1;
    this->scheduler.add(s);
    return s;
  }

  std::string step() {
    const StepPlan plan = this->start();
    this->scheduler.commit(plan, outcomes(plan));
    this->scheduler.check_invariants();
    return rows(plan);
  }
};

}  // namespace

TEST_CASE("a prompt is cut to the rows of logits that there are", "[prompt_logits]") {
  Served<ContinuousBatching> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 32);
  engine.add_scored(iota(10));
  CHECK(engine.step() == "1:0+4 ");
  CHECK(engine.step() == "1:4+4 ");
  CHECK(engine.step() == "1:8+1 1:9* ");
  CHECK(engine.step() == "1:10* ");
  CHECK(engine.step() == "1:11* ");
  CHECK_FALSE(engine.scheduler.has_work());
  CHECK(engine.requests[0]->scores.count == 0);
}

TEST_CASE("those that run keep a row of logits each", "[prompt_logits]") {
  Served<ContinuousBatching> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 32);
  engine.add(iota(5), 30);
  engine.add(iota(6, 50), 30);
  CHECK(engine.step() == "1:4* 2:5* ");
  engine.add_scored(iota(5, 100));
  CHECK(engine.step() == "1:5* 2:6* 3:0+2 ");
  engine.add(iota(3, 200), 30);  // finds no row
  CHECK(engine.step() == "1:6* 2:7* 3:2+2 ");
  CHECK(engine.step() == "1:7* 2:8* 3:4* 4:2* ");
}

TEST_CASE("scored prompts in all places advance by a token a step", "[prompt_logits]") {
  const auto check_all = [](auto policy) {
    Served<decltype(policy)> engine({.max_num_seqs = 3, .max_num_batched_tokens = 9}, 32);
    for (TokenId i = 0; i < 3; ++i) engine.add_scored(iota(4, 50 * i), 2);
    int num_steps = 0;
    std::string all;
    while (engine.scheduler.has_work()) {
      all += engine.step();
      REQUIRE(++num_steps < 40);
    }
    for (const auto& s : engine.requests) {
      CAPTURE(s->id, all);
      CHECK(s->scores.count == 0);
      CHECK(s->num_tokens() == 6);
    }
  };
  check_all(ContinuousBatching{});
  check_all(PrefillFirst{});
  check_all(PriorityWithin<5>{});
}

TEST_CASE("a scored prompt takes nothing from the cache and gives to it", "[prompt_logits]") {
  Served<ContinuousBatching> engine({.max_num_seqs = 16, .max_num_batched_tokens = 64}, 32);
  engine.add(iota(13), 1);
  CHECK(engine.step() == "1:12* ");
  engine.add_scored(iota(13), 1);
  CHECK(engine.step() == "2:0+12 2:12* ");
  CHECK(engine.requests[1]->num_cached_tokens == 0);
  engine.add_scored(iota(13, 50), 1);
  CHECK(engine.step() == "3:0+12 3:12* ");
  Sequence& last = engine.add(iota(13, 50), 1);
  CHECK(engine.step() == "4:12* ");
  CHECK(last.num_cached_tokens == 12);
}

TEST_CASE("what was handed out of a prompt is not computed twice", "[prompt_logits]") {
  const auto check_with = [](auto preemption, std::int32_t num_host_blocks, const char* last) {
    Served<ContinuousBatching, decltype(preemption)> engine(
        {.max_num_seqs = 5, .max_num_batched_tokens = 5}, 8, true, num_host_blocks);
    engine.add(iota(4), 12);
    CHECK(engine.step() == "1:3* ");
    Sequence& s = engine.add_scored(iota(7, 100), 2);
    CHECK(engine.step() == "1:4* 2:0+4 ");
    CHECK(s.scores == RowUse{RowKind::score, 4, 2});
    StepPlan plan = engine.scheduler.schedule();
    plan.sequences.resize(1);
    plan.num_tokens = 1;
    plan.preempted = {&s};
    engine.scheduler.begin(plan);
    engine.memory.copy(plan);
    engine.memory.write(*plan.sequences[0].sequence, 5, 6);
    engine.scheduler.commit(plan, outcomes(plan));
    CHECK(s.num_preemptions == 1);
    std::string text;
    while (engine.scheduler.has_work()) {
      const StepPlan next = engine.start();
      for (const PlannedSequence& p : next.sequences) {
        if (p.sequence == &s)
          text += concat(p.begin, "-", p.end, "/", p.rows.count(RowKind::score), " ");
      }
      engine.scheduler.commit(next, outcomes(next));
    }
    CHECK(text == last);
  };
  check_with(RecomputePreemption{}, 0, "0-4/0 4-7/2 7-8/0 ");
  check_with(SwapPreemption{}, 8, "4-7/2 7-8/0 ");
}

TEST_CASE("plans that leave out wanted logits are refused", "[prompt_logits]") {
  Served<ContinuousBatching> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 32);
  Sequence& s = engine.add_scored(iota(10));
  StepPlan plan = engine.scheduler.schedule();
  SECTION("some") {
    plan.sequences[0].rows = {{RowKind::score, 0, 3}};
    CHECK_THROWS_WITH(engine.scheduler.begin(plan),
                      Catch::Matchers::Contains("wants the logits of its prompt from token 0 on"));
  }
  SECTION("more than there are rows") {
    plan.sequences[0].end = plan.num_tokens = 6;
    plan.sequences[0].rows = {{RowKind::score, 0, 6}};
    CHECK_THROWS_WITH(engine.scheduler.begin(plan), Catch::Matchers::Contains("6 rows of logits"));
  }
  CHECK(s.status == SequenceStatus::waiting);
}
