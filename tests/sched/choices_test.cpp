// Beams: sequences that share blocks, are seated anew after every draw, and copy what they write
// to.
// A pretended KV memory tells whether each of them reads exactly the keys and values of its own
// tokens, on pools of every size, planned ahead or not, with failures on the way.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "nanovllm/sched/policy/priority.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/tiers/host_pool.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"
#include "sched/faults.hpp"
#include "sched/policies.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

template <class Blocks>
using Simulated = simulator::Engine<ContinuousBatching, Blocks>;
using Hashed = TieredBlockManager<4>;
using Radix = TieredBlockManager<4, RadixPrefixCache<4>>;
using Uncached = TieredBlockManager<4, NoPrefixCache<4>>;

/// `width` beams of one prompt, to be added in this order.
std::vector<std::unique_ptr<Sequence>> make_beams(RequestId first_id,
                                                  const std::vector<TokenId>& tokens, int width,
                                                  std::int32_t max_new) {
  std::vector<std::unique_ptr<Sequence>> beams;
  for (int i = 0; i < width; ++i) {
    beams.push_back(request(first_id + static_cast<RequestId>(i), tokens, max_new));
    beams.back()->is_chosen = true;
    beams.back()->awaits_choice = i > 0;
  }
  for (std::size_t i = 0; width > 1 && i < beams.size(); ++i)
    beams[i]->next_sibling = beams[(i + 1) % beams.size()].get();
  return beams;
}

template <class Engine>
std::vector<Sequence*> add_beams(Engine& engine, const std::vector<TokenId>& tokens, int width,
                                 std::int32_t max_new = 50) {
  std::vector<Sequence*> out;
  for (auto& beam : make_beams(engine.requests.size() + 1, tokens, width, max_new)) {
    out.push_back(beam.get());
    engine.requests.push_back(std::move(beam));
  }
  for (Sequence* s : out) engine.scheduler.add(*s);
  return out;
}

/// One outcome for each that samples; a beam's is without a token.
std::vector<StepOutcome> outcomes_of(const StepPlan& plan) {
  std::vector<StepOutcome> result = outcomes(plan);
  for (StepOutcome& outcome : result) {
    if (outcome.sequence->is_chosen) outcome.tokens = {};
  }
  return result;
}

template <class Engine>
StepPlan step(Engine& engine) {
  const StepPlan plan = engine.start();
  engine.scheduler.commit(plan, outcomes_of(plan));
  engine.scheduler.check_invariants();
  return plan;
}

std::size_t index(TokenId i) { return static_cast<std::size_t>(i); }

}  // namespace

TEMPLATE_TEST_CASE("beams share what they have in common, and copy the block they write to",
                   "[beams]", Hashed, Radix, Uncached) {
  Simulated<TestType> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 20);
  const auto beams = add_beams(engine, iota(9), 3);
  CHECK(engine.scheduler.num_waiting() == 3);
  CHECK(describe(step(engine)) == "| 1:0-9!");
  CHECK(beams[0]->awaits_choice);
  CHECK(beams[0]->tokens == iota(9));
  CHECK(engine.scheduler.schedule().empty());
  Sequence *a = beams[0], *b = beams[1], *c = beams[2];
  engine.scheduler.choices().apply(std::vector<Choice>{{a, a, 20}, {b, a, 21}, {c, a, 22}});
  engine.scheduler.check_invariants();
  // The others start as forks of the first one.
  StepPlan plan = step(engine);
  CHECK(describe(plan) == "1:9-10! | 2:9-10! 3:9-10!");
  CHECK(plan.block_copies.size() == 2);
  CHECK(b->tokens == [] {
    auto tokens = iota(9);
    tokens.push_back(21);
    return tokens;
  }());
  // All three go on after the second: two copies, and the last to write keeps the block.
  const BlockId last = b->block_table.back();
  engine.scheduler.choices().apply(std::vector<Choice>{{c, b, 30}, {a, b, 31}, {b, b, 32}});
  engine.scheduler.check_invariants();
  CHECK(engine.scheduler.blocks().ref_count(last) == 3);
  plan = step(engine);
  CHECK(describe(plan) == "1:10-11! 2:10-11! 3:10-11! |");
  REQUIRE(plan.block_copies.size() == 2);
  for (const BlockCopy& copy : plan.block_copies) CHECK(copy.from == last);
  CHECK(c->block_table.back() == last);
  CHECK(engine.scheduler.blocks().ref_count(last) == 1);
  // Nothing is shared but whole blocks now, and nothing copied.
  engine.scheduler.choices().apply(std::vector<Choice>{{a, a, 40}, {b, b, 41}, {c, c, 42}});
  plan = step(engine);
  CHECK(plan.block_copies.empty());
  // At the end of a block each takes a new one.
  engine.scheduler.choices().apply(std::vector<Choice>{{a, c, 50}, {b, c, 51}, {c, c, 52}});
  CHECK(engine.scheduler.blocks().ref_count(a->block_table[2]) == 3);
  plan = step(engine);
  CHECK(plan.block_copies.empty());
  for (Sequence* s : beams) CHECK(s->block_table.size() == 4);
  for (Sequence* s : beams) engine.scheduler.abort(*s);
  engine.scheduler.check_invariants();
  CHECK(engine.scheduler.blocks().num_free() == 20);
}

TEST_CASE("a beam that gives way is not swapped, but computed again", "[beams][swap]") {
  simulator::Engine<ContinuousBatching, Uncached, SwapPreemption> engine(
      {.max_num_seqs = 8, .max_num_batched_tokens = 100}, 7, true, 20);
  engine.add(iota(7), 20);
  Sequence& beam = *add_beams(engine, iota(7, 100), 1, 20).front();
  for (int i = 0; i < 15; ++i) step(engine);
  REQUIRE(engine.scheduler.num_preemptions() == 1);
  CHECK(beam.status == SequenceStatus::awaiting_choice);
  CHECK((beam.kept.blocks.empty() && beam.kept.num_tokens == 0));
  CHECK(engine.scheduler.blocks().swap_stats().num_out == 0);
  CHECK(engine.scheduler.blocks().swap_stats().num_fallbacks == 0);
  CHECK(engine.scheduler.blocks().num_free_host() == 20);
  engine.scheduler.choices().apply(std::vector<Choice>{{&beam, &beam, 20}});
  for (int i = 0; i < 5; ++i) step(engine);  // the other one ends
  CHECK(describe(step(engine)) == "| 2:0-8!");
}

TEST_CASE("a cancelled step leaves a beam without the copy that may not have been made",
          "[beams]") {
  Simulated<Uncached> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 20);
  const auto beams = add_beams(engine, iota(6), 2);
  step(engine);
  engine.scheduler.choices().apply(
      std::vector<Choice>{{beams[0], beams[0], 20}, {beams[1], beams[0], 21}});
  step(engine);
  engine.scheduler.choices().apply(
      std::vector<Choice>{{beams[0], beams[1], 20}, {beams[1], beams[1], 21}});
  StepPlan plan = engine.scheduler.schedule();
  CHECK(describe(plan) == "1:7-8! 2:7-8! |");
  engine.scheduler.begin(plan);
  CHECK(plan.sequences[0].copies_block);
  CHECK_FALSE(plan.sequences[1].copies_block);
  engine.scheduler.cancel(plan);
  engine.scheduler.check_invariants();
  CHECK(describe(step(engine)) == "2:7-8! | 1:4-8!");
}

TEST_CASE("beams that have drawn make room when nothing else can run", "[beams]") {
  Simulated<Uncached> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 4);
  const auto beams = add_beams(engine, iota(9), 2, 7);
  step(engine);
  engine.scheduler.choices().apply(
      std::vector<Choice>{{beams[0], beams[0], 20}, {beams[1], beams[0], 21}});
  CHECK(describe(step(engine)) == "1:9-10! |");  // no room for the other
  CHECK(engine.scheduler.schedule().empty());
  CHECK(engine.scheduler.choices().preempt());
  engine.scheduler.check_invariants();
  CHECK(beams[0]->status == SequenceStatus::awaiting_choice);
  CHECK_FALSE(engine.scheduler.choices().preempt());
  CHECK(describe(step(engine)) == "| 2:0-10!");
  // After one that is awaiting_choice there is nothing to share.
  engine.scheduler.choices().apply(
      std::vector<Choice>{{beams[0], beams[0], 30}, {beams[1], beams[0], 31}});
  engine.scheduler.check_invariants();
  CHECK(engine.scheduler.num_running() == 0);
  CHECK(beams[1]->tokens.back() == 31);
  CHECK(beams[1]->tokens[9] == 20);
  CHECK(describe(step(engine)) == "| 1:0-11!");
}

TEST_CASE("where beams wait for places, not for blocks, what is held stays", "[beams][held]") {
  const bool has_place = GENERATE(false, true);  // for a second beam, but no block
  Simulated<Uncached> engine({.max_num_seqs = has_place ? 2 : 1, .max_num_batched_tokens = 100},
                             has_place ? 9 : 20);
  held_in(engine.scheduler, {.max_blocks = 5});
  Sequence held;
  held_in(engine.scheduler).add(held);
  engine.add(iota(15, 100), 2);
  engine.requests.back()->continues = &held;
  while (engine.scheduler.has_work()) step(engine);
  REQUIRE(held.block_table.size() == 4);
  const auto beams = add_beams(engine, iota(13), 2, 9);
  step(engine);
  engine.scheduler.choices().apply(
      std::vector<Choice>{{beams[0], beams[0], 20}, {beams[1], beams[0], 21}});
  CHECK(describe(step(engine)) == "2:13-14! |");
  REQUIRE(engine.scheduler.schedule().empty());
  CHECK(engine.scheduler.free_blocks());
  CHECK(held_in(engine.scheduler).num_blocks() == (has_place ? 0 : 4));
  CHECK(engine.scheduler.num_running() == (has_place ? 1 : 0));
  CHECK_FALSE(engine.scheduler.schedule().empty());
  held_in(engine.scheduler).remove(held);
}

TEST_CASE("a choice that makes no sense changes nothing", "[beams]") {
  Simulated<Hashed> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 20);
  const auto beams = add_beams(engine, iota(6), 2, 2);
  Sequence& other = engine.add(iota(3, 50));
  Sequence *a = beams[0], *b = beams[1];
  const auto refused = [&](std::vector<Choice> slots, const char* why) {
    const auto before = engine.scheduler.blocks().ref_counts();
    const std::vector<std::int32_t> counts(before.begin(), before.end());
    REQUIRE_THROWS_WITH(engine.scheduler.choices().apply(slots), Catch::Matchers::Contains(why));
    engine.scheduler.check_invariants();
    const auto after = engine.scheduler.blocks().ref_counts();
    CHECK(std::equal(counts.begin(), counts.end(), after.begin()));
  };
  refused({{b, a, 1}}, "beams: request 2 or its parent, request 1, does not await a choice");
  step(engine);
  refused({{&other, a, 1}}, "request 3 or its parent, request 1, does not await");
  refused({{a, a, 1}, {b, &other, 1}}, "request 2 or its parent, request 3, does not await");
  refused({{a, a, 1}, {a, a, 2}}, "request 1 gets two slots");
  engine.scheduler.choices().apply(std::vector<Choice>{{a, a, 20}, {b, a, 21}});
  step(engine);
  refused({{a, a, 1}}, "request 1 would have all its 8 tokens, and nothing to compute");
  StepPlan plan;
  plan.sequences.push_back({a, 7, 8, {{RowKind::draw, 7, 1}}});
  plan.num_tokens = 1;
  REQUIRE_THROWS_WITH(engine.scheduler.begin(plan),
                      Catch::Matchers::Contains("awaits a choice among the beams' candidates"));
}

namespace {

/// What happened, to be sure that everything did.
struct Coverage {
  std::int64_t choices = 0, copies = 0, awaiting_choice = 0, preempted = 0, cancelled = 0,
               aborted = 0, finished = 0, forks = 0, faults = 0, singles = 0;
  // With conversations and a pool of the host.
  std::int64_t continued = 0, given_up = 0, swapped_out = 0, swapped_in = 0, fallbacks = 0,
               host_hits = 0;
};

/// Beams of one request, best first, as the one who chooses sees them.
struct Group {
  std::vector<std::unique_ptr<Sequence>> beams;
  std::vector<std::vector<TokenId>> lists;  ///< tokens by rank; one before the first choice
  std::vector<Sequence*> slots;             ///< by rank
};

/// Requests with beams and without, on a pretended device. Where `Preemption` swaps, there are a
/// pool of the host and conversations, too, which requests of both kinds go on with.
template <class Policy, class Blocks, class Preemption = RecomputePreemption>
class BeamTraffic {
 public:
  static constexpr bool kSwaps = SwapsSequences<Preemption>;

  BeamTraffic(unsigned seed, bool prefix_caching, std::size_t depth, Coverage& coverage)
      : random_(seed),
        num_blocks_(2 + below((4 << (2 * below(3))) * (Blocks::block_size() == 1 ? 4 : 1))),
        num_host_blocks_(kSwaps ? below(2 * num_blocks_) : 0),
        scheduler_(random_config(), simulator::Engine<Policy, Blocks>::make_blocks(
                                        num_blocks_, prefix_caching, num_host_blocks_)),
        device_(num_blocks_, num_host_blocks_),
        depth_(depth),
        coverage_(coverage) {
    if (kSwaps) held_in(scheduler_, {.max_blocks = below(num_blocks_ + 1)});
  }

  void run(int num_steps) {
    for (int i = 0; kSwaps && i < 4; ++i) {
      held_.push_back(std::make_unique<Sequence>());
      held_in(scheduler_).add(*held_.back());
    }
    for (int i = 0; i < num_steps; ++i) {
      if (kSwaps) change_held();
      while (groups_.size() < (kSwaps ? 2 : 3) && below(3) == 0) arrive();
      while (singles_.size() < (kSwaps ? 8 : 3) && below(4) < (kSwaps ? 3 : 1)) arrive_alone();
      step();
    }
    for (int i = 0; !groups_.empty() || !singles_.empty(); ++i) {
      REQUIRE(i < 100000);
      step();
    }
    while (!under_way_.empty()) step();
    REQUIRE_FALSE(scheduler_.has_work());
    REQUIRE(scheduler_.num_waiting() == 0);
    for (const auto& held : held_) held_in(scheduler_).remove(*held);
    scheduler_.check_invariants();
    if constexpr (HasHostPool<Blocks>)
      REQUIRE(scheduler_.blocks().num_free_host() == num_host_blocks_);
    REQUIRE(scheduler_.blocks().num_free() == num_blocks_);
    REQUIRE(scheduler_.num_failed_inserts() == 0);
    coverage_.preempted += scheduler_.num_preemptions();
    coverage_.swapped_out += swaps_of(scheduler_.blocks()).num_out;
    coverage_.swapped_in += swaps_of(scheduler_.blocks()).num_in;
    coverage_.fallbacks += swaps_of(scheduler_.blocks()).num_fallbacks;
    coverage_.host_hits += tiers_of(scheduler_.blocks()).num_host_hit_tokens;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  BatchConfig random_config() {
    const int max_num_seqs = 1 + below(12);
    return {.max_num_seqs = max_num_seqs,
            .max_num_batched_tokens = max_num_seqs + below(2) * below(60),
            .prefix_wait_tokens = below(2) * (1 + below(8))};
  }

  std::vector<TokenId> random_prompt() {
    const int most = std::min(scheduler_.capacity_tokens() - 1, 40);
    std::vector<TokenId> tokens;
    for (int i = 1 + below(most); i > 0; --i) tokens.push_back(below(8) == 0 ? below(3) : 1);
    return tokens;
  }

  Sequence& any_held() { return *held_[index(below(static_cast<int>(held_.size())))]; }

  void change_held() {
    if (below(60) == 0) held_in(scheduler_).evict(any_held());
    if (below(30) == 0) {
      const Sequence& from = any_held();
      Sequence& to = any_held();
      if (&from != &to) held_in(scheduler_).copy(from, to);
    }
    scheduler_.check_invariants();
  }

  /// Which conversation goes on with `tokens`, which get its beginning then; null for none.
  Sequence* conversation(std::vector<TokenId>& tokens) {
    if (!kSwaps || below(3) == 0) return nullptr;
    Sequence& held = any_held();
    std::vector<TokenId> all = held.tokens;
    if (below(3) == 0) all.resize(index(below(static_cast<int>(all.size()) + 1)));
    all.insert(all.end(), tokens.begin(), tokens.end());
    const int most = std::min(scheduler_.capacity_tokens() - 1, 60);
    if (std::ssize(all) <= most) tokens.swap(all);
    return &held;
  }

  void arrive() {
    auto group = std::make_unique<Group>();
    std::vector<TokenId> tokens = random_prompt();
    Sequence* const held = conversation(tokens);
    const int length = static_cast<int>(tokens.size());
    const int max_new = std::min(1 + below(14), scheduler_.capacity_tokens() - length);
    group->beams = make_beams(next_id_, tokens, 1 + below(5), max_new);
    next_id_ += group->beams.size();
    group->lists = {tokens};
    group->slots = {group->beams[0].get()};
    const int priority = OrdersSequences<Policy> ? below(7) - 3 : 0;
    for (const auto& beam : group->beams) {
      beam->priority = priority;
      beam->continues = held;
      scheduler_.add(*beam);
    }
    groups_.push_back(std::move(group));
  }

  void arrive_alone() {
    std::vector<TokenId> tokens = random_prompt();
    Sequence* const held = conversation(tokens);
    singles_.push_back(request(next_id_++, tokens, 1 + below(kSwaps ? 40 : 20)));
    Sequence& s = *singles_.back();
    s.continues = held;
    s.max_total_tokens = std::min(s.max_total_tokens, scheduler_.capacity_tokens());
    expected_[s.id] = tokens_alone(std::move(tokens), s.max_total_tokens);
    scheduler_.add(s);
  }

  /// Lists of all that a failed `Choices::apply` must not have touched.
  std::vector<std::vector<std::int32_t>> state() const {
    std::vector<std::vector<std::int32_t>> out;
    for (const auto& group : groups_) {
      for (const auto& s : group->beams) {
        out.push_back(s->tokens);
        out.push_back(s->block_table);
        out.push_back({s->num_computed_tokens, static_cast<std::int32_t>(s->status),
                       s->awaits_choice ? 1 : 0});
      }
    }
    const auto counts = scheduler_.blocks().ref_counts();
    out.emplace_back(counts.begin(), counts.end());
    return out;
  }

  void step() {
    if (below(60) == 0 && !groups_.empty()) {
      end(*groups_[index(below(static_cast<int>(groups_.size())))]);
      ++coverage_.aborted;
    }
    retire();
    while (under_way_.size() < depth_ && begin()) {
    }
    if (below(40) == 0) {
      fail();
    } else if (!under_way_.empty()) {
      commit();
    }
    scheduler_.check_invariants();
    retire();
  }

  bool begin() {
    StepPlan plan = scheduler_.schedule();
    while (plan.empty() && under_way_.empty() && free_blocks()) plan = scheduler_.schedule();
    if (plan.empty()) {
      REQUIRE((!under_way_.empty() || !scheduler_.has_work()));
      return false;
    }
    std::vector<std::int32_t> sharers;  // of the block in which each range begins
    for (const PlannedSequence& p : plan.sequences) {
      const Sequence& s = *p.sequence;
      coverage_.forks += p.fork_of != nullptr ? 1 : 0;
      coverage_.continued += p.fork_of != nullptr && p.fork_of == s.continues ? 1 : 0;
      sharers.push_back(
          s.block_table.empty() ? 0 : scheduler_.blocks().ref_count(s.block_table.back()));
    }
    scheduler_.begin(plan);
    scheduler_.check_invariants();
    check_copies(plan, sharers);
    device_.launch(plan);
    under_way_.push_back(std::move(plan));
    return true;
  }

  /// As the engine does where nothing can be computed.
  bool free_blocks() {
    const std::int64_t num_preemptions = scheduler_.num_preemptions();
    const std::int32_t num_held = held_in(scheduler_).num_blocks();
    const bool makes_way = scheduler_.free_blocks();
    coverage_.awaiting_choice += scheduler_.num_preemptions() > num_preemptions ? 1 : 0;
    coverage_.given_up += held_in(scheduler_).num_blocks() < num_held ? 1 : 0;
    scheduler_.check_invariants();
    return makes_way;
  }

  void check_copies(const StepPlan& plan, const std::vector<std::int32_t>& sharers) {
    std::set<BlockId> targets, sources;
    for (const BlockCopy& copy : plan.block_copies) {
      REQUIRE(targets.insert(copy.to).second);
      sources.insert(copy.from);
    }
    for (const BlockId target : targets) REQUIRE(sources.count(target) == 0);
    std::set<BlockId> written;
    std::size_t num_copies = 0;
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& p = plan.sequences[i];
      num_copies += (p.copies_block ? 1 : 0) + (p.prefix.copy_tail ? 1 : 0);
      coverage_.copies += p.copies_block ? 1 : 0;
      if (p.copies_block) REQUIRE(sharers[i] > 1);  // nothing else is ever copied
      const auto first = index(p.begin / Blocks::block_size());
      for (std::size_t j = first; j < p.sequence->block_table.size(); ++j)
        REQUIRE(written.insert(p.sequence->block_table[j]).second);  // by one alone
      const BlockId block = p.sequence->block_table[first];
      REQUIRE(scheduler_.blocks().ref_count(block) == 1);
    }
    REQUIRE(num_copies == plan.block_copies.size());
  }

  void commit() {
    const StepPlan plan = std::move(under_way_.front());
    const std::vector<Drawn> draws = device_.wait();
    std::vector<StepOutcome> result = outcomes_of(plan);
    REQUIRE(result.size() == draws.size());
    for (std::size_t i = 0; i < draws.size(); ++i) {
      if (result[i].sequence->is_chosen) continue;
      result[i].tokens = draws[i].tokens;
      result[i].finish_reason = draws[i].reason;
      check_tokens(*result[i].sequence, draws[i].tokens);
    }
    scheduler_.commit(plan, result);
    under_way_.pop_front();
    scheduler_.check_invariants();
    for (const auto& group : groups_) choose(*group);
  }

  /// What `s` has, and with `more`, is what it would get alone. Its tokens go to its conversation
  /// when it ends.
  void check_tokens(const Sequence& s, const std::vector<TokenId>& more) {
    if (s.status == SequenceStatus::finished) return;
    std::vector<TokenId> tokens = s.tokens;
    tokens.insert(tokens.end(), more.begin(), more.end());
    std::vector<TokenId>& expected = expected_[s.id];
    REQUIRE(tokens.size() <= expected.size());
    REQUIRE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
    if (tokens.size() == expected.size()) expected.clear();  // it must end now
  }

  /// Steps under way are lost.
  void fail() {
    for (std::size_t n = under_way_.size(); n > 0 && below(2) == 0; --n) (void)device_.wait();
    device_.drop();
    for (; !under_way_.empty(); under_way_.pop_back()) scheduler_.cancel(under_way_.back());
    ++coverage_.cancelled;
  }

  /// Chooses if all beams have drawn: from the tokens alone, whatever happened on the way.
  void choose(Group& group) {
    const auto& beams = group.beams;
    if (beams[0]->status == SequenceStatus::finished) return;
    if (!std::all_of(beams.begin(), beams.end(), [](const auto& s) { return s->awaits_choice; }))
      return;
    for (std::size_t r = 0; r < group.lists.size(); ++r)
      REQUIRE(group.slots[r]->tokens == group.lists[r]);
    ++coverage_.choices;
    const auto num_tokens = static_cast<std::int32_t>(group.lists[0].size());
    if (num_tokens + 1 >= beams[0]->max_total_tokens) {
      end(group);
      ++coverage_.finished;
      return;
    }
    std::vector<Sequence*> free;
    for (const auto& s : beams) free.push_back(s.get());
    if (below(2) == 0) std::shuffle(free.begin(), free.end(), random_);
    std::uint64_t hash = 0;
    for (const auto& list : group.lists)
      for (const TokenId token : list) hash = contents(hash, token);
    std::set<std::pair<std::size_t, TokenId>> taken;
    std::vector<Choice> slots;
    std::vector<std::vector<TokenId>> lists;
    while (lists.size() < beams.size()) {
      hash = contents(hash, 77);
      // Few parents have many children.
      const std::size_t parent = (hash >> 20) % group.lists.size() % (1 + (hash >> 40) % 3);
      const auto token = static_cast<TokenId>((hash >> 50) % 6);
      if (!taken.insert({parent, token}).second) continue;
      slots.push_back({free[lists.size()], group.slots[parent], token});
      lists.push_back(group.lists[parent]);
      lists.back().push_back(token);
    }
    reorder_beams(slots);
    scheduler_.check_invariants();
    group.lists = std::move(lists);
    group.slots.clear();
    for (const Choice& slot : slots) group.slots.push_back(slot.sequence);
  }

  /// Makes the choice, now and then with a failure at its first allocation, then at its second,
  /// until it gets through. No failure may leave a trace.
  void reorder_beams(const std::vector<Choice>& slots) {
    const bool fails = below(4) == 0;
    for (int n = 1; fails; ++n) {
      const auto before = state();
      try {
        const faults::Armed armed(n);
        return scheduler_.choices().apply(slots);
      } catch (const std::bad_alloc&) {
      }
      ++coverage_.faults;
      REQUIRE(state() == before);
    }
    scheduler_.choices().apply(slots);
  }

  void end(Group& group) {
    for (const auto& s : group.beams) scheduler_.abort(*s);
  }

  void retire() {
    for (auto& group : groups_) {
      if (group->beams[0]->status != SequenceStatus::finished) continue;
      for (const auto& s : group->beams) REQUIRE(s->block_table.empty());
      gone_.push_back(std::move(group));
    }
    std::erase(groups_, nullptr);
    for (auto& s : singles_) {
      if (s->status != SequenceStatus::finished) continue;
      REQUIRE((s->block_table.empty() && s->kept.blocks.empty()));
      REQUIRE(expected_[s->id].empty());
      ++coverage_.singles;
      gone_singles_.push_back(std::move(s));
    }
    std::erase(singles_, nullptr);
  }

  std::mt19937 random_;
  std::int32_t num_blocks_;
  std::int32_t num_host_blocks_;
  Scheduler<Policy, Blocks, Preemption> scheduler_;
  Device<Blocks> device_;
  std::size_t depth_;
  Coverage& coverage_;
  RequestId next_id_ = 1;
  std::vector<std::unique_ptr<Group>> groups_, gone_;
  std::vector<std::unique_ptr<Sequence>> singles_, gone_singles_, held_;
  std::map<RequestId, std::vector<TokenId>> expected_;  ///< of singles that go on
  std::deque<StepPlan> under_way_;
};

}  // namespace

TEMPLATE_TEST_CASE("beams read the keys and values of their own tokens, whatever happens",
                   "[beams][random]", (std::pair<ContinuousBatching, Hashed>),
                   (std::pair<ContinuousBatching, Radix>), (std::pair<PrefillFirst, Uncached>),
                   (std::pair<PriorityWithin<5>, Radix>),
                   (std::pair<ContinuousBatching, BlockManager<1>>),
                   (std::pair<test::Fickle, BlockManager<16, RadixPrefixCache<16>>>)) {
  using Policy = typename TestType::first_type;
  using Blocks = typename TestType::second_type;
  const bool prefix_caching = GENERATE(true, false);
  const std::size_t depth = GENERATE(1u, 2u);
  Coverage c;
  for (unsigned i = 0; i < 40; ++i) {
    CAPTURE(i, prefix_caching, depth);
    BeamTraffic<Policy, Blocks> traffic(4700 + i, prefix_caching, depth, c);
    traffic.run(150);
  }
  CAPTURE(c.choices, c.copies, c.awaiting_choice, c.preempted, c.cancelled, c.aborted, c.finished,
          c.forks, c.faults, c.singles);
  CHECK(c.choices > 1000);
  CHECK((c.copies > 100) == (Blocks::block_size() > 1));
  if (!prefix_caching) CHECK(c.forks > 50);  // else the cache may have as much
  for (const std::int64_t n : {c.awaiting_choice, c.preempted, c.cancelled, c.finished, c.singles})
    CHECK(n > 20);
  CHECK(c.aborted > 10);
  CHECK(c.faults > 100);
}

TEMPLATE_TEST_CASE("beams, conversations and swapped requests read their own tokens together",
                   "[beams][random][swap]", (std::pair<ContinuousBatching, Hashed>),
                   (std::pair<test::Fickle, Radix>), (std::pair<PrefillFirst, Uncached>),
                   (std::pair<PriorityWithin<5>, Hashed>)) {
  using Policy = typename TestType::first_type;
  using Blocks = typename TestType::second_type;
  const bool prefix_caching = GENERATE(true, false);
  const std::size_t depth = GENERATE(1u, 2u);
  Coverage c;
  for (unsigned i = 0; i < 60; ++i) {
    CAPTURE(i, prefix_caching, depth);
    BeamTraffic<Policy, Blocks, SwapPreemption> traffic(5700 + i, prefix_caching, depth, c);
    traffic.run(150);
  }
  CAPTURE(c.choices, c.copies, c.awaiting_choice, c.preempted, c.cancelled, c.aborted, c.finished,
          c.forks, c.singles, c.continued, c.given_up, c.swapped_out, c.swapped_in, c.fallbacks,
          c.host_hits);
  CHECK(c.choices > 500);
  CHECK(c.copies > 50);
  for (const std::int64_t n : {c.preempted, c.cancelled, c.finished, c.singles, c.given_up})
    CHECK(n > 20);
  if (!prefix_caching || !std::is_same_v<Blocks, Radix>) CHECK(c.continued > 20);  // or cached
  for (const std::int64_t n : {c.awaiting_choice, c.swapped_out, c.swapped_in, c.fallbacks})
    CHECK(n > 5);
  CHECK((c.host_hits > 0) == (prefix_caching && !std::is_same_v<Blocks, Uncached>));
}

TEST_CASE("beams in a pool with room hold no full block twice, and copy one each at the most",
          "[beams]") {
  constexpr int kWidth = 6;
  Simulated<Radix> engine({.max_num_seqs = 8, .max_num_batched_tokens = 100}, 200);
  const auto beams = add_beams(engine, iota(10), kWidth, 60);
  std::mt19937 random(3);
  std::size_t num_copies = 0;
  for (int n = 0; n < 50; ++n) {
    const StepPlan plan = step(engine);
    REQUIRE(plan.num_tokens == (n == 0 ? 10 : kWidth));  // nothing is computed twice
    REQUIRE(plan.block_copies.size() < kWidth);
    num_copies += plan.block_copies.size();
    std::set<std::vector<TokenId>> prefixes;
    std::set<BlockId> blocks;
    for (const Sequence* s : beams) {
      for (std::size_t i = 0; i < s->block_table.size(); ++i) {
        blocks.insert(s->block_table[i]);
        const auto end = std::min<std::size_t>(4 * (i + 1), s->tokens.size());
        prefixes.emplace(s->tokens.begin(), s->tokens.begin() + static_cast<std::ptrdiff_t>(end));
      }
    }
    REQUIRE(blocks.size() == prefixes.size());
    std::vector<Choice> slots;
    for (int i = 0; i < kWidth; ++i) {
      const auto parent = n == 0 ? 0u : random() % kWidth;
      slots.push_back({beams[index(i)], beams[parent], 100 + i});
    }
    engine.scheduler.choices().apply(slots);
    engine.scheduler.check_invariants();
  }
  CHECK(num_copies > 50);
}
