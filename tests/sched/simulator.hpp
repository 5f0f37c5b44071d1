#pragma once
/// A pool of pretended keys and values, to see what a scheduler's plans read and write.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/with/sessions/held_sequences.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

namespace simulator {

using namespace nanovllm;

/// Nothing is counted where there is no pool in host memory.
template <class Blocks>
SwapStats swaps_of(const Blocks& blocks) {
  if constexpr (HasHostPool<Blocks>) return blocks.swap_stats();
  return {};
}
template <class Blocks>
TierStats tiers_of(const Blocks& blocks) {
  if constexpr (HasHostPool<Blocks>) return blocks.tier_stats();
  return {};
}

/// @param options  count in the first call.
template <class Policy, class Blocks, class Preemption>
HeldSequences& held_in(Scheduler<Policy, Blocks, Preemption>& scheduler,
                       const SessionOptions& options = {}) {
  const Extras extras{options};
  SchedulerInsideOf<Scheduler<Policy, Blocks, Preemption>> inside(scheduler, extras);
  return nanovllm::held_in(inside);
}

/// What comes before a sequence's first token. It depends on the salt, so that a sequence that
/// reads a block of another salt reads something wrong.
inline std::uint64_t contents_before(const CacheSalt& salt) { return salt.mixed_with(0); }

/// The key and value of a token depend on it and on all tokens before it; so does this.
inline std::uint64_t contents(std::uint64_t before, TokenId token) {
  std::uint64_t x = before * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(token) + 1;
  x ^= x >> 31;
  return x * 0xBF58476D1CE4E5B9u;
}

/// Copies blocks, in the order of the list.
template <class Blocks>
void copy_blocks(const std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to,
                 std::span<const BlockCopy> copies) {
  const auto at = [](auto& slots, BlockId block) {
    REQUIRE(block >= 0);
    REQUIRE((block + 1) * Blocks::block_size() <= std::ssize(slots));
    return slots.begin() + block * Blocks::block_size();
  };
  for (const BlockCopy& copy : copies)
    std::copy_n(at(from, copy.from), Blocks::block_size(), at(to, copy.to));
}

/// The lists of a plan.
struct Copies {
  explicit Copies(const StepPlan& plan)
      : down(plan.copies_down), inside(plan.block_copies), up(plan.copies_up) {}

  /// What StepPlan says of them.
  void check() const {
    std::vector<BlockId> on_host, on_device;
    for (const BlockCopy& copy : down) on_host.push_back(copy.to);
    for (const BlockCopy& copy : inside) on_device.push_back(copy.to);
    for (const BlockCopy& copy : up) on_device.push_back(copy.to);
    for (std::vector<BlockId>* targets : {&on_host, &on_device}) {
      std::sort(targets->begin(), targets->end());
      REQUIRE(std::adjacent_find(targets->begin(), targets->end()) == targets->end());
    }
    for (const BlockCopy& copy : up)
      REQUIRE_FALSE(std::binary_search(on_host.begin(), on_host.end(), copy.from));
    for (const BlockCopy& copy : inside)
      REQUIRE_FALSE(std::binary_search(on_device.begin(), on_device.end(), copy.from));
  }

  template <class Blocks>
  void make(std::vector<std::uint64_t>& device, std::vector<std::uint64_t>& host) const {
    copy_blocks<Blocks>(device, host, down);
    copy_blocks<Blocks>(device, device, inside);
    copy_blocks<Blocks>(host, device, up);
  }

  std::vector<BlockCopy> down, inside, up;
};

/// Memory that holds, for each slot, what was written there last.
template <class Blocks>
class Memory {
 public:
  explicit Memory(std::int32_t num_blocks, std::int32_t num_host_blocks = 0)
      : slots_(static_cast<std::size_t>(num_blocks) * Blocks::block_size(), 0),
        host_(static_cast<std::size_t>(num_host_blocks) * Blocks::block_size(), 0) {}

  void copy(const StepPlan& plan) {
    const Copies copies(plan);
    copies.check();
    copies.template make<Blocks>(slots_, host_);
  }

  /// Writes tokens [begin, end) of `s` through its block table.
  void write(const Sequence& s, std::int32_t begin, std::int32_t end) {
    std::uint64_t value = contents_before(s.salt);
    for (std::int32_t i = 0; i < end; ++i) {
      value = contents(value, s.tokens[static_cast<std::size_t>(i)]);
      if (i >= begin) slots_[slot(s, i)] = value;
    }
  }

  /// True if tokens [0, end) of `s` can be read through its block table.
  [[nodiscard]] bool holds(const Sequence& s, std::int32_t end) const {
    std::uint64_t value = contents_before(s.salt);
    for (std::int32_t i = 0; i < end; ++i) {
      value = contents(value, s.tokens[static_cast<std::size_t>(i)]);
      if (slots_[slot(s, i)] != value) return false;
    }
    return true;
  }

 private:
  static std::size_t slot(const Sequence& s, std::int32_t position) {
    return static_cast<std::size_t>(Blocks::slot(s.block_table, position));
  }

  std::vector<std::uint64_t> slots_;
  std::vector<std::uint64_t> host_;
};

/// A request with the prompt `tokens` and up to `max_new` generated tokens.
inline std::unique_ptr<Sequence> request(RequestId id, std::vector<TokenId> tokens,
                                         std::int32_t max_new) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->num_prompt_tokens = static_cast<std::int32_t>(tokens.size());
  s->max_total_tokens = s->num_prompt_tokens + max_new;
  s->tokens = std::move(tokens);
  return s;
}

/// first, first + 1, …
inline std::vector<TokenId> iota(std::int32_t n, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// A list of one small token that lives as long as the program.
inline std::span<const TokenId> one(TokenId token) {
  static const std::vector<TokenId> all = iota(1000);
  return std::span(all).subspan(static_cast<std::size_t>(token), 1);
}

/// One outcome for every sequence of `plan` that samples: `token`, and no end. One that gives its
/// hidden state ends without a token.
inline std::vector<StepOutcome> outcomes(const StepPlan& plan, TokenId token = 7) {
  std::vector<StepOutcome> result;
  for (const PlannedSequence& p : plan.sequences) {
    if (p.rows.count(RowKind::draw) > 0)
      result.push_back({p.sequence, one(token), FinishReason::none});
    if (p.rows.count(RowKind::hidden) > 0) result.push_back({p.sequence, {}, FinishReason::stop});
  }
  return result;
}

/// "1:0-4! 2:4-5" for request 1 computing [0, 4) and sampling, request 2 [4, 5) without, "!3" for
/// three samples; decodes and chunks are parted by '|', and preempted requests follow as "-3".
inline std::string describe(const StepPlan& plan) {
  std::string text;
  for (std::size_t i = 0; i <= plan.sequences.size(); ++i) {
    if (static_cast<std::int32_t>(i) == plan.num_decodes) text += text.empty() ? "|" : " |";
    if (i == plan.sequences.size()) break;
    const PlannedSequence& p = plan.sequences[i];
    const std::int32_t num_draws = p.rows.count(RowKind::draw);
    text += concat(text.empty() ? "" : " ", p.sequence->id, ":", p.begin, "-", p.end,
                   num_draws > 0 ? "!" : "");
    if (num_draws > 1) text += concat(num_draws);
  }
  for (const Sequence* s : plan.preempted) text += concat(" -", s->id);
  return text;
}

/// What a request with these tokens draws next: 0, 1 or 2, and 2 now and then ends it.
struct Draw {
  TokenId token;
  FinishReason reason;
};
inline Draw draw(std::uint64_t last_contents) {
  const std::uint64_t x = contents(last_contents, 12345) >> 20;
  const auto token = static_cast<TokenId>(x % 3);
  return {token, token == 2 && x / 3 % 25 == 0 ? FinishReason::stop : FinishReason::none};
}

/// What a sequence gets from a step: the draws up to the first wrong guess or the end.
struct Drawn {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::none;
};

/// A device that computes steps in the order of their launches and as late as it can: when their
/// results are asked for. It knows what `launch` was told and its memory, nothing else. Where a
/// sequence has several logits it makes the guesses itself, half of them right.
template <class Blocks>
class Device {
 public:
  explicit Device(std::int32_t num_blocks, std::int32_t num_host_blocks = 0)
      : slots_(static_cast<std::size_t>(num_blocks) * Blocks::block_size(), 0),
        host_(static_cast<std::size_t>(num_host_blocks) * Blocks::block_size(), 0) {}

  [[nodiscard]] std::size_t num_under_way() const { return steps_.size(); }

  void launch(const StepPlan& plan) {
    Step step{.copies = Copies(plan), .shares = {}};
    step.copies.check();
    for (const PlannedSequence& p : plan.sequences) {
      const Sequence& s = *p.sequence;
      Share share{{}, contents_before(s.salt), s.block_table, p.begin, p.end, p.rows};
      const std::int32_t num_guesses = std::max(0, p.rows.count(RowKind::draw) - 1);
      for (std::int32_t i = 0; i < p.end - num_guesses; ++i)
        share.sources.push_back(s.token_source(i));
      step.shares.push_back(std::move(share));
    }
    steps_.push_back(std::move(step));
  }

  /// Computes the oldest step: what those that sample get, in order.
  std::vector<Drawn> wait() {
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    step.copies.template make<Blocks>(slots_, host_);
    std::vector<Drawn> results;
    std::vector<TokenId> samples;
    std::vector<std::uint64_t> written;
    for (const Share& share : step.shares) {
      Drawn drawn;
      std::uint64_t value = share.before;
      bool guesses_right = true;
      samples.insert(samples.end(), static_cast<std::size_t>(share.rows.count(RowKind::score)), -1);
      const std::int32_t num_draws = share.rows.count(RowKind::draw);
      for (std::int32_t i = 0; i < share.end; ++i) {
        const TokenId token = input(share, i, value);
        if (i >= std::ssize(share.sources)) guesses_right &= token == draw(value).token;
        value = contents(value, token);
        std::uint64_t& slot = slots_[static_cast<std::size_t>(Blocks::slot(share.table, i))];
        if (i >= share.begin) slot = value;
        REQUIRE(slot == value);  // reads the keys and values of its own tokens
        if (i < share.end - num_draws) continue;
        const Draw next = draw(value);
        samples.push_back(next.token);
        if (!guesses_right || drawn.reason != FinishReason::none) continue;
        drawn.tokens.push_back(next.token);
        drawn.reason = next.reason;
      }
      written.push_back(value);
      if (share.rows.count(RowKind::hidden) > 0) drawn.reason = FinishReason::stop;
      if (share.rows.num_outputs() > 0) results.push_back(std::move(drawn));
    }
    for (std::size_t i = 0; i < step.shares.size(); ++i) {  // none has written over another's
      const Share& share = step.shares[i];
      REQUIRE(slots_[static_cast<std::size_t>(Blocks::slot(share.table, share.end - 1))] ==
              written[i]);
    }
    last_samples_ = std::move(samples);
    return results;
  }

  /// Forgets all steps under way, computed or not.
  void drop() { steps_.clear(); }

  /// What a block holds after the steps that were computed.
  [[nodiscard]] std::span<const std::uint64_t> block(BlockId block) const {
    return std::span(slots_).subspan(static_cast<std::size_t>(block) * kBlock, kBlock);
  }
  [[nodiscard]] std::span<std::uint64_t> host_block(BlockId block) {
    return std::span(host_).subspan(static_cast<std::size_t>(block) * kBlock, kBlock);
  }

 private:
  struct Share {
    std::vector<TokenSource> sources;  ///< of the tokens that are no guesses
    std::uint64_t before;              ///< the first token
    std::vector<BlockId> table;
    std::int32_t begin;
    std::int32_t end;
    RowUses rows;
  };
  struct Step {
    Copies copies;
    std::vector<Share> shares;
  };

  /// Token `i` of `share`, which follows the contents `before`.
  [[nodiscard]] TokenId input(const Share& share, std::int32_t i, std::uint64_t before) const {
    if (i >= std::ssize(share.sources))
      return static_cast<TokenId>((draw(before).token + (before >> 9 & 1)) % 3);
    const TokenSource source = share.sources[static_cast<std::size_t>(i)];
    if (source.is_known()) return source.token();
    return last_samples_.at(static_cast<std::size_t>(source.sample()));
  }

  static constexpr auto kBlock = static_cast<std::size_t>(Blocks::block_size());

  std::vector<std::uint64_t> slots_;
  std::vector<std::uint64_t> host_;
  std::deque<Step> steps_;
  std::vector<TokenId> last_samples_;
};

/// The tokens that a request gets whatever happens around it.
inline std::vector<TokenId> tokens_alone(std::vector<TokenId> tokens, std::int32_t max_total_tokens,
                                         const CacheSalt& salt = {}) {
  std::uint64_t value = contents_before(salt);
  for (const TokenId token : tokens) value = contents(value, token);
  while (static_cast<std::int32_t>(tokens.size()) < max_total_tokens) {
    const Draw next = draw(value);
    tokens.push_back(next.token);
    if (next.reason != FinishReason::none) break;
    value = contents(value, next.token);
  }
  return tokens;
}

/// A scheduler, its requests and a pretended pool, driven step by step. Every step checks what it
/// reads and writes.
template <class Policy, class Blocks, class Preemption = RecomputePreemption>
class Engine {
 public:
  Engine(const BatchConfig& config, std::int32_t num_blocks, bool prefix_caching = true,
         std::int32_t num_host_blocks = 0)
      : scheduler(config, make_blocks(num_blocks, prefix_caching, num_host_blocks)),
        memory(num_blocks, num_host_blocks) {}

  Sequence& add(std::vector<TokenId> tokens, std::int32_t max_new = 1000, std::int32_t priority = 0,
                const CacheSalt& salt = {}) {
    requests.push_back(request(requests.size() + 1, std::move(tokens), max_new));
    Sequence& s = *requests.back();
    s.priority = priority;
    s.salt = salt;
    s.max_total_tokens = std::min(s.max_total_tokens, scheduler.capacity_tokens());
    scheduler.add(s);
    return s;
  }

  /// Schedules, begins and computes a step.
  StepPlan start() {
    StepPlan plan = scheduler.schedule();
    scheduler.begin(plan);
    scheduler.check_invariants();
    memory.copy(plan);
    for (const PlannedSequence& p : plan.sequences) REQUIRE(memory.holds(*p.sequence, p.begin));
    for (const PlannedSequence& p : plan.sequences) memory.write(*p.sequence, p.begin, p.end);
    for (const PlannedSequence& p : plan.sequences) REQUIRE(memory.holds(*p.sequence, p.end));
    return plan;
  }

  /// A whole step in which all sequences that sample draw `token`. Returns `describe` of its plan.
  std::string step(TokenId token = 7) {
    const StepPlan plan = start();
    std::string text = describe(plan);
    scheduler.commit(plan, outcomes(plan, token));
    scheduler.check_invariants();
    return text;
  }

  static Blocks make_blocks(std::int32_t num_blocks, bool prefix_caching,
                            std::int32_t num_host_blocks) {
    Blocks blocks(num_blocks, prefix_caching);
    if constexpr (HasHostPool<Blocks>) blocks.add_host_pool(num_host_blocks);
    return blocks;
  }

  Scheduler<Policy, Blocks, Preemption> scheduler;
  Memory<Blocks> memory;
  std::vector<std::unique_ptr<Sequence>> requests;
};

}  // namespace simulator
