// 900,000 steps of random traffic on tiny pools, one after the other and planned ahead, and some of
// them with failures at every point that can fail. A pretended KV memory tells whether every
// sequence reads, through its block table, exactly the keys and values of its own tokens; what it
// draws depends on them, so every request must get the tokens that it would get alone. They depend on
// the request's salt as well, so no two salts may share a block.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "kv/prefix/linear_cache.hpp"
#include "nanovllm/kv/eviction_by_value.hpp"
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
using test::Fickle;

namespace {

constexpr unsigned kSeed = 20241121;
constexpr int kStepsPerCase = 6250;  // of 144 cases

/// Two bits of hash: nearly everything collides.
struct PoorHash {
  static std::uint64_t hash(std::uint64_t parent, std::span<const TokenId> tokens) {
    return XxPrefixHash::hash(parent, tokens) & 3;
  }
};

/// What happened, to be sure that everything did.
struct Coverage {
  std::int64_t steps = 0, finished = 0, aborted = 0, cancelled = 0, preempted = 0, hits = 0,
               evictions = 0, mixed = 0, chunks = 0, paused = 0;
  // Planned ahead: what the next step has to do with sequences whose token is not known yet.
  std::int64_t ended_early = 0, preempted_pending = 0, ended_waiting = 0, ending = 0;
  std::int64_t guessed = 0, guessed_right = 0, copies = 0, faults = 0, failed_inserts = 0,
               forks = 0;
  std::int64_t overtaken = 0, displaced = 0;
  std::int64_t swapped_out = 0, swapped_in = 0, fallbacks = 0, swapped_pending = 0, cut = 0,
               shared_in = 0;
  std::int64_t host_hits = 0, saved = 0, lost = 0, dropped = 0, unswapped = 0;
  std::int64_t prompt_logits = 0, resumed_prompts = 0;
  std::int64_t salted = 0, salted_hits = 0, pooled = 0;
};

template <int kBlockSize>
using RadixBlocks = BlockManager<kBlockSize, RadixPrefixCache<kBlockSize>>;
using TieredRadixBlocks = TieredBlockManager<4, RadixPrefixCache<4>>;
/// Values that have nothing to do with what will be asked for.
struct Scrambled {
  static std::int64_t value(const BlockUse& use) noexcept { return use.last_use * 7919 % 13; }
};
using ScrambledHash = BlockManager<4, HashPrefixCache<4, XxPrefixHash, EvictionByValue<Scrambled>>>;
using ScrambledRadix = BlockManager<4, RadixPrefixCache<4, EvictionByValue<Scrambled>>>;
/// Whether the cache matches single tokens.
template <class Blocks>
constexpr bool kMatchesInside = false;
template <>
constexpr bool kMatchesInside<BlockManager<4, test::LinearCache<4>>> = true;
template <int kBlockSize>
constexpr bool kMatchesInside<RadixBlocks<kBlockSize>> = kBlockSize > 1;
template <>
constexpr bool kMatchesInside<TieredRadixBlocks> = true;
template <>
constexpr bool kMatchesInside<ScrambledRadix> = true;

/// A window that is short enough for all to age.
using Urgency = PriorityWithin<5>;

/// Guesses several tokens, and preempts for no reason.
struct FickleGuessing {
  template <class Blocks>
  static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                       const BatchConfig& config) {
    StepPlan plan = Fickle::plan(queues, blocks, config);
    return plan.preempted.empty() ? test::Guessing::plan(queues, blocks, config) : plan;
  }
};

/// Swaps nothing; the host's pool is there for the prefix cache.
struct Tiered : RecomputePreemption {};
template <class Preemption>
constexpr bool kHasHostPool = SwapsSequences<Preemption> || std::is_same_v<Preemption, Tiered>;

template <class Policy>
constexpr bool kFails = false;
template <class Policy>
constexpr bool kFails<faults::Scheduling<Policy>> = true;

template <class Policy, class Blocks, class Preemption>
class Traffic {
 public:
  /// `depth` steps may be under way.
  Traffic(unsigned seed, bool prefix_caching, std::size_t depth, Coverage& coverage)
      : random_(seed),
        choose_prompts_(seed),
        choose_salts_(seed),
        choose_pooled_(seed + 1),
        num_blocks_(1 + below(4 << (2 * below(3)))),
        num_host_blocks_(kHasHostPool<Preemption> ? below(1 + below(2 * num_blocks_)) : 0),
        scheduler_(random_config(), make_blocks(num_blocks_, prefix_caching, num_host_blocks_)),
        device_(num_blocks_, num_host_blocks_),
        depth_(depth),
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
    while (!under_way_.empty()) step();
    REQUIRE_FALSE(scheduler_.has_work());
    REQUIRE(scheduler_.blocks().num_free() == num_blocks_);
    if constexpr (HasHostPool<Blocks>)
      REQUIRE(scheduler_.blocks().num_free_host() == num_host_blocks_);
    coverage_.host_hits += tiers_of(scheduler_.blocks()).num_host_hit_tokens;
    coverage_.saved += tiers_of(scheduler_.blocks()).num_saved;
    coverage_.swapped_out += swaps_of(scheduler_.blocks()).num_out;
    coverage_.swapped_in += swaps_of(scheduler_.blocks()).num_in;
    coverage_.dropped += swaps_of(scheduler_.blocks()).num_dropped;
    coverage_.fallbacks += swaps_of(scheduler_.blocks()).num_fallbacks;
    REQUIRE(swaps_of(scheduler_.blocks()).num_out ==
            swaps_of(scheduler_.blocks()).num_in + swaps_of(scheduler_.blocks()).num_dropped);
    coverage_.preempted += scheduler_.num_preemptions();
    coverage_.hits += scheduler_.blocks().stats().num_hit_tokens;
    coverage_.evictions += scheduler_.blocks().stats().num_evictions;
    coverage_.failed_inserts += scheduler_.num_failed_inserts();
    if (!kFails<Policy>) REQUIRE(scheduler_.num_failed_inserts() == 0);
  }

 private:
  /// With a fixed hash seed, where there is one, so that a run can be repeated.
  static Blocks make_blocks(std::int32_t num_blocks, bool prefix_caching,
                            std::int32_t num_host_blocks) {
    constexpr std::uint64_t kHashSeed = 1;
    const auto make = [&] {
      if constexpr (std::constructible_from<Blocks, std::int32_t, bool, std::uint64_t>)
        return Blocks(num_blocks, prefix_caching, kHashSeed);
      else
        return Blocks(num_blocks, prefix_caching);
    };
    Blocks blocks = make();
    if constexpr (HasHostPool<Blocks>) blocks.add_host_pool(num_host_blocks);
    return blocks;
  }

  [[nodiscard]] std::int32_t num_free_host() const {
    if constexpr (HasHostPool<Blocks>) return scheduler_.blocks().host().num_free();
    return 0;
  }
  [[nodiscard]] std::int32_t size_of_tier() const {
    if constexpr (HasHostPool<Blocks>) return scheduler_.blocks().tier().size();
    return 0;
  }

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  BatchConfig random_config() {
    const int max_num_seqs = 1 + below(16);
    return {.max_num_seqs = max_num_seqs,
            .max_num_batched_tokens = max_num_seqs + (below(2) == 0 ? below(8) : below(100)),
            .prefix_wait_tokens = below(2) * (1 + below(8))};
  }

  /// A prompt that starts like one of four documents and ends on its own, of few distinct tokens.
  void arrive() {
    const int most = std::min(scheduler_.capacity_tokens() - 1, 120);
    const int length = 1 + below(below(4) == 0 ? most : std::min(most, 12));
    const int shared = below(length + 1);
    const int document = below(4);
    std::vector<TokenId> tokens;
    for (int i = 0; i < length; ++i)
      tokens.push_back(i < shared ? (document >> (i % 2)) & 1 : below(3));
    const int max_new = 1 + below(below(2) == 0 ? 20 + 8 * Blocks::block_size() : 12);
    const int num_samples = below(4) == 0 ? 2 + below(3) : 1;
    const bool is_pooled = num_samples == 1 && choose_pooled_() % 8 == 0;
    const std::size_t first = requests_.size();
    const int priority = OrdersSequences<Policy> ? below(7) - 3 : 0;
    // Few, that there is still much to be found.
    const auto salt = choose_salts_() % 4 == 0 ? CacheSalt::of(choose_salts_() % 2 == 0 ? "a" : "b")
                                               : CacheSalt();
    coverage_.salted += salt ? 1 : 0;
    for (int i = 0; i < num_samples; ++i) {
      requests_.push_back(request(requests_.size() + 1, tokens, max_new));
      Sequence& s = *requests_.back();
      s.max_total_tokens = std::min(s.max_total_tokens, scheduler_.capacity_tokens());
      if (OrdersSequences<Policy>) s.priority = priority;
      s.salt = salt;
      if (is_pooled) s.output = RowKind::hidden;
      if (is_pooled) s.max_total_tokens = length + 1;
      if (num_samples > 1) {
        s.next_sibling = requests_[first].get();
        if (i > 0) requests_[requests_.size() - 2]->next_sibling = &s;
      }
      live_.push_back(&s);
      expected_.push_back(is_pooled ? s.tokens : tokens_alone(s.tokens, s.max_total_tokens, salt));
    }
    if (choose_prompts_() % 6 == 0 && !is_pooled) requests_[first]->scores.count = length - 1;
    for (std::size_t i = first; i < requests_.size(); ++i) scheduler_.add(*requests_[i]);
  }

  /// All that the scheduler has written anywhere.
  struct State {
    struct Of {
      std::vector<TokenId> tokens;
      PendingTokens pending;
      std::vector<BlockId> table;
      SequenceStatus status;
      FinishReason reason;
      std::vector<BlockId> host_table;
      std::array<std::int32_t, 5> counts;
      bool operator==(const Of&) const = default;
    };
    std::vector<Of> sequences;
    std::vector<std::int32_t> ref_counts;
    std::array<std::int64_t, 16> counts;
    std::string next_plan;
    bool operator==(const State&) const = default;
  };
  State state() const {
    State state;
    for (const Sequence* s : live_) {
      state.sequences.push_back({s->tokens,
                                 s->pending,
                                 s->block_table,
                                 s->status,
                                 s->finish_reason,
                                 s->kept.blocks,
                                 {s->num_computed_tokens, s->num_cached_tokens, s->num_preemptions,
                                  s->kept.num_tokens, s->scores.count}});
    }
    const Blocks& blocks = scheduler_.blocks();
    state.ref_counts.assign(blocks.ref_counts().begin(), blocks.ref_counts().end());
    state.counts = {blocks.num_free(),
                    blocks.num_published(),
                    blocks.stats().num_hit_tokens,
                    blocks.stats().num_queried_tokens,
                    blocks.stats().num_evictions,
                    scheduler_.num_waiting(),
                    scheduler_.num_running(),
                    scheduler_.num_preemptions(),
                    num_free_host(),
                    size_of_tier(),
                    tiers_of(blocks).num_saved,
                    tiers_of(blocks).num_host_hit_tokens,
                    swaps_of(scheduler_.blocks()).num_out,
                    swaps_of(scheduler_.blocks()).num_in,
                    swaps_of(scheduler_.blocks()).num_dropped,
                    swaps_of(scheduler_.blocks()).num_fallbacks};
    if (under_way_.size() < 2) state.next_plan = describe(scheduler_.schedule());
    return state;
  }

  /// Makes `call`; in a run with faults now and then with a failure at its first point that can
  /// fail, then at its second, until it gets through. No failure may leave a trace.
  template <class Call>
  void attempt(Call call) {
    const bool fails = kFails<Policy> && below(6) == 0;
    for (int n = 1; fails; ++n) {
      const State before = state();
      try {
        const faults::Armed armed(n);
        return call();
      } catch (const faults::Injected&) {
      } catch (const std::bad_alloc&) {
      }
      ++coverage_.faults;
      scheduler_.check_invariants();
      REQUIRE(state() == before);
    }
    call();
  }

  void abort_some(int odds) {
    if (live_.empty() || below(odds) != 0) return;
    Sequence& s = *live_[static_cast<std::size_t>(below(static_cast<int>(live_.size())))];
    if (s.status == SequenceStatus::finished) return;
    attempt([&] { scheduler_.abort(s); });
    ++coverage_.aborted;
  }

  void step() {
    abort_some(50);
    retire();
    while (under_way_.size() < depth_ && begin()) {
    }
    abort_some(50);
    if (below(30) == 0) {
      fail();
    } else if (!under_way_.empty()) {
      commit();
    }
    scheduler_.check_invariants();
    retire();
    ++coverage_.steps;
  }

  /// Begins a step, if there is one to begin.
  bool begin() {
    StepPlan plan;
    attempt([&] { plan = scheduler_.schedule(); });
    REQUIRE(describe(scheduler_.schedule()) == describe(plan));
    check_plan_is_sound(plan);
    if (plan.empty()) return false;
    for (const Sequence* s : plan.preempted)
      coverage_.preempted_pending += s->has_pending_token() ? 1 : 0;
    attempt([&] { scheduler_.begin(plan); });
    for (const PlannedSequence& p : plan.sequences) {
      if (p.sequence->salt && p.fork_of == nullptr) coverage_.salted_hits += p.prefix.num_tokens;
      coverage_.forks += p.fork_of != nullptr ? 1 : 0;
      coverage_.copies += p.fork_of == nullptr && p.prefix.copy_tail ? 1 : 0;
      coverage_.shared_in += !p.prefix.outside.empty() && !p.prefix.blocks.empty() ? 1 : 0;
    }
    for (const Sequence* s : plan.preempted)
      coverage_.swapped_pending += s->has_pending_token() && s->kept.num_tokens > 0 ? 1 : 0;
    scheduler_.check_invariants();
    device_.launch(plan);
    under_way_.push_back(std::move(plan));
    return true;
  }

  /// The oldest step gives its tokens.
  void commit() {
    const StepPlan& plan = under_way_.front();
    const std::vector<Drawn> draws = device_.wait();
    std::vector<StepOutcome> result = outcomes(plan);
    REQUIRE(result.size() == draws.size());
    for (std::size_t i = 0; i < draws.size(); ++i) {
      result[i].tokens = draws[i].tokens;
      result[i].finish_reason = draws[i].reason;
      coverage_.guessed_right += draws[i].tokens.size() > 1 ? 1 : 0;
      const Sequence& s = *result[i].sequence;
      if (draws[i].reason == FinishReason::none || s.status == SequenceStatus::finished) continue;
      coverage_.ended_waiting += s.status == SequenceStatus::waiting ? 1 : 0;
      coverage_.ended_early += ends_early(plan, s) ? 1 : 0;
    }
    take_prompt_logits(plan);
    std::int64_t num_swapped = 0;
    for (const PlannedSequence& p : plan.sequences) num_swapped += p.sequence->kept.num_tokens;
    attempt([&] { scheduler_.commit(plan, result); });
    for (const PlannedSequence& p : plan.sequences) {
      if (p.sequence->status == SequenceStatus::waiting) num_swapped -= p.sequence->kept.num_tokens;
    }
    coverage_.cut += num_swapped > 0 ? 1 : 0;
    under_way_.pop_front();
  }

  /// Every row of a prompt that is wanted comes once, and in order.
  void take_prompt_logits(const StepPlan& plan) {
    for (const PlannedSequence& p : plan.sequences) {
      const RowUse scores = p.rows.of(RowKind::score);
      if (scores.count == 0 || p.sequence->status == SequenceStatus::finished) continue;
      std::int32_t& next = next_prompt_logit_[p.sequence];
      REQUIRE(scores.first == next);
      next = scores.end();
      coverage_.prompt_logits += scores.count;
      coverage_.resumed_prompts += p.prefix.num_tokens > 0 ? 1 : 0;
    }
  }

  /// Whether a running sequence that ends in `plan` is in the step after it, too.
  static bool ends_early(const StepPlan& plan, const Sequence& s) {
    const auto share = std::find_if(plan.sequences.begin(), plan.sequences.end(),
                                    [&](const PlannedSequence& p) { return p.sequence == &s; });
    return s.num_computed_tokens > share->end;
  }

  /// All steps under way are lost; the device may or may not have computed them.
  void fail() {
    for (std::size_t n = under_way_.size(); n > 0 && below(2) == 0; --n) (void)device_.wait();
    device_.drop();
    for (; !under_way_.empty(); under_way_.pop_back()) {
      const std::int32_t before = size_of_tier();
      const std::int64_t num_in = swaps_of(scheduler_.blocks()).num_in;
      const std::int64_t num_out = swaps_of(scheduler_.blocks()).num_out;
      attempt([&] { scheduler_.cancel(under_way_.back()); });
      scheduler_.check_invariants();
      coverage_.unswapped += num_in - swaps_of(scheduler_.blocks()).num_in;
      coverage_.unswapped += num_out - swaps_of(scheduler_.blocks()).num_out;
      coverage_.lost += before - size_of_tier();
    }
    ++coverage_.cancelled;
  }

  /// Laws of every plan of all policies.
  void check_plan_is_sound(const StepPlan& plan) {
    if (under_way_.empty() && !live_.empty()) REQUIRE_FALSE(plan.empty());
    std::map<const Sequence*, int> visits;
    std::int32_t num_tokens = 0, num_draws = 0, num_scores = 0;
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& p = plan.sequences[i];
      const bool is_decode_row = static_cast<std::int32_t>(i) < plan.num_decodes;
      if (is_decode_row) REQUIRE((p.rows.num_outputs() == 1 && p.num_tokens() == 1));
      if (p.rows.num_outputs() == 0) ++coverage_.chunks;
      if (p.rows.count(RowKind::draw) > 1) ++coverage_.guessed;
      num_tokens += p.num_tokens();
      num_draws += p.rows.count(RowKind::draw);
      num_scores += p.rows.count(RowKind::score);
      ++visits[p.sequence];
    }
    for (const Sequence* s : plan.preempted) ++visits[s];
    for (const auto& [s, n] : visits) REQUIRE(n == 1);
    REQUIRE(num_tokens == plan.num_tokens);
    REQUIRE(num_tokens <= scheduler_.config().max_num_batched_tokens);
    if (num_scores > 0) REQUIRE(num_draws + num_scores <= scheduler_.config().max_num_seqs);
    const auto num_rows = static_cast<std::int32_t>(plan.sequences.size());
    const bool mixed = plan.num_decodes > 0 && plan.num_decodes < num_rows;
    coverage_.mixed += mixed ? 1 : 0;
    if (std::is_same_v<Policy, PrefillFirst>) REQUIRE_FALSE(mixed);
    if (OrdersSequences<Policy>) return check_order_of_priority(plan, visits);
    check_order(visits);
  }

  /// First come first served, and the oldest running sequence is never held up, but for blocks that
  /// the step under way will free.
  void check_order(const std::map<const Sequence*, int>& visits) {
    const Sequence* oldest = nullptr;
    std::uint64_t last_running = 0;
    std::uint64_t first_waiting = ~std::uint64_t{0};
    std::int64_t num_ending = 0;
    bool sibling_runs = false;  // samples run in the order of admission, not of arrival
    for (const Sequence* s : live_) {
      sibling_runs |= s->next_sibling != nullptr && s->status == SequenceStatus::running;
      if (s->is_unsettled()) {
        if (s->status != SequenceStatus::running) continue;
        if (oldest == nullptr || s->arrival < oldest->arrival) oldest = s;
        last_running = std::max(last_running, s->arrival);
      } else if (s->is_complete()) {
        ++num_ending;
      } else if (s->status == SequenceStatus::running) {
        if (oldest == nullptr || s->arrival < oldest->arrival) oldest = s;
        last_running = std::max(last_running, s->arrival);
        coverage_.paused += visits.contains(s) ? 0 : 1;
      } else if (s->next_sibling == nullptr) {
        first_waiting = std::min(first_waiting, s->arrival);
      }
    }
    coverage_.ending += num_ending;
    if (std::is_same_v<Preemption, test::MostBlocks>) return;  // the old may wait behind the young
    if (scheduler_.config().prefix_wait_tokens > 0) return;
    REQUIRE(last_running < first_waiting);
    if (oldest != nullptr && num_ending == 0 && !sibling_runs &&
        !std::is_same_v<Policy, PrefillFirst>)
      REQUIRE(visits.contains(oldest) == !oldest->is_unsettled());
  }

  /// The first of all is never held up while it runs, but for blocks that the step under way will
  /// free; none overtakes another of those that wait; and who is preempted goes after one that has
  /// its turn.
  void check_order_of_priority(const StepPlan& plan, const std::map<const Sequence*, int>& visits) {
    const auto later_of = [](const Sequence* a, const Sequence* b) {
      return a == nullptr || goes_before(*a, *b) ? b : a;
    };
    const Sequence *first = nullptr, *first_left = nullptr, *last_admitted = nullptr;
    bool is_ending = false;
    for (const Sequence* s : live_) {
      if (s->is_complete() && !s->is_unsettled()) {
        is_ending = true;
        ++coverage_.ending;
        continue;
      }
      if (first == nullptr || goes_before(*s, *first)) first = s;
      if (s->status != SequenceStatus::waiting) continue;
      const bool may_wait =
          s->next_sibling != nullptr || scheduler_.config().prefix_wait_tokens > 0;
      if (visits.contains(s)) {
        last_admitted = later_of(last_admitted, s);
      } else if (may_wait) {
        continue;
      } else if (first_left == nullptr || goes_before(*s, *first_left)) {
        first_left = s;
      }
    }
    const Sequence* first_preempted = nullptr;
    for (const Sequence* s : plan.preempted) {
      if (first_preempted == nullptr || goes_before(*s, *first_preempted)) first_preempted = s;
    }
    if (first != nullptr && first->status == SequenceStatus::running && !is_ending)
      REQUIRE((visits.contains(first) || first->is_unsettled()));
    if (last_admitted != nullptr) {
      if (first_left != nullptr) REQUIRE(goes_before(*last_admitted, *first_left));
      if (first_preempted != nullptr) REQUIRE(goes_before(*last_admitted, *first_preempted));
      coverage_.displaced += first_preempted != nullptr ? 1 : 0;
      for (const Sequence* s : live_)
        coverage_.overtaken += s->arrival < last_admitted->arrival &&
                                       s->status == SequenceStatus::waiting && !visits.contains(s)
                                   ? 1
                                   : 0;
    }
    if (first_preempted != nullptr && !plan.sequences.empty()) {
      REQUIRE(std::ranges::any_of(plan.sequences, [&](const PlannedSequence& p) {
        return goes_before(*p.sequence, *first_preempted);
      }));
    }
    REQUIRE((plan.preempted.empty() || !plan.sequences.empty()));
  }

  /// Finished sequences leave; they hold nothing.
  void retire() {
    std::erase_if(live_, [&](const Sequence* s) {
      if (s->status != SequenceStatus::finished) return false;
      REQUIRE(s->block_table.empty());
      REQUIRE(s->kept.blocks.empty());
      REQUIRE(s->finish_reason != FinishReason::none);
      const std::vector<TokenId>& expected = expected_[s->id - 1];
      REQUIRE(s->tokens.size() <= expected.size());
      REQUIRE(std::equal(s->tokens.begin(), s->tokens.end(), expected.begin()));
      if (s->finish_reason != FinishReason::abort) REQUIRE(s->tokens.size() == expected.size());
      coverage_.pooled +=
          s->output == RowKind::hidden && s->finish_reason == FinishReason::stop ? 1 : 0;
      REQUIRE((s->finish_reason == FinishReason::abort || s->scores.count == 0));
      coverage_.finished += s->finish_reason != FinishReason::abort ? 1 : 0;
      return true;
    });
  }

  std::mt19937 random_, choose_prompts_, choose_salts_, choose_pooled_;
  std::int32_t num_blocks_;
  std::int32_t num_host_blocks_;
  Scheduler<Policy, Blocks, Preemption> scheduler_;
  Device<Blocks> device_;
  std::size_t depth_;
  Coverage& coverage_;
  std::vector<std::unique_ptr<Sequence>> requests_;
  std::vector<std::vector<TokenId>> expected_;
  std::vector<Sequence*> live_;
  std::map<const Sequence*, std::int32_t> next_prompt_logit_;
  std::deque<StepPlan> under_way_;
};

template <class Policy, class Blocks, class Preemption>
void run(unsigned seed, bool prefix_caching, std::size_t depth) {
  Coverage c;
  for (unsigned i = 0; c.steps < kStepsPerCase; ++i) {
    CAPTURE(seed, i, prefix_caching, depth);
    Traffic<Policy, Blocks, Preemption> traffic(seed + i, prefix_caching, depth, c);
    traffic.run(500);
  }
  CAPTURE(c.steps, c.finished, c.aborted, c.cancelled, c.preempted, c.hits, c.evictions, c.mixed,
          c.chunks, c.paused, c.ended_early, c.preempted_pending, c.ended_waiting, c.ending,
          c.guessed, c.guessed_right, c.copies, c.faults, c.failed_inserts, c.forks, c.overtaken,
          c.displaced, c.swapped_out, c.swapped_in, c.fallbacks, c.swapped_pending, c.cut,
          c.shared_in, c.host_hits, c.saved, c.lost, c.dropped, c.unswapped, c.prompt_logits,
          c.resumed_prompts, c.salted, c.salted_hits, c.pooled);
  if (!prefix_caching) CHECK(c.forks > 50);  // else the cache may have as much
  for (const std::int64_t n : {c.finished, c.aborted, c.cancelled}) CHECK(n > 100);
  CHECK(c.chunks > 20);
  CHECK(c.prompt_logits > 100);
  CHECK(c.preempted > (std::is_same_v<Policy, Fickle> ? 300 : 2));
  CHECK((c.hits > 0) == prefix_caching);
  CHECK(c.salted > 100);
  CHECK(c.pooled > 20);
  if (prefix_caching) CHECK(c.salted_hits > 0);
  CHECK((c.evictions > 0) == prefix_caching);
  if (std::is_same_v<Policy, ContinuousBatching>) CHECK((c.mixed > 100 && c.paused > 0));
  const bool ahead = depth > 1;
  CHECK((c.ended_early > 5) == ahead);
  CHECK((c.ending > 100) == ahead);
  if (std::is_same_v<Policy, Fickle>) {
    CHECK((c.preempted_pending > 100) == ahead);
    CHECK((c.ended_waiting > 0) == ahead);
  }
  if (std::is_same_v<Policy, test::Guessing> && Blocks::block_size() > 2)
    CHECK((c.guessed_right > 100 && c.guessed > c.guessed_right + 100));
  if (OrdersSequences<Policy>) CHECK((c.overtaken > 100 && c.displaced > 20));
  if (SwapsSequences<Preemption> && std::is_same_v<Policy, Fickle>) {
    CHECK((c.swapped_in > 15 && c.dropped > 5 && c.fallbacks > 20 && c.unswapped > 2));
    CHECK(c.resumed_prompts > 0);
    CHECK((c.swapped_pending > 50) == ahead);
    CHECK((c.shared_in > 0) == prefix_caching);
  } else if (SwapsSequences<Preemption> && std::is_same_v<Policy, FickleGuessing>) {
    CHECK((c.swapped_in > 50 && (c.cut > 10) == ahead));
  } else {
    CHECK((c.swapped_in > 0) == SwapsSequences<Preemption>);
  }
  if (!SwapsSequences<Preemption>) CHECK(c.resumed_prompts == 0);
  for (const std::int64_t n : {c.host_hits, c.saved, c.lost})
    CHECK((n > 20) == (kHasHostPool<Preemption> && prefix_caching));
  if (kMatchesInside<Blocks>) CHECK((c.copies > 100) == prefix_caching);
  if (kFails<Policy>) CHECK((c.faults > 1000 && (c.failed_inserts > 100) == prefix_caching));
}

template <class Policy, class Blocks, class Preemption = RecomputePreemption>
void run(unsigned seed) {
  std::printf("seed %u\n", seed);
  for (const std::size_t depth : {1u, 2u}) {
    for (const bool prefix_caching : {true, false})
      run<Policy, Blocks, Preemption>(seed, prefix_caching, depth);
  }
}

}  // namespace

// AddressSanitizer watches the memory of one block size of each kind; the order of things does not
// depend on it.
#if defined(__SANITIZE_ADDRESS__)
#define BLOCKS BlockManager<4>
#define RADIX_BLOCKS RadixBlocks<4>
#define TIERED_BLOCKS TieredBlockManager<4>
#else
#define BLOCKS                                        \
  BlockManager<1>, BlockManager<4>, BlockManager<16>, \
      (BlockManager<4, HashPrefixCache<4, PoorHash>>)
#define RADIX_BLOCKS RadixBlocks<1>, RadixBlocks<4>, RadixBlocks<16>
#define TIERED_BLOCKS \
  TieredBlockManager<1>, TieredBlockManager<2>, TieredBlockManager<4>, TieredRadixBlocks
#endif

TEMPLATE_TEST_CASE("random traffic: every request reads its own tokens, progresses and finishes",
                   "[scheduler][random]", BLOCKS) {
  SECTION("continuous batching") { run<ContinuousBatching, TestType>(kSeed); }
  SECTION("prefill first") { run<PrefillFirst, TestType>(kSeed + 1000); }
  SECTION("a fickle policy") { run<Fickle, TestType>(kSeed + 2000); }
  SECTION("several tokens a step") { run<test::Guessing, TestType>(kSeed + 3000); }
  SECTION("priority") { run<Urgency, TestType>(kSeed + 12000); }
}

TEMPLATE_TEST_CASE("random traffic with eviction by value", "[scheduler][random]", ScrambledHash,
                   ScrambledRadix) {
  SECTION("continuous batching") { run<ContinuousBatching, TestType>(kSeed + 15000); }
  SECTION("priority") { run<Urgency, TestType>(kSeed + 12000); }
}

TEMPLATE_TEST_CASE("random traffic with a radix cache", "[scheduler][random]", RADIX_BLOCKS) {
  SECTION("continuous batching") { run<ContinuousBatching, TestType>(kSeed + 9000); }
  SECTION("a fickle policy") { run<Fickle, TestType>(kSeed + 10000); }
  SECTION("several tokens a step") { run<test::Guessing, TestType>(kSeed + 11000); }
}

TEST_CASE("random traffic with caches and preemption of one's own", "[scheduler][random]") {
  SECTION("a cache of single tokens") {
    run<ContinuousBatching, BlockManager<4, test::LinearCache<4>>>(kSeed + 4000);
  }
  SECTION("a cache of single tokens, a fickle policy") {
    run<Fickle, BlockManager<4, test::LinearCache<4>>>(kSeed + 5000);
  }
  SECTION("the largest gives way") {
    run<ContinuousBatching, BlockManager<4>, test::MostBlocks>(kSeed + 6000);
  }
  SECTION("the largest of those far behind gives way") {
    run<Urgency, RadixBlocks<4>, test::MostBlocks>(kSeed + 13000);
  }
}

TEMPLATE_TEST_CASE("random traffic with swapping", "[scheduler][random][swap]", TIERED_BLOCKS) {
  SECTION("continuous batching") {
    run<ContinuousBatching, TestType, SwapPreemption>(kSeed + 20000);
  }
  SECTION("a fickle policy") { run<Fickle, TestType, SwapPreemption>(kSeed + 21000); }
}

TEMPLATE_TEST_CASE("random traffic with a prefix cache of two tiers", "[scheduler][random][tier]",
                   TIERED_BLOCKS) {
  SECTION("continuous batching") { run<ContinuousBatching, TestType, Tiered>(kSeed + 25000); }
  SECTION("a fickle policy") { run<Fickle, TestType, Tiered>(kSeed + 26000); }
}

TEST_CASE("random traffic with two tiers: several tokens a step, failures anywhere",
          "[scheduler][random][tier]") {
  SECTION("several tokens a step") {
    run<FickleGuessing, TieredRadixBlocks, Tiered>(kSeed + 27000);
  }
  SECTION("failures") {
    run<faults::Scheduling<Fickle>, TieredBlockManager<4, faults::Cache<4>>, Tiered>(kSeed + 28000);
  }
}

TEST_CASE("random traffic with swapping: priority, several tokens a step, failures anywhere",
          "[scheduler][random][swap]") {
  SECTION("priority") { run<Urgency, TieredBlockManager<4>, SwapPreemption>(kSeed + 22000); }
  SECTION("several tokens a step") {
    run<FickleGuessing, TieredBlockManager<4>, SwapPreemption>(kSeed + 23000);
  }
  SECTION("failures") {
    using Blocks = TieredBlockManager<4, faults::Cache<4>>;
    run<faults::Scheduling<Fickle>, Blocks, SwapPreemption>(kSeed + 24000);
  }
}

TEST_CASE("random traffic: a failure anywhere leaves queues, blocks and sequences as they were",
          "[scheduler][random]") {
  using Blocks = BlockManager<4, faults::Cache<4>>;
  SECTION("continuous batching") {
    run<faults::Scheduling<ContinuousBatching>, Blocks>(kSeed + 7000);
  }
  SECTION("a fickle policy") { run<faults::Scheduling<Fickle>, Blocks>(kSeed + 8000); }
  SECTION("priority") { run<faults::Scheduling<Urgency>, Blocks>(kSeed + 14000); }
}
