#include "nanovllm/with/sessions/held_sequences.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

using Hashed = BlockManager<4>;
using Radix = BlockManager<4, RadixPrefixCache<4>>;
using Uncached = BlockManager<4, NoPrefixCache<4>>;

template <class Blocks>
struct Simulated : simulator::Engine<ContinuousBatching, Blocks> {
  using Base = simulator::Engine<ContinuousBatching, Blocks>;
  explicit Simulated(std::int32_t num_blocks, std::optional<std::int32_t> max_held = {},
                     bool prefix_caching = true)
      : Base({.max_num_seqs = 8, .max_num_batched_tokens = 100}, num_blocks, prefix_caching) {
    held_in(this->scheduler, {.max_blocks = max_held});
  }

  Sequence& hold() {
    held.push_back(std::make_unique<Sequence>());
    held_in(this->scheduler).add(*held.back());
    return *held.back();
  }

  /// A request that continues `holder`, served until it has drawn `max_new` sevens. Returns its
  /// first step.
  std::string turn(Sequence& holder, std::vector<TokenId> tokens, std::int32_t max_new = 2) {
    add_turn(holder, std::move(tokens), max_new);
    const std::string first = this->step();
    while (this->scheduler.has_work()) this->step();
    return first;
  }

  Sequence& add_turn(Sequence& holder, std::vector<TokenId> tokens, std::int32_t max_new) {
    this->requests.push_back(request(this->requests.size() + 1, std::move(tokens), max_new));
    Sequence& s = *this->requests.back();
    s.max_total_tokens = std::min(s.max_total_tokens, this->scheduler.capacity_tokens());
    s.continues = &holder;
    this->scheduler.add(s);
    return s;
  }

  /// A step as the engine makes it: what is held gives way where nothing else is possible.
  std::string step_with_room() {
    while (this->scheduler.schedule().empty()) REQUIRE(this->scheduler.free_blocks());
    return this->step();
  }

  std::vector<std::unique_ptr<Sequence>> held;
};

std::vector<TokenId> with(std::vector<TokenId> tokens, std::vector<TokenId> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

}  // namespace

TEMPLATE_TEST_CASE("what a turn has computed is not computed by the next", "[held]", Hashed, Radix,
                   Uncached) {
  Simulated<TestType> engine(20, 20, GENERATE(true, false));
  Sequence& held = engine.hold();
  CHECK(engine.turn(held, iota(10)) == "| 1:0-10!");
  CHECK(held.tokens == with(iota(10), {7, 7}));
  CHECK(held.num_computed_tokens == 11);
  CHECK(held.block_table.size() == 3);
  CHECK(engine.scheduler.blocks().num_free() == 17);
  CHECK(held_in(engine.scheduler).num_blocks() == 3);
  // The last token was drawn and never computed.
  CHECK(engine.turn(held, with(held.tokens, {1, 2, 3})) == "| 2:11-15!");
  CHECK(held.num_computed_tokens == 16);
  CHECK(engine.requests[1]->num_cached_tokens == 11);
  // Another way from inside a block.
  const std::string first = engine.turn(held, with(iota(6), {50, 51}));
  CHECK(first == "| 3:6-8!");
  held_in(engine.scheduler).remove(held);
  engine.scheduler.check_invariants();
  CHECK(engine.scheduler.blocks().num_free() == 20);
}

TEST_CASE("a turn that is aborted or fails leaves what was held", "[held]") {
  Simulated<Uncached> engine(20);
  Sequence& held = engine.hold();
  engine.turn(held, iota(10));
  const std::vector<TokenId> tokens = held.tokens;
  const std::vector<BlockId> table = held.block_table;
  Sequence& s = engine.add_turn(held, with(tokens, {1, 2, 3}), 9);
  engine.step();
  engine.scheduler.abort(s);
  engine.scheduler.check_invariants();
  CHECK(held.tokens == tokens);
  CHECK(held.block_table == table);
  CHECK(engine.turn(held, with(tokens, {4})) == "| 3:11-13!");
}

TEST_CASE("a copy shares the blocks and goes its own way", "[held]") {
  Simulated<Uncached> engine(20, 20);
  Sequence &first = engine.hold(), &second = engine.hold();
  engine.turn(first, iota(10));
  held_in(engine.scheduler).copy(first, second);
  engine.scheduler.check_invariants();
  CHECK(held_in(engine.scheduler).num_blocks() == 3);  // counted once
  CHECK(engine.turn(second, with(first.tokens, {20})) == "| 2:11-13!");
  CHECK(engine.turn(first, with(first.tokens, {30})) == "| 3:11-13!");
  CHECK(std::equal(first.block_table.begin(), first.block_table.begin() + 2,
                   second.block_table.begin()));
  CHECK(first.block_table[2] != second.block_table[2]);
  held_in(engine.scheduler).remove(first);
  engine.scheduler.check_invariants();
  CHECK(engine.turn(second, with(second.tokens, {21})) == "| 4:14-16!");
}

TEST_CASE("over the budget, the one that was used the longest ago gives up its blocks", "[held]") {
  Simulated<Uncached> engine(20, 6);
  Sequence &a = engine.hold(), &b = engine.hold(), &c = engine.hold();
  engine.turn(a, iota(7, 0), 2);  // 2 blocks each
  engine.turn(b, iota(7, 20), 2);
  engine.turn(c, iota(7, 40), 2);
  CHECK(held_in(engine.scheduler).num_blocks() == 6);
  engine.turn(a, with(a.tokens, {1}), 1);  // a third block
  CHECK(a.block_table.size() == 3);
  CHECK(b.block_table.empty());
  CHECK(c.block_table.size() == 2);
  engine.turn(b, iota(7, 20), 2);  // c has not been used for the longest time now
  CHECK(a.block_table.size() == 3);
  CHECK(b.block_table.size() == 2);
  CHECK(c.block_table.empty());
  // One alone is held as far as there is room.
  engine.turn(c, with(iota(30, 40), {1}), 1);
  CHECK(a.block_table.empty());
  CHECK(c.block_table.size() == 6);
  CHECK(c.num_computed_tokens == 24);
  engine.scheduler.check_invariants();
  CHECK(engine.turn(b, iota(9, 20)) == "| 7:0-9!");
}

TEST_CASE("a budget of nothing holds nothing", "[held]") {
  Simulated<Hashed> engine(20, 0);
  Sequence& held = engine.hold();
  engine.turn(held, iota(10));
  CHECK(held.block_table.empty());
  CHECK(engine.scheduler.blocks().num_free() == 20);
  CHECK(engine.turn(held, with(iota(10), {7, 7, 1})) == "| 2:8-13!");  // by the prefix cache
}

TEMPLATE_TEST_CASE("what is held never keeps a request from being served", "[held]", Hashed, Radix,
                   Uncached) {
  Simulated<TestType> engine(8, 8);
  Sequence &a = engine.hold(), &b = engine.hold();
  engine.turn(a, iota(11, 0));
  engine.turn(b, iota(15, 20));
  REQUIRE(engine.scheduler.blocks().num_free() == 1);
  Sequence& big = engine.add(iota(30, 100));  // as much as ever fits
  while (big.num_known_tokens() < 32) engine.step_with_room();
  CHECK(a.block_table.empty());
  CHECK(b.block_table.empty());
  engine.step_with_room();
  CHECK(big.status == SequenceStatus::finished);
}

TEST_CASE("what frees no block by giving way does not", "[held]") {
  Simulated<Uncached> engine(9, 9);
  Sequence &a = engine.hold(), &copy = engine.hold(), &b = engine.hold();
  engine.turn(a, iota(8, 0), 1);
  held_in(engine.scheduler).copy(a, copy);  // two blocks for both
  engine.turn(b, iota(8, 20), 1);
  REQUIRE(engine.scheduler.blocks().num_free() == 5);
  SECTION("of all, those that free something go first") {
    CHECK(engine.scheduler.free_blocks());
    CHECK((a.block_table.size() == 2 && copy.block_table.size() == 2 && b.block_table.empty()));
    CHECK(engine.scheduler.free_blocks());  // which of the two frees nothing yet,
    CHECK(engine.scheduler.free_blocks());  // but both do
    CHECK(engine.scheduler.blocks().num_free() == 9);
    CHECK_FALSE(engine.scheduler.free_blocks());
  }
  SECTION("those whose blocks are all used by a request stay as long as anything else gives way") {
    Sequence& s = engine.add_turn(a, with(iota(8, 0), {50}), 1000);
    engine.step();
    CHECK(s.block_table.size() == 3);
    CHECK(engine.scheduler.free_blocks());
    CHECK(b.block_table.empty());
    CHECK((a.block_table.size() == 2 && copy.block_table.size() == 2));
    SECTION("and if nothing else does, they go: the request may be preempted for another") {
      CHECK(engine.scheduler.free_blocks());
      CHECK(engine.scheduler.free_blocks());
      CHECK((a.block_table.empty() && copy.block_table.empty()));
      CHECK_FALSE(engine.scheduler.free_blocks());
      CHECK(engine.scheduler.blocks().num_free() == 6);
    }
    while (engine.scheduler.has_work()) engine.step_with_room();
    CHECK(s.finish_reason == FinishReason::length);
    CHECK(a.tokens.size() == 37);  // all that the pool holds, and one
  }
  engine.scheduler.check_invariants();
}

TEST_CASE("over the budget, what shares all its blocks with the latest stays", "[held]") {
  Simulated<Uncached> engine(20, 4);
  Sequence &a = engine.hold(), &copy = engine.hold(), &b = engine.hold();
  engine.turn(a, iota(8, 0), 1);
  held_in(engine.scheduler).copy(a, copy);
  engine.turn(b, iota(8, 20), 1);
  engine.turn(copy, with(iota(8, 0), {50}), 1);  // a third block: b is older
  CHECK((a.block_table.size() == 2 && copy.block_table.size() == 3 && b.block_table.empty()));
  CHECK(held_in(engine.scheduler).num_blocks() == 3);
  engine.turn(copy, with(iota(8, 0), iota(30, 50)), 1);  // as far as there is room
  CHECK((a.block_table.size() == 2 && copy.block_table.size() == 4));
  CHECK(held_in(engine.scheduler).num_blocks() == 4);
  engine.scheduler.check_invariants();
}

TEST_CASE("one that goes while a turn is under way takes nothing with it", "[held]") {
  Simulated<Hashed> engine(20);
  Sequence& held = engine.hold();
  engine.turn(held, iota(10));
  Sequence& s = engine.add_turn(held, with(held.tokens, {1, 2, 3}), 3);
  engine.step();
  held_in(engine.scheduler).remove(held);
  engine.scheduler.check_invariants();
  while (engine.scheduler.has_work()) engine.step();
  CHECK(s.finish_reason == FinishReason::length);
  CHECK(engine.scheduler.blocks().num_free() == 20);
}

TEST_CASE("blocks for what comes from elsewhere, as far as there is room", "[held]") {
  Simulated<Hashed> engine(14, 6);
  Sequence &a = engine.hold(), &b = engine.hold();
  engine.turn(a, iota(11, 50));
  engine.add(iota(13, 100));  // runs, and is not to be disturbed
  engine.step();
  held_in(engine.scheduler).allocate(b, iota(30), 26);
  CHECK(b.block_table.size() == 6);
  CHECK(b.num_computed_tokens == 24);
  CHECK(a.block_table.empty());
  engine.scheduler.check_invariants();
  engine.memory.write(b, 0, 24);
  held_in(engine.scheduler).publish(b);
  CHECK(engine.scheduler.blocks().num_published() >= 6);
  engine.add_turn(b, iota(27), 1);
  CHECK(engine.step_with_room().find("24-27!") != std::string::npos);
}

TEST_CASE("when the pool's contents are lost, so is what was held", "[held]") {
  Simulated<Hashed> engine(20);
  Sequence& held = engine.hold();
  engine.turn(held, iota(10));
  engine.scheduler.forget_kv();
  engine.scheduler.check_invariants();
  CHECK(held.num_computed_tokens == 0);
  CHECK(engine.turn(held, iota(10)) == "| 2:0-10!");
}

namespace {

/// Conversations with random turns, copies and ends on a small pool. Every request must read the
/// keys and values of its own tokens, and get the tokens that it would get alone.
template <class Blocks>
class Conversations {
 public:
  Conversations(unsigned seed, std::size_t depth)
      : random_(seed),
        num_blocks_(6 + below(30)),
        scheduler_({.max_num_seqs = 1 + below(6), .max_num_batched_tokens = 6 + below(30)},
                   Blocks(num_blocks_, below(4) > 0)),
        device_(num_blocks_),
        depth_(depth) {
    held_in(scheduler_, {.max_blocks = below(num_blocks_ + 1)});
  }

  void run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      while (live_.size() < 6 && below(3) > 0) arrive();
      change();
      step();
    }
    while (scheduler_.has_work() || !under_way_.empty()) step();
    for (const auto& s : held_) held_in(scheduler_).remove(*s);
    scheduler_.check_invariants();
    REQUIRE(scheduler_.blocks().num_free() == num_blocks_);
  }

  int num_continued = 0, num_given_up = 0, num_finished = 0, num_parted = 0;

 private:
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(random_() % static_cast<unsigned>(n));
  }
  Sequence& any() { return *held_[static_cast<std::size_t>(below(std::ssize(held_)))]; }

  void change() {
    if (held_.empty() || (held_.size() < 5 && below(9) == 0)) {
      held_.push_back(std::make_unique<Sequence>());
      held_in(scheduler_).add(*held_.back());
      if (below(2) == 0) held_in(scheduler_).copy(any(), *held_.back());
    } else if (below(40) == 0) {
      const auto place = held_.begin() + below(std::ssize(held_));
      held_in(scheduler_).remove(**place);
      gone_.push_back(std::move(*place));  // requests that continue it may still live
      held_.erase(place);
    } else if (below(40) == 0) {
      held_in(scheduler_).evict(any());
    } else if (below(20) == 0) {
      num_given_up += scheduler_.free_blocks() ? 1 : 0;
    }
    if (!live_.empty() && below(20) == 0) {
      Sequence& s = *live_[static_cast<std::size_t>(below(std::ssize(live_)))];
      scheduler_.abort(s);
    }
    scheduler_.check_invariants();
  }

  void arrive() {
    std::vector<TokenId> tokens;
    Sequence* continues = nullptr;
    if (!held_.empty() && below(5) > 0) {
      continues = &any();
      tokens = continues->tokens;
      if (below(3) == 0) tokens.resize(static_cast<std::size_t>(below(std::ssize(tokens) + 1)));
    }
    const std::int32_t most = scheduler_.capacity_tokens() - 1;
    for (int i = 1 + below(9); i > 0; --i) tokens.push_back(below(3));
    tokens.resize(static_cast<std::size_t>(std::min<std::int32_t>(std::ssize(tokens), most)));
    auto s = request(++num_requests_, tokens, 1 + below(12));
    s->max_total_tokens = std::min(s->max_total_tokens, scheduler_.capacity_tokens());
    s->continues = continues;
    // Now and then another salt than that of what it continues.
    if (choose_salts_() % 8 == 0) s->salt = CacheSalt::of("a");
    num_parted +=
        continues != nullptr && continues->num_computed_tokens > 0 && continues->salt != s->salt
            ? 1
            : 0;
    expected_[num_requests_] = tokens_alone(tokens, s->max_total_tokens, s->salt);
    scheduler_.add(*s);
    live_.push_back(std::move(s));
  }

  void step() {
    while (under_way_.size() < depth_ && scheduler_.has_work()) {
      StepPlan plan = scheduler_.schedule();
      while (plan.empty() && under_way_.empty()) {
        REQUIRE(scheduler_.free_blocks());
        ++num_given_up;
        plan = scheduler_.schedule();
      }
      if (plan.empty()) break;
      scheduler_.begin(plan);
      scheduler_.check_invariants();
      device_.launch(plan);
      for (const PlannedSequence& p : plan.sequences)
        num_continued += p.fork_of != nullptr && p.fork_of == p.sequence->continues ? 1 : 0;
      under_way_.push_back(std::move(plan));
    }
    if (under_way_.empty()) return;
    if (below(30) == 0) {  // all steps fail
      device_.drop();
      for (; !under_way_.empty(); under_way_.pop_back()) scheduler_.cancel(under_way_.back());
      scheduler_.check_invariants();
      return;
    }
    const std::vector<Drawn> drawn = device_.wait();
    std::vector<StepOutcome> outcomes;
    std::size_t next = 0;
    for (const PlannedSequence& p : under_way_.front().sequences) {
      if (p.rows.count(RowKind::draw) == 0) continue;
      const Drawn& d = drawn[next++];
      if (p.sequence->status != SequenceStatus::finished)
        outcomes.push_back({p.sequence, d.tokens, d.reason});
    }
    finished_.clear();
    for (const auto& s : live_) {
      if (s->status != SequenceStatus::finished) finished_.push_back({s.get(), s->tokens});
    }
    scheduler_.commit(under_way_.front(), outcomes);
    scheduler_.check_invariants();
    for (const StepOutcome& o : outcomes) {
      const auto before = std::find_if(finished_.begin(), finished_.end(),
                                       [&](const auto& f) { return f.first == o.sequence; });
      std::vector<TokenId> tokens = before->second;
      tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
      const std::vector<TokenId>& all = expected_[o.sequence->id];
      REQUIRE(tokens.size() <= all.size());
      REQUIRE(std::equal(tokens.begin(), tokens.end(), all.begin()));
      if (o.sequence->status == SequenceStatus::finished) {
        REQUIRE(tokens == all);
        ++num_finished;
      }
    }
    under_way_.pop_front();
    if (under_way_.empty()) {  // no step has them
      std::erase_if(live_, [](const auto& s) { return s->status == SequenceStatus::finished; });
    }
  }

  std::mt19937 random_, choose_salts_{1};
  std::int32_t num_blocks_;
  Scheduler<ContinuousBatching, Blocks> scheduler_;
  Device<Blocks> device_;
  std::size_t depth_;
  std::vector<std::unique_ptr<Sequence>> held_, gone_, live_;
  std::vector<std::pair<Sequence*, std::vector<TokenId>>> finished_;
  std::map<RequestId, std::vector<TokenId>> expected_;
  std::deque<StepPlan> under_way_;
  RequestId num_requests_ = 0;
};

}  // namespace

TEMPLATE_TEST_CASE("random conversations get the tokens that they would get alone",
                   "[held][random]", Hashed, Radix, Uncached) {
  int num_continued = 0, num_given_up = 0, num_finished = 0, num_parted = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    Conversations<TestType> traffic(seed, 1 + seed % 2);
    traffic.run(400);
    num_continued += traffic.num_continued;
    num_given_up += traffic.num_given_up;
    num_finished += traffic.num_finished;
    num_parted += traffic.num_parted;
  }
  CHECK(num_continued > 250);
  CHECK(num_given_up > 100);
  CHECK(num_finished > 5000);
  CHECK(num_parted > 50);
}
