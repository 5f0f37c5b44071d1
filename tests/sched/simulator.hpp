#pragma once
/// A pool of pretended keys and values, to see what a scheduler's plans read and write.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/scheduler.hpp"

namespace simulator {

using namespace nanovllm;

/// The key and value of a token depend on it and on all tokens before it; so does this.
inline std::uint64_t contents(std::uint64_t before, TokenId token) {
  std::uint64_t x = before * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(token) + 1;
  x ^= x >> 31;
  return x * 0xBF58476D1CE4E5B9u;
}

/// Memory that holds, for each slot, what was written there last.
template <class Blocks>
class Memory {
 public:
  explicit Memory(std::int32_t num_blocks)
      : slots_(static_cast<std::size_t>(num_blocks) * Blocks::block_size(), 0) {}

  /// Writes tokens [begin, end) of `s` through its block table.
  void write(const Sequence& s, std::int32_t begin, std::int32_t end) {
    std::uint64_t value = 0;
    for (std::int32_t i = 0; i < end; ++i) {
      value = contents(value, s.tokens[static_cast<std::size_t>(i)]);
      if (i >= begin) slots_[slot(s, i)] = value;
    }
  }

  /// True if tokens [0, end) of `s` can be read through its block table.
  [[nodiscard]] bool holds(const Sequence& s, std::int32_t end) const {
    std::uint64_t value = 0;
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

/// One outcome for every sequence of `plan` that samples: `token`, and no end.
inline std::vector<StepOutcome> outcomes(const StepPlan& plan, TokenId token = 7) {
  std::vector<StepOutcome> result;
  for (const PlannedSequence& p : plan.sequences) {
    if (p.samples) result.push_back({p.sequence, token, FinishReason::none});
  }
  return result;
}

/// "1:0-4! 2:4-5" for request 1 computing [0, 4) and sampling, request 2 [4, 5) without; decodes
/// and chunks are parted by '|', and preempted requests follow as "-3".
inline std::string describe(const StepPlan& plan) {
  std::string text;
  for (std::size_t i = 0; i <= plan.sequences.size(); ++i) {
    if (static_cast<std::int32_t>(i) == plan.num_decodes) text += text.empty() ? "|" : " |";
    if (i == plan.sequences.size()) break;
    const PlannedSequence& p = plan.sequences[i];
    text += concat(text.empty() ? "" : " ", p.sequence->id, ":", p.begin, "-", p.end,
                   p.samples ? "!" : "");
  }
  for (const Sequence* s : plan.preempted) text += concat(" -", s->id);
  return text;
}

/// A scheduler, its requests and a pretended pool, driven step by step. Every step checks what it
/// reads and writes.
template <class Policy, class Blocks>
class Engine {
 public:
  Engine(const BatchConfig& config, std::int32_t num_blocks, bool prefix_caching = true)
      : scheduler(config, Blocks(num_blocks, prefix_caching)), memory(num_blocks) {}

  Sequence& add(std::vector<TokenId> tokens, std::int32_t max_new = 1000) {
    requests.push_back(request(requests.size() + 1, std::move(tokens), max_new));
    Sequence& s = *requests.back();
    s.max_total_tokens = std::min(s.max_total_tokens, scheduler.capacity_tokens());
    scheduler.add(s);
    return s;
  }

  /// Schedules, begins and computes a step.
  StepPlan start() {
    const StepPlan plan = scheduler.schedule();
    scheduler.begin(plan);
    scheduler.check_invariants();
    for (const PlannedSequence& p : plan.sequences) REQUIRE(memory.holds(*p.sequence, p.begin));
    for (const PlannedSequence& p : plan.sequences) memory.write(*p.sequence, p.begin, p.end);
    for (const PlannedSequence& p : plan.sequences) REQUIRE(memory.holds(*p.sequence, p.end));
    return plan;
  }

  /// A whole step in which everybody samples `token`. Returns `describe` of its plan.
  std::string step(TokenId token = 7) {
    const StepPlan plan = start();
    std::string text = describe(plan);
    scheduler.commit(plan, outcomes(plan, token));
    scheduler.check_invariants();
    return text;
  }

  Scheduler<Policy, Blocks> scheduler;
  Memory<Blocks> memory;
  std::vector<std::unique_ptr<Sequence>> requests;
};

}  // namespace simulator
