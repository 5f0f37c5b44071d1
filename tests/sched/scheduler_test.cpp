#include "nanovllm/sched/scheduler.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "sched/policies.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

std::vector<std::int32_t> samples_of(const Sequence& sequence) {
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < sequence.pending.size(); ++i) out.push_back(sequence.pending[i]);
  return out;
}

template <int kBlockSize = 4>
using Simulated = simulator::Engine<ContinuousBatching, BlockManager<kBlockSize>>;

/// A policy of one's own: the youngest waiting sequence alone, then one decode at a time, the
/// youngest first. Anything but fair, and all the scheduler's guarantees still hold.
struct YoungestOnly {
  template <class Blocks>
  StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                const BatchConfig& config) const {
    PlanBuilder<Blocks> builder(queues, blocks);
    if (!queues.running.empty()) {
      builder.extend(*queues.running.back(), config.max_num_batched_tokens);
    } else if (!queues.waiting.empty()) {
      builder.admit_chunk(*queues.waiting.back(), config.max_num_batched_tokens);
    }
    return builder.finish();
  }
};

/// Plans what its test tells it to.
struct Mistaken {
  static inline StepPlan next{};
  template <class Blocks>
  static StepPlan plan(const SchedulerView&, const Blocks&, const BatchConfig&) {
    return next;
  }
};

/// Counts how often it is called.
struct CountingHash {
  static inline std::int64_t num_calls = 0;
  static std::uint64_t hash(std::uint64_t parent, std::span<const TokenId> tokens) {
    ++num_calls;
    return XxPrefixHash::hash(parent, tokens);
  }
};

/// Plans ahead of a step under way.
struct Ahead : Simulated<> {
  using Simulated<>::Simulated;

  /// Begins the next step and returns `describe` of its plan.
  std::string begin() {
    plans.push_back(scheduler.schedule());
    scheduler.begin(plans.back());
    scheduler.check_invariants();
    return describe(plans.back());
  }
  bool begin_nothing() const { return scheduler.schedule().empty(); }
  void commit(const std::vector<StepOutcome>& result) {
    scheduler.commit(plans.front(), result);
    scheduler.check_invariants();
    plans.pop_front();
  }
  void cancel() {
    scheduler.cancel(plans.back());
    scheduler.check_invariants();
    plans.pop_back();
  }

  std::deque<StepPlan> plans;
};

}  // namespace

TEST_CASE("a request is served from add to finish", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 16}, 8);
  REQUIRE_FALSE(engine.scheduler.has_work());
  REQUIRE(engine.scheduler.schedule().empty());
  Sequence& s = engine.add(iota(5), 3);
  REQUIRE(engine.scheduler.has_work());
  REQUIRE(engine.scheduler.num_waiting() == 1);
  REQUIRE(s.status == SequenceStatus::waiting);
  engine.step(70);
  REQUIRE(s.status == SequenceStatus::running);
  REQUIRE(engine.scheduler.num_running() == 1);
  REQUIRE(s.num_computed_tokens == 5);
  REQUIRE(s.num_generated_tokens() == 1);
  engine.step(71);
  engine.step(72);
  REQUIRE(s.status == SequenceStatus::finished);
  REQUIRE(s.finish_reason == FinishReason::length);
  REQUIRE(s.tokens == std::vector<TokenId>{0, 1, 2, 3, 4, 70, 71, 72});
  REQUIRE(s.block_table.empty());
  REQUIRE(engine.scheduler.blocks().num_free() == 8);
  REQUIRE_FALSE(engine.scheduler.has_work());
}

TEST_CASE("an outcome's finish reason ends the sequence in its step", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 16}, 8);
  Sequence& s = engine.add(iota(5));
  const StepPlan plan = engine.start();
  const std::vector<StepOutcome> stop{{&s, one(9), FinishReason::stop}};
  engine.scheduler.commit(plan, stop);
  REQUIRE(s.finish_reason == FinishReason::stop);
  REQUIRE(s.tokens.back() == 9);
  REQUIRE(engine.scheduler.num_running() == 0);
  REQUIRE(engine.scheduler.blocks().num_free() == 8);
}

TEST_CASE("the reason of the outcome wins over the length limit", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 16}, 8);
  Sequence& s = engine.add(iota(5), 1);
  const StepPlan plan = engine.start();
  engine.scheduler.commit(plan, std::vector<StepOutcome>{{&s, one(9), FinishReason::stop}});
  REQUIRE(s.finish_reason == FinishReason::stop);
}

TEST_CASE("nano-vllm bug 1: a prompt sent twice computes at least one token the second time",
          "[scheduler]") {
  for (int length = 1; length <= 13; ++length) {
    Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 16);
    for (int round = 0; round < 2; ++round) {
      Sequence& s = engine.add(iota(length), 1);
      const StepPlan plan = engine.start();
      REQUIRE(plan.num_tokens == (round == 0 ? length : length - (length - 1) / 4 * 4));
      REQUIRE(plan.num_tokens >= 1);
      REQUIRE(s.num_cached_tokens == length - plan.num_tokens);
      engine.scheduler.commit(plan, outcomes(plan));
    }
  }
}

TEST_CASE("nano-vllm bug 3: blocks are published when they are computed, not when they are planned",
          "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 16);
  engine.add(iota(8));
  engine.add(iota(8));
  const StepPlan plan = engine.start();  // equal prompts in one step share nothing
  REQUIRE(plan.num_tokens == 16);
  REQUIRE(engine.scheduler.blocks().num_published() == 0);
  REQUIRE(engine.scheduler.blocks().match(iota(9)).blocks.empty());
  SECTION("after commit they are found") {
    engine.scheduler.commit(plan, outcomes(plan));
    REQUIRE(engine.scheduler.blocks().match(iota(9)).blocks.size() == 2);
  }
  SECTION("a step that failed publishes nothing") {
    engine.scheduler.cancel(plan);
    engine.scheduler.check_invariants();
    REQUIRE(engine.scheduler.blocks().num_published() == 0);
    REQUIRE(engine.step() == "| 1:0-8! 2:0-8!");  // and is made good for
  }
  SECTION("a sequence aborted during the step publishes nothing") {
    engine.scheduler.abort(*engine.requests[0]);
    engine.scheduler.abort(*engine.requests[1]);
    engine.scheduler.check_invariants();
    REQUIRE(engine.scheduler.blocks().num_free() == 16);
    engine.scheduler.commit(plan, {});
    REQUIRE(engine.scheduler.blocks().num_published() == 0);
    REQUIRE_FALSE(engine.scheduler.has_work());
  }
}

TEST_CASE("nano-vllm bug 3: a hit on the only free blocks is served without evicting itself",
          "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 3);
  engine.add(iota(9), 1);
  engine.step();
  engine.add(iota(12), 1);  // two hits, both free, and the third block
  REQUIRE(engine.step() == "| 2:8-12!");
  REQUIRE(engine.scheduler.blocks().stats().num_hit_tokens == 8);
}

TEST_CASE("nano-vllm bug 4: planning changes nothing, and the plan's ranges account for cache hits",
          "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 512, .max_num_batched_tokens = 1024}, 300);
  std::vector<TokenId> shared = iota(30);
  for (int i = 0; i < 512; ++i) {
    shared.back() = i;
    engine.add(shared, 20);
  }
  while (engine.scheduler.has_work()) {
    const StepPlan first = engine.scheduler.schedule();
    engine.scheduler.check_invariants();
    const StepPlan second = engine.scheduler.schedule();
    REQUIRE(describe(first) == describe(second));
    for (const PlannedSequence& p : first.sequences) {
      REQUIRE(p.begin < p.end);
      REQUIRE(p.end <= p.sequence->num_tokens());
    }
    REQUIRE(first.num_tokens <= 1024);
    engine.step();
  }
  REQUIRE(engine.scheduler.num_preemptions() > 0);
  REQUIRE(engine.scheduler.blocks().stats().num_hit_tokens > 0);
  REQUIRE(engine.scheduler.blocks().num_free() == 300);
}

TEST_CASE("nano-vllm bug 8: what can never fit is refused, and harms no other", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 3);
  REQUIRE(engine.scheduler.capacity_tokens() == 13);
  engine.add(iota(4));
  const auto too_long = request(2, iota(13), 1);
  REQUIRE_THROWS_AS(engine.scheduler.add(*too_long), RequestError);
  REQUIRE_THROWS_WITH(engine.scheduler.add(*too_long),
                      "request 2: a prompt of 13 tokens does not fit into the KV cache, which "
                      "holds 12");
  const auto too_greedy = request(3, iota(12), 2);
  REQUIRE_THROWS_WITH(engine.scheduler.add(*too_greedy),
                      "request 3: max_total_tokens must be in (12, 13], the prompt's length and "
                      "what the KV cache has room for, got 14");
  REQUIRE(engine.scheduler.num_waiting() == 1);
  REQUIRE(engine.step() == "| 1:0-4!");
}

TEST_CASE("nano-vllm bug 8: a sequence that fills the whole pool ends with 'length'",
          "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 3);
  Sequence& first = engine.add(iota(5));
  Sequence& second = engine.add(iota(6, 100));
  while (engine.scheduler.has_work()) engine.step();
  for (const Sequence* s : {&first, &second}) {
    REQUIRE(s->num_tokens() == 13);
    REQUIRE(s->finish_reason == FinishReason::length);
  }
}

TEMPLATE_TEST_CASE("nano-vllm bug 9: a pool of one block serves one sequence after the other",
                   "[scheduler]", ContinuousBatching, PrefillFirst) {
  simulator::Engine<TestType, BlockManager<4>> engine(
      {.max_num_seqs = 3, .max_num_batched_tokens = 64}, 1);
  for (int i = 0; i < 3; ++i) engine.add(iota(2, 100 * i));
  for (int i = 1; i <= 3; ++i) {
    REQUIRE(engine.step() == concat("| ", i, ":0-2!"));
    REQUIRE(engine.scheduler.num_running() == 1);
    REQUIRE(engine.step() == concat(i, ":2-3! |"));
    REQUIRE(engine.step() == concat(i, ":3-4! |"));
  }
  REQUIRE_FALSE(engine.scheduler.has_work());
  REQUIRE(engine.scheduler.num_preemptions() == 0);
  for (const auto& s : engine.requests) {
    REQUIRE(s->num_tokens() == 5);
    REQUIRE(s->finish_reason == FinishReason::length);
  }
}

TEST_CASE("bad requests are refused by name", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 3);
  REQUIRE_THROWS_AS(engine.scheduler.add(*request(1, {}, 1)), RequestError);
  REQUIRE_THROWS_AS(engine.scheduler.add(*request(1, iota(3), 0)), RequestError);
  const auto miscounted = request(1, iota(3), 5);
  miscounted->num_prompt_tokens = 2;
  REQUIRE_THROWS_AS(engine.scheduler.add(*miscounted), RequestError);
  REQUIRE_THROWS_AS(engine.scheduler.add(engine.add(iota(3))), Error);
  REQUIRE(engine.scheduler.num_waiting() == 1);
  REQUIRE_THROWS_AS(Simulated<>({.max_num_seqs = 0}, 3), ConfigError);
}

TEST_CASE("nano-vllm bug 21: equal prompts in one step are computed twice and cached once",
          "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 16);
  engine.add(iota(9), 1);
  engine.add(iota(9), 1);
  REQUIRE(engine.step() == "| 1:0-9! 2:0-9!");
  REQUIRE(engine.scheduler.blocks().num_published() == 2);
  engine.add(iota(9), 1);
  REQUIRE(engine.step() == "| 3:8-9!");
}

TEST_CASE("abort ends a sequence wherever it is", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 1, .max_num_batched_tokens = 64}, 8);
  Sequence& runs = engine.add(iota(5));
  Sequence& waits = engine.add(iota(5, 100));
  engine.step();
  engine.scheduler.abort(waits);
  REQUIRE(waits.finish_reason == FinishReason::abort);
  REQUIRE(engine.scheduler.num_waiting() == 0);
  engine.scheduler.abort(runs);
  engine.scheduler.abort(runs);
  REQUIRE(runs.status == SequenceStatus::finished);
  REQUIRE(engine.scheduler.blocks().num_free() == 8);
  REQUIRE_FALSE(engine.scheduler.has_work());
  engine.scheduler.check_invariants();
}

TEST_CASE("a sequence aborted during its step gives back its blocks and keeps its tokens as were",
          "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 8);
  Sequence& s = engine.add(iota(5));
  Sequence& other = engine.add(iota(3, 100));
  const StepPlan plan = engine.start();
  engine.scheduler.abort(s);
  REQUIRE(s.block_table.empty());
  REQUIRE(engine.scheduler.blocks().num_free() == 7);
  const bool with_outcome = GENERATE(true, false);
  std::vector<StepOutcome> result = outcomes(plan);
  if (!with_outcome) result.erase(result.begin());
  engine.scheduler.commit(plan, result);
  REQUIRE(s.num_tokens() == 5);
  REQUIRE(s.finish_reason == FinishReason::abort);
  REQUIRE(other.num_tokens() == 4);
  engine.scheduler.check_invariants();
}

TEST_CASE("a cancelled step leaves its sequences where they were", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 8);
  Sequence& s = engine.add(iota(8));
  engine.step();
  engine.scheduler.cancel(engine.start());
  engine.scheduler.check_invariants();
  REQUIRE(s.num_computed_tokens == 8);
  REQUIRE(s.block_table.size() == 2);
  REQUIRE(engine.step() == "1:8-9! |");
}

TEST_CASE("calls out of order are errors that change nothing", "[scheduler]") {
  Simulated<> engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 8);
  Sequence& s = engine.add(iota(5));
  StepPlan plan = engine.scheduler.schedule();
  REQUIRE_THROWS_AS(engine.scheduler.commit(plan, {}), Error);
  REQUIRE_THROWS_AS(engine.scheduler.cancel(plan), Error);
  engine.scheduler.begin(plan);
  REQUIRE_THROWS_AS(engine.scheduler.begin(plan), Error);
  REQUIRE_THROWS_AS(engine.scheduler.commit(plan, {}), Error);  // its outcome is missing
  std::vector<StepOutcome> twice = outcomes(plan);
  twice.push_back(twice[0]);
  REQUIRE_THROWS_AS(engine.scheduler.commit(plan, twice), Error);
  REQUIRE(samples_of(s) == std::vector<std::int32_t>{0});
  StepPlan behind = engine.scheduler.schedule();
  engine.scheduler.begin(behind);
  REQUIRE_THROWS_WITH(engine.scheduler.schedule(), Catch::Matchers::Contains("2 steps"));
  REQUIRE_THROWS_AS(engine.scheduler.begin(behind), Error);
  REQUIRE_THROWS_AS(engine.scheduler.commit(behind, outcomes(behind)), Error);  // the older first
  REQUIRE_THROWS_AS(engine.scheduler.cancel(plan), Error);                      // the newer first
  engine.scheduler.check_invariants();
  engine.scheduler.cancel(behind);
  engine.memory.write(s, 0, 5);
  engine.scheduler.commit(plan, outcomes(plan));
  REQUIRE_THROWS_AS(engine.scheduler.commit(plan, outcomes(plan)), Error);
  REQUIRE_THROWS_AS(engine.scheduler.begin(plan), Error);  // it was for the step before
  engine.scheduler.check_invariants();
  REQUIRE(engine.step() == "1:5-6! |");
}

TEST_CASE("a step planned ahead goes on with tokens that are not drawn yet", "[scheduler]") {
  Ahead engine({.max_num_seqs = 2, .max_num_batched_tokens = 8}, 8);
  Sequence& a = engine.add(iota(3));
  Sequence& b = engine.add(iota(6, 100));
  REQUIRE(engine.begin() == "| 1:0-3! 2:0-5");
  REQUIRE(a.tokens == std::vector<TokenId>{0, 1, 2});
  REQUIRE(samples_of(a) == std::vector<std::int32_t>{0});
  REQUIRE(engine.begin() == "1:3-4! 2:5-6! |");
  REQUIRE(a.tokens == std::vector<TokenId>{0, 1, 2});
  REQUIRE(samples_of(a) == std::vector<std::int32_t>{0, 0});
  REQUIRE(a.token_source(3) == TokenSource::sampled(0));
  REQUIRE(b.token_source(6) == TokenSource::sampled(1));
  engine.commit({{&a, one(7)}});
  REQUIRE(a.tokens == std::vector<TokenId>{0, 1, 2, 7});
  REQUIRE(a.token_source(3) == TokenSource::known(7));
  REQUIRE(samples_of(a) == std::vector<std::int32_t>{0});
  REQUIRE(engine.begin() == "1:4-5! 2:6-7! |");
  engine.commit({{&a, one(8)}, {&b, one(9)}});
  REQUIRE(a.tokens == std::vector<TokenId>{0, 1, 2, 7, 8});
  REQUIRE(samples_of(a) == std::vector<std::int32_t>{0});
  REQUIRE(samples_of(b) == std::vector<std::int32_t>{1});
}

TEST_CASE("blocks are published when their step is committed, though the next one has begun",
          "[scheduler]") {
  Ahead engine({.max_num_seqs = 2, .max_num_batched_tokens = 8}, 8);
  Sequence& s = engine.add(iota(12));
  engine.begin();
  engine.begin();
  const auto num_published = [&] { return engine.scheduler.blocks().num_published(); };
  REQUIRE(num_published() == 0);
  engine.commit({});
  REQUIRE(num_published() == 2);
  REQUIRE(engine.begin() == "1:12-13! |");
  engine.commit({{&s, one(7)}});
  REQUIRE(num_published() == 3);
}

TEST_CASE("a sequence that has all its tokens is left out of the step ahead, its place is taken",
          "[scheduler]") {
  Ahead engine({.max_num_seqs = 1, .max_num_batched_tokens = 8}, 8);
  Sequence& a = engine.add(iota(5), 1);
  engine.add(iota(4, 100), 2);
  REQUIRE(engine.begin() == "| 1:0-5!");
  REQUIRE(engine.begin() == "| 2:0-4!");
  REQUIRE(engine.scheduler.num_running() == 2);
  engine.commit({{&a, one(7)}});
  REQUIRE(a.finish_reason == FinishReason::length);
  REQUIRE(engine.scheduler.num_running() == 1);
  REQUIRE(engine.begin() == "2:4-5! |");
  engine.commit({{engine.requests[1].get(), one(7)}});
  REQUIRE(engine.begin_nothing());  // the second only waits for its last token
}

TEST_CASE("no sequence is preempted for blocks that an ending sequence is about to free",
          "[scheduler]") {
  Ahead engine({.max_num_seqs = 3, .max_num_batched_tokens = 64}, 3, false);
  Sequence& a = engine.add(iota(4), 1);
  Sequence& b = engine.add(iota(1, 100), 1);
  Sequence& c = engine.add(iota(1, 200), 2);
  REQUIRE(engine.begin() == "| 1:0-4! 2:0-1! 3:0-1!");
  a.max_total_tokens = 8;  // more than what was reserved for
  REQUIRE(engine.begin() == "3:1-2! |");
  engine.commit({{&a, one(7)}, {&b, one(7)}, {&c, one(7)}});
  REQUIRE(engine.begin() == "1:4-5! |");
  REQUIRE(engine.scheduler.num_preemptions() == 0);
}

TEST_CASE("a sequence that ends is in the next step for nothing", "[scheduler]") {
  Ahead engine({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 4);
  Sequence& a = engine.add(iota(4));
  Sequence& b = engine.add(iota(3, 100));
  engine.begin();
  engine.begin();
  REQUIRE(engine.scheduler.blocks().num_free() == 1);
  SECTION("by its token") { engine.commit({{&a, one(7), FinishReason::stop}, {&b, one(8)}}); }
  SECTION("by an abort") {
    engine.scheduler.abort(a);
    engine.commit({{&b, one(8)}});
    a.tokens.push_back(7);
  }
  REQUIRE(a.status == SequenceStatus::finished);
  REQUIRE(a.tokens == std::vector<TokenId>{0, 1, 2, 3, 7});
  REQUIRE(engine.scheduler.blocks().num_free() == 3);
  engine.commit({{&a, one(1)}, {&b, one(9)}});
  REQUIRE(a.num_tokens() == 5);
  REQUIRE(b.tokens == std::vector<TokenId>{100, 101, 102, 8, 9});
}

TEST_CASE("a sequence preempted before its token is drawn gets it while it waits", "[scheduler]") {
  using Blocks = BlockManager<4>;
  Scheduler<Mistaken, Blocks> scheduler({.max_num_seqs = 1, .max_num_batched_tokens = 8},
                                        Blocks(4, true));
  const auto s = request(1, iota(4), 4);
  scheduler.add(*s);
  Mistaken::next = StepPlan{{{s.get(), 0, 4, {{RowKind::draw, 3, 1}}}}, {}, 0, 4};
  StepPlan first = scheduler.schedule();
  scheduler.begin(first);
  Mistaken::next = StepPlan{{}, {s.get()}, 0, 0};
  StepPlan second = scheduler.schedule();
  scheduler.begin(second);
  scheduler.check_invariants();
  REQUIRE(s->status == SequenceStatus::waiting);
  REQUIRE(s->has_pending_token());
  SECTION("and waits on") {
    scheduler.commit(first, std::vector<StepOutcome>{{s.get(), one(7), FinishReason::none}});
    REQUIRE(s->tokens == std::vector<TokenId>{0, 1, 2, 3, 7});
    REQUIRE(scheduler.num_waiting() == 1);
  }
  SECTION("and ends") {
    scheduler.commit(first, std::vector<StepOutcome>{{s.get(), one(7), FinishReason::stop}});
    REQUIRE(s->finish_reason == FinishReason::stop);
    REQUIRE_FALSE(scheduler.has_work());
  }
  SECTION("or loses it when the step fails") {
    scheduler.cancel(second);
    scheduler.cancel(first);
    REQUIRE(s->tokens == iota(4));
    REQUIRE(scheduler.num_waiting() == 1);
  }
  SECTION("and cannot be admitted until then") {
    scheduler.commit(second, {});  // empty, so in no other's way
    Mistaken::next = StepPlan{{{s.get(), 0, 5, {{RowKind::draw, 4, 1}}}}, {}, 0, 5};
    StepPlan third = scheduler.schedule();
    REQUIRE_THROWS_WITH(scheduler.begin(third), Catch::Matchers::Contains("last token"));
    PlanBuilder<Blocks> builder(SchedulerView{{}, {}}, scheduler.blocks());
    REQUIRE(builder.admit_chunk(*s, 8) == 0);
  }
  scheduler.check_invariants();
  REQUIRE(scheduler.blocks().num_published() == 0);
  REQUIRE(scheduler.blocks().num_free() == 4);
}

TEST_CASE("two cancelled steps leave everything as it was, with no more running than may",
          "[scheduler]") {
  Ahead engine({.max_num_seqs = 1, .max_num_batched_tokens = 8}, 8);
  Sequence& a = engine.add(iota(5), 1);
  Sequence& b = engine.add(iota(4, 100), 2);
  engine.begin();
  engine.begin();
  engine.cancel();
  REQUIRE(engine.scheduler.num_running() == 2);
  engine.cancel();
  REQUIRE(a.tokens == iota(5));
  REQUIRE(b.status == SequenceStatus::waiting);
  REQUIRE(engine.begin() == "| 1:0-5!");
  REQUIRE(engine.begin() == "| 2:0-4!");
}

TEST_CASE("a step may give a sequence several tokens, or reject some of them", "[scheduler]") {
  using Blocks = BlockManager<4>;
  Scheduler<Mistaken, Blocks> scheduler({.max_num_seqs = 2, .max_num_batched_tokens = 16},
                                        Blocks(8, true));
  const auto s = request(1, iota(3), 20);
  scheduler.add(*s);
  const auto begin = [&](std::int32_t from, std::int32_t to, std::int32_t num_draws) {
    const RowUses rows{{RowKind::draw, to - num_draws, num_draws}};
    Mistaken::next = StepPlan{{{s.get(), from, to, rows}}, {}, 0, to - from};
    StepPlan plan = scheduler.schedule();
    scheduler.begin(plan);
    scheduler.check_invariants();
    return plan;
  };
  const auto commit = [&](const StepPlan& plan, const std::vector<TokenId>& tokens,
                          FinishReason reason = FinishReason::none) {
    scheduler.commit(plan, std::vector<StepOutcome>{{s.get(), tokens, reason}});
    scheduler.check_invariants();
  };
  StepPlan plan = begin(0, 3, 1);
  commit(plan, {7});

  plan = begin(3, 6, 3);  // token 3 and guesses for 4 and 5
  REQUIRE(samples_of(*s) == std::vector<std::int32_t>{0, 1, 2});
  REQUIRE(s->is_unsettled());
  REQUIRE(s->num_tokens() == 7);
  REQUIRE(scheduler.blocks().num_free() == 6);

  SECTION("none before its tokens are known") {
    REQUIRE_THROWS_WITH(begin(6, 7, 1), Catch::Matchers::Contains("before it is known"));
    PlanBuilder<Blocks> builder(SchedulerView{{}, {}}, scheduler.blocks());
    REQUIRE(builder.extend(*s, 8) == 0);
  }
  SECTION("all three are right") {
    commit(plan, {8, 9, 10});
    REQUIRE(s->tokens == std::vector<TokenId>{0, 1, 2, 7, 8, 9, 10});
    REQUIRE(s->num_computed_tokens == 6);
    REQUIRE(scheduler.blocks().num_published() == 1);
    plan = begin(6, 9, 3);
    commit(plan, {11, 12, 13});
    REQUIRE(scheduler.blocks().match(s->tokens).num_tokens == 8);
  }
  SECTION("the second guess is rejected") {
    commit(plan, {8, 9});
    REQUIRE(s->tokens == std::vector<TokenId>{0, 1, 2, 7, 8, 9});
    REQUIRE(s->num_computed_tokens == 5);
    REQUIRE(s->block_table.size() == 2);
  }
  SECTION("both guesses are rejected, and their block goes back") {
    commit(plan, {8});
    REQUIRE(s->tokens == std::vector<TokenId>{0, 1, 2, 7, 8});
    REQUIRE(s->num_computed_tokens == 4);
    REQUIRE(s->block_table.size() == 1);
    REQUIRE(scheduler.blocks().num_published() == 1);
    plan = begin(4, 5, 1);
    commit(plan, {9});
    REQUIRE(s->tokens.back() == 9);
  }
  SECTION("it ends with one of them") {
    commit(plan, {8, 9}, FinishReason::stop);
    REQUIRE(s->finish_reason == FinishReason::stop);
    REQUIRE(s->tokens == std::vector<TokenId>{0, 1, 2, 7, 8, 9});
    REQUIRE(scheduler.blocks().num_free() == 8);
  }
  SECTION("more than were sampled, or none, is an error") {
    const std::vector<TokenId> four{1, 2, 3, 4};
    for (const std::size_t n : {0u, 4u}) {
      const std::vector<StepOutcome> wrong{{s.get(), std::span(four).first(n)}};
      REQUIRE_THROWS_WITH(scheduler.commit(plan, wrong), Catch::Matchers::Contains("outcome has"));
      scheduler.check_invariants();
    }
    commit(plan, {8, 9, 10});
  }
  SECTION("the step is cancelled") {
    scheduler.cancel(plan);
    scheduler.check_invariants();
    REQUIRE(s->tokens == std::vector<TokenId>{0, 1, 2, 7});
    REQUIRE(s->num_computed_tokens == 3);
    REQUIRE(s->pending.empty());
    REQUIRE(s->block_table.size() == 1);
  }
}

TEST_CASE("a sequence that may end in the step under way goes on if its guesses are wrong",
          "[scheduler]") {
  using Blocks = BlockManager<4>;
  Scheduler<Mistaken, Blocks> scheduler({.max_num_seqs = 1, .max_num_batched_tokens = 16},
                                        Blocks(8, true));
  const auto s = request(1, iota(3), 3);
  const auto other = request(2, iota(3, 100), 3);
  scheduler.add(*s);
  scheduler.add(*other);
  Mistaken::next =
      StepPlan{{{s.get(), 0, 5, {{RowKind::draw, 2, 3}}}}, {}, 0, 5};  // guesses at once
  StepPlan plan = scheduler.schedule();
  scheduler.begin(plan);
  REQUIRE(s->is_complete());
  Mistaken::next = StepPlan{{{other.get(), 0, 3, {{RowKind::draw, 2, 1}}}}, {}, 0, 3};
  StepPlan behind = scheduler.schedule();
  REQUIRE_THROWS_WITH(scheduler.begin(behind), Catch::Matchers::Contains("at most 1 may"));
  scheduler.commit(plan, std::vector<StepOutcome>{{s.get(), one(8)}});
  scheduler.check_invariants();
  REQUIRE(s->status == SequenceStatus::running);
  REQUIRE(s->num_tokens() == 4);
}

TEST_CASE("defect 2: a plan that needs more blocks than there are leaves nothing half done",
          "[scheduler]") {
  using Blocks = BlockManager<4>;
  Scheduler<Mistaken, Blocks> scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 64},
                                        Blocks(3, true));
  const auto a = request(1, iota(5), 1), b = request(2, iota(5, 100), 1);
  scheduler.add(*a);
  scheduler.add(*b);
  Mistaken::next =
      StepPlan{{{a.get(), 0, 5, {{RowKind::draw, 4, 1}}}, {b.get(), 0, 5, {{RowKind::draw, 4, 1}}}},
               {},
               0,
               10};
  StepPlan plan = scheduler.schedule();
  REQUIRE_THROWS_WITH(scheduler.begin(plan), Catch::Matchers::Contains("1 blocks more than"));
  const auto twice = [&] {
    Mistaken::next = StepPlan{
        {{a.get(), 0, 5, {{RowKind::draw, 4, 1}}}, {a.get(), 0, 5, {{RowKind::draw, 4, 1}}}},
        {},
        0,
        10};
    StepPlan wrong = scheduler.schedule();
    scheduler.begin(wrong);
  };
  REQUIRE_THROWS_WITH(twice(), Catch::Matchers::Contains("in the plan twice"));
  for (const Sequence* s : {a.get(), b.get()}) {
    REQUIRE(s->status == SequenceStatus::waiting);
    REQUIRE(s->block_table.empty());
    REQUIRE(s->pending.empty());
  }
  REQUIRE(scheduler.num_waiting() == 2);
  REQUIRE(scheduler.blocks().num_free() == 3);
  scheduler.check_invariants();
  Mistaken::next = StepPlan{{{a.get(), 0, 5, {{RowKind::draw, 4, 1}}}}, {}, 0, 5};
  plan = scheduler.schedule();
  scheduler.begin(plan);
  scheduler.commit(plan, outcomes(plan));
  REQUIRE(a->finish_reason == FinishReason::length);
}

TEST_CASE("defect 10: a blocked head of the queue looks its prefix up again in every plan",
          "[scheduler]") {
  using Blocks = BlockManager<4, HashPrefixCache<4, CountingHash>>;
  simulator::Engine<ContinuousBatching, Blocks> engine(
      {.max_num_seqs = 4, .max_num_batched_tokens = 4096}, 1024);
  engine.add(iota(900), 1);
  while (engine.scheduler.has_work()) engine.step();  // and leaves 225 blocks in the cache
  engine.add(iota(2000, 5000), 1500);
  engine.step();
  engine.add(iota(2900), 10);  // does not fit for now
  const auto lookups = [&] {
    const std::int64_t before = CountingHash::num_calls;
    for (int i = 0; i < 50; ++i) REQUIRE(describe(engine.scheduler.schedule()) != "|");
    return CountingHash::num_calls - before;
  };
  REQUIRE(engine.scheduler.num_waiting() == 1);
  REQUIRE(lookups() == 226);  // once: all that is cached, and a miss
  REQUIRE(lookups() == 0);
  engine.step();
  REQUIRE(engine.scheduler.num_waiting() == 1);
  REQUIRE(lookups() == 0);  // the cache has not changed
  engine.scheduler.abort(*engine.requests[1]);
  REQUIRE(engine.step() == "| 3:900-2900!");
}

TEST_CASE("the shortest prompt first, with a policy of one's own", "[scheduler]") {
  simulator::Engine<test::ShortestFirst, BlockManager<4>> engine(
      {.max_num_seqs = 2, .max_num_batched_tokens = 8}, 16);
  engine.add(iota(9));
  engine.add(iota(3, 100));
  engine.add(iota(5, 200));
  REQUIRE(engine.step() == "| 2:0-3! 3:0-5!");
  engine.scheduler.abort(*engine.requests[1]);
  REQUIRE(engine.step() == "3:5-6! | 1:0-7");
}

TEST_CASE("a policy is one type", "[scheduler]") {
  simulator::Engine<YoungestOnly, BlockManager<4>> engine(
      {.max_num_seqs = 2, .max_num_batched_tokens = 64}, 8);
  engine.add(iota(5), 2);
  engine.add(iota(5, 100), 2);
  REQUIRE(engine.step() == "| 2:0-5!");
  REQUIRE(engine.step() == "2:5-6! |");
  REQUIRE(engine.step() == "| 1:0-5!");
  REQUIRE(engine.step() == "1:5-6! |");
  REQUIRE_FALSE(engine.scheduler.has_work());
}

TEST_CASE("a mistaken policy is told so", "[scheduler]") {
  using Blocks = BlockManager<4>;
  Scheduler<Mistaken, Blocks> scheduler({.max_num_seqs = 1, .max_num_batched_tokens = 8},
                                        Blocks(2, true));
  const auto s = request(1, iota(6), 1);
  scheduler.add(*s);
  const RowUses rows{{RowKind::draw, 5, 1}};
  const PlannedSequence good{s.get(), 0, 6, rows};
  const auto refused = [&](const PlannedSequence& p, std::int32_t num_tokens) {
    Mistaken::next = StepPlan{{p}, {}, 0, num_tokens};
    StepPlan plan = scheduler.schedule();
    REQUIRE_THROWS_AS(scheduler.begin(plan), Error);
    scheduler.check_invariants();
    REQUIRE(scheduler.num_waiting() == 1);
  };
  refused(PlannedSequence{s.get(), 1, 6, rows}, 5);
  refused(PlannedSequence{s.get(), 0, 7, {}}, 7);
  refused(PlannedSequence{s.get(), 0, 0, {}}, 0);
  refused(PlannedSequence{s.get(), 0, 6, {}}, 6);
  refused(PlannedSequence{s.get(), 0, 6, {{RowKind::draw, 4, 2}}}, 6);
  refused(PlannedSequence{s.get(), 0, 6, {{RowKind::draw, 4, 1}}}, 6);
  refused(PlannedSequence{s.get(), 0, 6, {{RowKind::hidden, 5, 1}}}, 6);
  refused(PlannedSequence{s.get(), 0, 6, {{RowKind::score, 0, 5}, {RowKind::draw, 5, 1}}}, 6);
  refused(good, 5);
  Mistaken::next = StepPlan{{}, {s.get()}, 0, 0};
  StepPlan plan = scheduler.schedule();
  REQUIRE_THROWS_AS(scheduler.begin(plan), Error);
  Mistaken::next = StepPlan{{good}, {}, 0, 6};
  plan = scheduler.schedule();
  REQUIRE_NOTHROW(scheduler.begin(plan));
}
