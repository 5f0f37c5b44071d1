// A hundred and fifty thousand steps of random traffic on tiny pools. A pretended KV memory tells
// whether every sequence reads, through its block table, exactly the keys and values of its own
// tokens.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/prefill_first.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "sched/simulator.hpp"

using namespace simulator;

namespace {

constexpr unsigned kSeed = 20241121;
constexpr int kStepsPerCase = 6250;  // of 24 cases

/// Two bits of hash: nearly everything collides.
struct PoorHash {
  static std::uint64_t hash(std::uint64_t parent, std::span<const TokenId> tokens) {
    return XxPrefixHash::hash(parent, tokens) & 3;
  }
};

/// Continuous batching that preempts the youngest for no reason, again and again.
struct Fickle {
  template <class Blocks>
  static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                       const BatchConfig& config) {
    std::span<Sequence* const> running = queues.running;
    if (running.size() < 2 || running[0]->num_tokens() % 3 != 0)
      return ContinuousBatching::plan(queues, blocks, config);
    PlanBuilder<Blocks> builder(queues, blocks);
    builder.preempt(*running.back());
    running = running.first(running.size() - 1);
    builder.extend_oldest_first(running, config.max_num_batched_tokens - config.max_num_seqs + 1,
                                [](const Sequence&) { return true; });
    return builder.finish();
  }
};

/// What happened, to be sure that everything did.
struct Coverage {
  std::int64_t steps = 0, finished = 0, aborted = 0, cancelled = 0, preempted = 0, hits = 0,
               evictions = 0, mixed = 0, chunks = 0, paused = 0;
};

template <class Policy, class Blocks>
class Traffic {
 public:
  Traffic(unsigned seed, bool prefix_caching, Coverage& coverage)
      : random_(seed),
        num_blocks_(1 + below(4 << (2 * below(3)))),
        engine_(random_config(), num_blocks_, prefix_caching),
        coverage_(coverage) {}

  /// Runs `num_steps` steps under load, then until all is done.
  void run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      while (live_.empty() || (live_.size() < 20 && below(3) == 0)) arrive();
      step();
    }
    // Each step computes a token, and only preemption makes a token be computed again; the oldest
    // sequence, which is never preempted, finishes within its length.
    std::int64_t bound = 0;
    for (const Sequence* s : live_) bound += s->max_total_tokens;
    for (std::int64_t i = 0; !live_.empty(); ++i) {
      REQUIRE(i <= 4 * bound);
      step();
    }
    REQUIRE_FALSE(scheduler().has_work());
    REQUIRE(scheduler().blocks().num_free() == num_blocks_);
    coverage_.preempted += scheduler().num_preemptions();
    coverage_.hits += scheduler().blocks().stats().num_hit_tokens;
    coverage_.evictions += scheduler().blocks().stats().num_evictions;
  }

 private:
  auto& scheduler() { return engine_.scheduler; }
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  BatchConfig random_config() {
    const int max_num_seqs = 1 + below(16);
    return {.max_num_seqs = max_num_seqs,
            .max_num_batched_tokens = max_num_seqs + (below(2) == 0 ? below(8) : below(100))};
  }

  /// A prompt that starts like one of four documents and ends on its own, of few distinct tokens.
  void arrive() {
    const int most = std::min(scheduler().capacity_tokens() - 1, 120);
    const int length = 1 + below(below(4) == 0 ? most : std::min(most, 12));
    const int shared = below(length + 1);
    const int document = below(4);
    std::vector<TokenId> tokens;
    for (int i = 0; i < length; ++i)
      tokens.push_back(i < shared ? (document >> (i % 2)) & 1 : below(3));
    live_.push_back(&engine_.add(std::move(tokens),
                                 1 + below(below(2) == 0 ? 20 + 8 * Blocks::block_size() : 12)));
  }

  void abort_some(int odds) {
    if (live_.empty() || below(odds) != 0) return;
    Sequence& s = *live_[static_cast<std::size_t>(below(static_cast<int>(live_.size())))];
    if (s.status == SequenceStatus::finished) return;
    scheduler().abort(s);
    ++coverage_.aborted;
  }

  void step() {
    abort_some(50);
    retire();
    if (live_.empty()) return;
    const StepPlan plan = scheduler().schedule();
    check_plan_is_sound(plan);
    REQUIRE(describe(scheduler().schedule()) == describe(plan));
    (void)engine_.start();
    abort_some(50);
    if (below(30) == 0) {
      scheduler().cancel(plan);
      ++coverage_.cancelled;
    } else {
      std::vector<StepOutcome> result = outcomes(plan);
      for (StepOutcome& o : result) {
        o.token = below(3);
        if (below(80) == 0) o.finish_reason = FinishReason::stop;
      }
      scheduler().commit(plan, result);
    }
    scheduler().check_invariants();
    retire();
    ++coverage_.steps;
  }

  /// Laws of every plan of all policies.
  void check_plan_is_sound(const StepPlan& plan) {
    REQUIRE_FALSE(plan.empty());
    std::map<const Sequence*, int> visits;
    std::int32_t num_tokens = 0;
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& p = plan.sequences[i];
      const bool is_decode_row = static_cast<std::int32_t>(i) < plan.num_decodes;
      if (is_decode_row) REQUIRE((p.samples && p.num_tokens() == 1));
      if (!p.samples) ++coverage_.chunks;
      num_tokens += p.num_tokens();
      ++visits[p.sequence];
    }
    for (const Sequence* s : plan.preempted) ++visits[s];
    for (const auto& [s, n] : visits) REQUIRE(n == 1);
    REQUIRE(num_tokens == plan.num_tokens);
    REQUIRE(num_tokens <= scheduler().config().max_num_batched_tokens);
    const auto num_rows = static_cast<std::int32_t>(plan.sequences.size());
    const bool mixed = plan.num_decodes > 0 && plan.num_decodes < num_rows;
    coverage_.mixed += mixed ? 1 : 0;
    if (std::is_same_v<Policy, PrefillFirst>) REQUIRE_FALSE(mixed);
    check_order(visits);
  }

  /// First come first served, and the oldest running sequence is never held up.
  void check_order(const std::map<const Sequence*, int>& visits) {
    const Sequence* oldest = nullptr;
    std::uint64_t last_running = 0;
    std::uint64_t first_waiting = ~std::uint64_t{0};
    for (const Sequence* s : live_) {
      if (s->status == SequenceStatus::running) {
        if (oldest == nullptr || s->arrival < oldest->arrival) oldest = s;
        last_running = std::max(last_running, s->arrival);
        coverage_.paused += visits.contains(s) ? 0 : 1;
      } else {
        first_waiting = std::min(first_waiting, s->arrival);
      }
    }
    REQUIRE(last_running < first_waiting);
    if (oldest != nullptr && !std::is_same_v<Policy, PrefillFirst>)
      REQUIRE(visits.contains(oldest));
  }

  /// Finished sequences leave; they hold nothing.
  void retire() {
    std::erase_if(live_, [&](const Sequence* s) {
      if (s->status != SequenceStatus::finished) return false;
      REQUIRE(s->block_table.empty());
      REQUIRE(s->finish_reason != FinishReason::none);
      REQUIRE(s->num_tokens() <= s->max_total_tokens);
      coverage_.finished += s->finish_reason != FinishReason::abort ? 1 : 0;
      return true;
    });
  }

  std::mt19937 random_;
  std::int32_t num_blocks_;
  simulator::Engine<Policy, Blocks> engine_;
  Coverage& coverage_;
  std::vector<Sequence*> live_;
};

template <class Policy, class Blocks>
void run(unsigned seed) {
  std::printf("seed %u\n", seed);
  for (const bool prefix_caching : {true, false}) {
    Coverage c;
    for (unsigned i = 0; c.steps < kStepsPerCase; ++i) {
      CAPTURE(seed, i, prefix_caching);
      Traffic<Policy, Blocks> traffic(seed + i, prefix_caching, c);
      traffic.run(500);
    }
    CAPTURE(c.steps, c.finished, c.aborted, c.cancelled, c.preempted, c.hits, c.evictions, c.mixed,
            c.chunks, c.paused);
    for (const std::int64_t n : {c.finished, c.aborted, c.cancelled, c.chunks}) CHECK(n > 100);
    CHECK(c.preempted > (std::is_same_v<Policy, Fickle> ? 500 : 2));
    CHECK((c.hits > 0) == prefix_caching);
    CHECK((c.evictions > 0) == prefix_caching);
    if (std::is_same_v<Policy, ContinuousBatching>) CHECK((c.mixed > 100 && c.paused > 0));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("random traffic: everybody reads their own tokens, progresses and finishes",
                   "[scheduler][random]", BlockManager<1>, BlockManager<4>, BlockManager<16>,
                   (BlockManager<4, PoorHash>)) {
  SECTION("continuous batching") { run<ContinuousBatching, TestType>(kSeed); }
  SECTION("prefill first") { run<PrefillFirst, TestType>(kSeed + 1000); }
  SECTION("a fickle policy") { run<Fickle, TestType>(kSeed + 2000); }
}
