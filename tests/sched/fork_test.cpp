#include "nanovllm/sched/fork.hpp"

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

template <class Blocks>
using Simulated = simulator::Engine<ContinuousBatching, Blocks>;
using Hashed = BlockManager<4>;
using Uncached = BlockManager<4, NoPrefixCache<4>>;

/// Adds `n` samples of one prompt.
template <class Engine>
std::vector<Sequence*> add_samples(Engine& engine, const std::vector<TokenId>& tokens, int n) {
  std::vector<Sequence*> samples;
  for (int i = 0; i < n; ++i) {
    engine.requests.push_back(request(engine.requests.size() + 1, tokens, 20));
    samples.push_back(engine.requests.back().get());
  }
  for (int i = 0; i < n; ++i)
    samples[static_cast<std::size_t>(i)]->next_sibling =
        samples[static_cast<std::size_t>((i + 1) % n)];
  for (Sequence* s : samples) engine.scheduler.add(*s);
  return samples;
}

/// Admits the last one first, and asks nothing.
struct LastFirst {
  static StepPlan plan(const SchedulerView& queues, const Hashed& blocks, const BatchConfig&) {
    PlanBuilder<Hashed> builder(queues, blocks);
    if (queues.waiting.empty()) {
      for (Sequence* s : queues.running) builder.extend(*s, 1);
    } else {
      builder.admit_chunk(*queues.waiting.back(), 100);
    }
    return builder.finish();
  }
};

/// Begins a step. What it computes may depend on a step under way, so nothing pretends to.
template <class Engine>
StepPlan begin(Engine& engine) {
  StepPlan plan = engine.scheduler.schedule();
  engine.scheduler.begin(plan);
  engine.scheduler.check_invariants();
  return plan;
}

/// `head` tokens that all have, then `tail` of one's own.
std::vector<TokenId> prompt(int head, int tail, TokenId own) {
  std::vector<TokenId> tokens = iota(head);
  tokens.insert(tokens.end(), static_cast<std::size_t>(tail), own);
  return tokens;
}

}  // namespace

TEMPLATE_TEST_CASE("samples wait for their prompt, then share its blocks and copy the last",
                   "[fork]", Hashed, Uncached) {
  Simulated<TestType> engine({.max_num_seqs = 8, .max_num_batched_tokens = 10}, 20);
  const auto samples = add_samples(engine, iota(14), 3);
  engine.add(iota(5, 100));
  CHECK(engine.step() == "| 1:0-10");
  CHECK(engine.step() == "| 1:10-14! 4:0-5!");  // 4 need not wait
  const StepPlan plan = engine.start();
  CHECK(describe(plan) == "1:14-15! 4:5-6! | 2:13-14! 3:13-14!");
  REQUIRE(plan.block_copies.size() == 2);
  for (const BlockCopy& copy : plan.block_copies) CHECK(copy.from == samples[0]->block_table[3]);
  for (int i = 0; i < 3; ++i) {
    CHECK(samples[1]->block_table[static_cast<std::size_t>(i)] ==
          samples[0]->block_table[static_cast<std::size_t>(i)]);
    CHECK(engine.scheduler.blocks().ref_count(
              samples[0]->block_table[static_cast<std::size_t>(i)]) == 3);
  }
  engine.scheduler.commit(plan, outcomes(plan));
  CHECK(engine.step() == "1:15-16! 4:6-7! 2:14-15! 3:14-15! |");
  CHECK(engine.scheduler.blocks().stats().num_hit_tokens == 0);  // it was no lookup
}

TEST_CASE("a sample whose first one has gone computes the prompt, less what is cached", "[fork]") {
  Simulated<Hashed> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 20);
  const auto samples = add_samples(engine, iota(14), 2);
  CHECK(engine.step() == "| 1:0-14!");
  engine.scheduler.abort(*samples[0]);
  CHECK(engine.step() == "| 2:12-14!");
}

TEST_CASE("a policy that does not ask whether a sample should wait is served, too", "[fork]") {
  simulator::Engine<LastFirst, Hashed> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100},
                                              20);
  add_samples(engine, iota(14), 2);
  CHECK(engine.step() == "| 2:0-14!");
  CHECK(engine.step() == "| 1:13-14!");
}

TEST_CASE("a fork that is cancelled waits again", "[fork]") {
  Simulated<Uncached> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 20);
  const auto samples = add_samples(engine, iota(14), 2);
  const StepPlan first = begin(engine), second = begin(engine);
  CHECK(describe(second) == "1:14-15! | 2:13-14!");
  engine.scheduler.cancel(second);
  engine.scheduler.check_invariants();
  CHECK(samples[1]->status == SequenceStatus::waiting);
  engine.scheduler.cancel(first);
  engine.scheduler.check_invariants();
  CHECK(samples[1]->num_preemptions == 0);
  CHECK(engine.step() == "| 1:0-14!");
  CHECK(engine.step() == "1:14-15! | 2:13-14!");
}

TEST_CASE("a policy that shares what was not computed is refused", "[fork]") {
  Simulated<Hashed> engine({.max_num_seqs = 8, .max_num_batched_tokens = 8}, 20);
  const auto samples = add_samples(engine, iota(14), 2);
  engine.step();
  StepPlan plan;
  plan.sequences.push_back({.sequence = samples[1],
                            .begin = 12,
                            .end = 14,
                            .rows = {{RowKind::draw, 13, 1}},
                            .prefix = {.num_tokens = 12, .blocks = {0, 1, 2}},
                            .fork_of = samples[0]});
  plan.num_tokens = 2;
  REQUIRE_THROWS_WITH(
      engine.scheduler.begin(plan),
      Catch::Matchers::Contains("is to share 12 tokens with a sequence that has not "
                                "computed them"));
  engine.scheduler.check_invariants();
}

TEST_CASE("a request waits for a prefix that an earlier one computes", "[fork][prefix_wait]") {
  const auto plans = [](auto& engine) {
    engine.add(prompt(20, 3, 100));
    engine.add(prompt(20, 3, 101));
    engine.add(iota(6, 200));
    engine.add(prompt(8, 3, 102));
    std::vector<std::string> out;
    for (int i = 0; i < 2; ++i) out.push_back(engine.step());
    return out;
  };
  using Plans = std::vector<std::string>;
  const BatchConfig config{
      .max_num_seqs = 8, .max_num_batched_tokens = 100, .prefix_wait_tokens = 10};
  const Plans waits{"| 1:0-23! 3:0-6! 4:0-11!", "1:23-24! 3:6-7! 4:11-12! | 2:20-23!"};
  const Plans at_once{"| 1:0-23! 2:0-23! 3:0-6! 4:0-11!", "1:23-24! 2:23-24! 3:6-7! 4:11-12! |"};
  Simulated<Hashed> hashed(config, 40);
  CHECK(plans(hashed) == waits);
  Simulated<BlockManager<4, RadixPrefixCache<4>>> radix(config, 40);
  CHECK(plans(radix) == waits);
  Simulated<Uncached> uncached(config, 40);
  CHECK(plans(uncached) == at_once);
  Simulated<Hashed> off(config, 40, false);
  CHECK(plans(off) == at_once);
  Simulated<Hashed> too_little(
      {.max_num_seqs = 8, .max_num_batched_tokens = 100, .prefix_wait_tokens = 21}, 40);
  CHECK(plans(too_little) == at_once);
}

TEST_CASE("a request waits for no prefix that is computed with another salt",
          "[fork][prefix_wait]") {
  const BatchConfig config{
      .max_num_seqs = 8, .max_num_batched_tokens = 100, .prefix_wait_tokens = 10};
  const CacheSalt alice = CacheSalt::of("alice"), bob = CacheSalt::of("bob");
  const auto plans = [&](auto& engine) {
    engine.add(prompt(20, 3, 100), 1000, 0, alice);
    engine.add(prompt(20, 3, 101), 1000, 0, bob);
    engine.add(prompt(20, 3, 102));
    engine.add(prompt(20, 3, 103), 1000, 0, alice);
    const std::string first = engine.step();
    return std::pair(first, engine.step());
  };
  const std::pair<std::string, std::string> expected{"| 1:0-23! 2:0-23! 3:0-23!",
                                                     "1:23-24! 2:23-24! 3:23-24! | 4:20-23!"};
  Simulated<Hashed> hashed(config, 40);
  CHECK(plans(hashed) == expected);
  Simulated<BlockManager<4, RadixPrefixCache<4>>> radix(config, 40);
  CHECK(plans(radix) == expected);
}

TEST_CASE("a sequence shares nothing with one that it continues under another salt", "[fork]") {
  Sequence held, s;
  held.status = SequenceStatus::parked;
  held.tokens = s.tokens = iota(8);
  held.num_computed_tokens = s.num_prompt_tokens = 8;
  s.continues = &held;
  CHECK(find_fork(s).num_tokens == 7);
  s.salt = CacheSalt::of("alice");
  CHECK(find_fork(s).source == nullptr);
  held.salt = s.salt;
  CHECK(find_fork(s).num_tokens == 7);
}

TEST_CASE("samples do not wait for each other: each has the prompt of the first",
          "[fork][prefix_wait]") {
  Simulated<Hashed> engine(
      {.max_num_seqs = 8, .max_num_batched_tokens = 100, .prefix_wait_tokens = 4}, 40);
  add_samples(engine, iota(14), 4);
  CHECK(engine.step() == "| 1:0-14!");
  CHECK(engine.step() == "1:14-15! | 2:13-14! 3:13-14! 4:13-14!");

  // Also after the step that computes the prompt.
  Simulated<Hashed> ahead(
      {.max_num_seqs = 8, .max_num_batched_tokens = 100, .prefix_wait_tokens = 4}, 40);
  add_samples(ahead, iota(14), 4);
  const StepPlan first = begin(ahead);
  CHECK(describe(first) == "| 1:0-14!");
  CHECK(describe(begin(ahead)) == "1:14-15! | 2:13-14! 3:13-14! 4:13-14!");
}

TEST_CASE("nothing is computed twice that an earlier request was computing", "[prefix_wait]") {
  for (const std::size_t depth : {1u, 2u}) {
    Simulated<Hashed> engine(
        {.max_num_seqs = 16, .max_num_batched_tokens = 37, .prefix_wait_tokens = 1}, 200);
    std::int64_t num_computed = 0;
    for (int i = 0; i < 24; ++i) engine.add(prompt(40 + 20 * (i % 2), 3, 1000 + i), 2);
    std::deque<StepPlan> under_way;
    while (engine.scheduler.has_work()) {
      if (under_way.size() < depth && !engine.scheduler.schedule().empty()) {
        under_way.push_back(begin(engine));
        for (const PlannedSequence& p : under_way.back().sequences) {
          if (p.begin < p.sequence->num_prompt_tokens) num_computed += p.num_tokens();
        }
        continue;
      }
      engine.scheduler.commit(under_way.front(), outcomes(under_way.front()));
      under_way.pop_front();
    }
    CHECK(num_computed == 60 + 24 * 3);
  }
}
