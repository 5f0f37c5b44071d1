#include "nanovllm/sched/plan_builder.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

#include <memory>
#include <vector>

#include "catch.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

using Blocks = TieredBlockManager<4>;

/// A running sequence that has computed all but its last `num_left` tokens.
std::unique_ptr<Sequence> running(Blocks& blocks, RequestId id, std::vector<TokenId> tokens,
                                  std::int32_t num_left) {
  auto s = request(id, std::move(tokens), 100);
  s->status = SequenceStatus::running;
  s->num_computed_tokens = s->num_tokens() - num_left;
  for (int i = 0; i < Blocks::blocks_for(s->num_computed_tokens); ++i)
    s->block_table.push_back(blocks.allocate().value());
  blocks.publish(s->block_table, s->tokens, 0, s->num_computed_tokens);
  return s;
}

}  // namespace

TEST_CASE("extend plans what budget and free blocks allow", "[plan_builder]") {
  Blocks blocks(3, true);
  const auto s = running(blocks, 1, iota(20), 15);  // 5 tokens computed, in 2 blocks
  const std::vector<Sequence*> queue{s.get()};
  const WaitingQueue waiting;
  PlanBuilder<Blocks> builder(SchedulerView{queue, waiting}, blocks);
  SECTION("the budget binds") {
    REQUIRE(builder.extend(*s, 2) == 2);
    const StepPlan plan = builder.finish();
    REQUIRE(describe(plan) == "| 1:5-7");
  }
  SECTION("the pool binds") {
    REQUIRE(builder.extend(*s, 100) == 7);
    REQUIRE(builder.num_free() == 0);
    const StepPlan plan = builder.finish();
    REQUIRE(describe(plan) == "| 1:5-12");
    REQUIRE(plan.num_tokens == 7);
  }
}

TEST_CASE("nano-vllm bug 3: hits on free blocks are charged once a plan, however many adopt them",
          "[plan_builder]") {
  Blocks blocks(8, true);
  const auto old = running(blocks, 9, iota(12), 0);
  blocks.release(old->block_table);
  const auto a = request(1, iota(13), 1);
  const auto b = request(2, iota(13), 1);
  const WaitingQueue waiting;
  PlanBuilder<Blocks> builder(SchedulerView{{}, waiting}, blocks);
  REQUIRE(builder.num_free() == 8);
  REQUIRE(builder.admit_whole(*a, 100) == 1);
  REQUIRE(builder.num_free() == 4);
  REQUIRE(builder.admit_whole(*b, 100) == 1);
  REQUIRE(builder.num_free() == 3);
  REQUIRE(builder.num_running() == 2);
  REQUIRE(describe(builder.finish()) == "| 1:12-13! 2:12-13!");
}

TEST_CASE("blocks that two victims share are free when both are gone", "[plan_builder]") {
  Blocks blocks(4, true);
  const auto a = running(blocks, 1, iota(9), 1);
  auto b = request(2, iota(9), 5);
  b->status = SequenceStatus::running;
  b->num_computed_tokens = 8;
  b->block_table = a->block_table;
  blocks.adopt({.num_tokens = 8, .blocks = b->block_table}, 9);
  const std::vector<Sequence*> queue{a.get(), b.get()};
  const WaitingQueue waiting;
  PlanBuilder<Blocks> builder(SchedulerView{queue, waiting}, blocks);
  builder.preempt(*b);
  REQUIRE(builder.num_free() == 2);
  builder.preempt(*a);
  REQUIRE(builder.num_free() == 4);
  REQUIRE(builder.preempts());
  REQUIRE(describe(builder.finish()) == "| -2 -1");
}

TEST_CASE("admission leaves every running sequence the blocks of its prompt and one more",
          "[plan_builder]") {
  Blocks blocks(10, false);
  const auto a = running(blocks, 1, iota(14), 10);  // has 1 block, is promised 5
  const auto fits = request(2, iota(12), 100);      // needs 3 and 1 more
  const auto exceeds = request(2, iota(17), 100);
  const std::vector<Sequence*> queue{a.get()};
  const WaitingQueue waiting;
  PlanBuilder<Blocks> builder(SchedulerView{queue, waiting}, blocks);
  REQUIRE(builder.admit_chunk(*exceeds, 1) == 0);  // 9 free; 4 promised; 6 wanted
  REQUIRE(builder.admit_chunk(*fits, 1) == 1);
  REQUIRE(builder.num_free() == 8);
  const auto small = request(3, iota(1), 1);  // 8 free; 4 + 3 promised; 1 wanted
  REQUIRE(builder.admit_whole(*small, 1) == 1);
  const auto another = request(4, iota(1), 1);
  REQUIRE(builder.admit_whole(*another, 1) == 0);
  REQUIRE(builder.extend(*a, 100) == 10);  // what was promised is there
}

TEST_CASE("admit_whole takes all or nothing of what is not cached", "[plan_builder]") {
  Blocks blocks(10, true);
  const auto old = running(blocks, 9, iota(8), 0);
  const auto s = request(1, iota(14), 4);
  const std::vector<Sequence*> queue{old.get()};
  const WaitingQueue waiting;
  PlanBuilder<Blocks> builder(SchedulerView{queue, waiting}, blocks);
  REQUIRE(builder.admit_whole(*s, 5) == 0);
  REQUIRE(builder.empty());
  REQUIRE(builder.admit_whole(*s, 6) == 6);
  const StepPlan plan = builder.finish();
  REQUIRE(describe(plan) == "| 1:8-14!");
  REQUIRE(plan.sequences[0].prefix.num_tokens == 8);
  REQUIRE(plan.sequences[0].prefix.blocks == old->block_table);
  REQUIRE(builder.num_free() == 6);
}

TEST_CASE("what another sequence has in the pool is not copied from the host", "[plan_builder]") {
  simulator::Engine<ContinuousBatching, Blocks> engine(
      {.max_num_seqs = 4, .max_num_batched_tokens = 100}, 8, true, 20);
  engine.add(iota(9), 1);
  engine.step();
  engine.add(iota(31, 100), 1);  // takes the pool: two blocks go to the host
  engine.step();
  REQUIRE(engine.scheduler.blocks().tier().size() >= 2);
  for (const RequestId id : {3, 4}) engine.requests.push_back(request(id, iota(9), 2));
  Sequence &first = *engine.requests[2], &second = *engine.requests[3];
  first.next_sibling = &second;
  second.next_sibling = &first;
  for (Sequence* s : {&first, &second}) engine.scheduler.add(*s);
  const StepPlan plan = engine.start();
  REQUIRE(plan.copies_up.size() == 2);
  const StepPlan next = engine.scheduler.schedule();  // what the first has is not published yet
  REQUIRE(engine.scheduler.blocks().match(second.tokens).outside.size() == 2);
  REQUIRE(describe(next) == "3:9-10! | 4:8-9!");
  CHECK(next.sequences[1].fork_of == &first);
  CHECK(next.sequences[1].prefix.outside.empty());
}

TEST_CASE("a block that several beams hold must be copied by all but the last to write to it",
          "[plan_builder][beams]") {
  const std::int32_t num_blocks = GENERATE(2, 3, 4);
  Blocks blocks(num_blocks, true);
  const auto a = running(blocks, 1, iota(7), 1);  // 6 tokens computed, in 2 blocks
  std::vector<std::unique_ptr<Sequence>> others;
  for (RequestId id = 2; id <= 3; ++id) {
    others.push_back(request(id, iota(7), 100));
    others.back()->status = SequenceStatus::running;
    others.back()->num_computed_tokens = 6;
    others.back()->block_table = a->block_table;
    blocks.share({.blocks = a->block_table});
  }
  Sequence &b = *others[0], &c = *others[1];
  for (Sequence* s : {a.get(), &b, &c}) s->is_chosen = true;
  const std::vector<Sequence*> queue{a.get(), &b, &c};
  const WaitingQueue waiting;
  PlanBuilder<Blocks> builder(SchedulerView{queue, waiting}, blocks);
  const std::int32_t num_free = num_blocks - 2;  // enough for 0, 1 or both of the copies
  CHECK(builder.extend(*a, 1) == (num_free >= 1 ? 1 : 0));
  CHECK(builder.extend(b, 1) == (num_free >= 2 ? 1 : 0));
  CHECK(builder.num_free() == 0);
  if (num_free < 2) {
    builder.preempt(b);
    CHECK(builder.num_free() == 0);  // others hold the same blocks
  }
  if (num_free < 1) {
    CHECK(builder.extend(*a, 1) == 0);  // two hold it still
    builder.preempt(c);
  }
  CHECK(builder.extend(num_free < 1 ? *a : c, 1) == 1);
  CHECK(builder.num_free() == 0);
  StepPlan plan = builder.finish();
  check_blocks(plan, blocks);
}

TEST_CASE("guesses of a decode get what the plan leaves of tokens, rows and blocks",
          "[plan_builder]") {
  Blocks blocks(6, true);
  const auto s = running(blocks, 1, iota(6), 1);  // 5 tokens computed, in 2 blocks
  const auto chunk = running(blocks, 2, iota(4, 50), 4);
  s->guesses = {20, 21, 22, 23, 24};
  const std::vector<Sequence*> queue{s.get(), chunk.get()};
  const WaitingQueue waiting;
  SchedulerView view{queue, waiting};
  const auto plan_of = [&](std::int32_t chunk_tokens) {
    PlanBuilder<Blocks> builder(view, blocks);
    REQUIRE(builder.extend(*s, 1) == 1);
    builder.extend(*chunk, chunk_tokens);
    const StepPlan plan = builder.finish();
    REQUIRE(plan.num_decodes == 1);
    const PlannedSequence& p = plan.sequences[0];
    REQUIRE(p.rows == RowUses{{RowKind::draw, 5, p.end - 5}});
    std::int32_t num_tokens = 0;
    for (const PlannedSequence& each : plan.sequences) num_tokens += each.num_tokens();
    REQUIRE(plan.num_tokens == num_tokens);
    return p.end - 6;  // guesses
  };
  CHECK(plan_of(0) == 5);
  SECTION("tokens: chunks have theirs first") {
    view.max_tokens = 7;
    CHECK(plan_of(0) == 5);
    CHECK(plan_of(4) == 2);
    view.max_tokens = 5;
    CHECK(plan_of(4) == 0);
  }
  SECTION("rows of logits: each sequence has one first") {
    view.max_logits = 4;
    CHECK(plan_of(0) == 2);
    view.max_logits = 2;
    CHECK(plan_of(0) == 0);
  }
  SECTION("blocks: what no sequence is promised") {
    std::vector<BlockId> taken;
    const auto take = [&](int count) {
      for (int i = 0; i < count; ++i) taken.push_back(blocks.allocate().value());
    };
    take(1);
    CHECK(plan_of(0) == 2);  // 3 free, 1 and 2 promised: to the end of its last block
    take(3);
    CHECK(plan_of(0) == 2);
  }
  SECTION("length: its last token is never computed") {
    s->max_total_tokens = 9;
    CHECK(plan_of(0) == 2);
    s->max_total_tokens = 7;
    CHECK(plan_of(0) == 0);
  }
  SECTION("none where tokens are not known, or nothing is drawn") {
    s->is_chosen = true;
    CHECK(plan_of(0) == 0);
    s->is_chosen = false;
    s->tokens.pop_back();
    s->pending.push(0, 1);
    CHECK(plan_of(0) == 0);
  }
}
