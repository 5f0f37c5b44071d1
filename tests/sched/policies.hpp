#pragma once
/// Scheduling and preemption policies that live in tests alone.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/sched/plan_builder.hpp"
#include "nanovllm/sched/policy/continuous_batching.hpp"

namespace test {

using namespace nanovllm;

/// Continuous batching that preempts the youngest for no reason, again and again.
struct Fickle {
  template <class Blocks>
  static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                       const BatchConfig& config) {
    std::span<Sequence* const> running = queues.running;
    if (running.size() < 2 || running[0]->num_tokens() % 3 != 0 || queues.num_ending > 0)
      return ContinuousBatching::plan(queues, blocks, config);
    PlanBuilder<Blocks> builder(queues, blocks);
    builder.preempt(*running.back());
    running = running.first(running.size() - 1);
    builder.extend_oldest_first(running, config.max_num_batched_tokens - config.max_num_seqs + 1,
                                [](const Sequence&) { return true; });
    return builder.finish();
  }
};

/// Continuous batching that now and then guesses two tokens more where the last block has room, and
/// the rows of logits are not for prompts.
struct Guessing {
  template <class Blocks>
  static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                       const BatchConfig& config) {
    StepPlan plan = ContinuousBatching::plan(queues, blocks, config);
    const bool has_prompt_logits = std::ranges::any_of(
        plan.sequences, [](const PlannedSequence& p) { return p.rows.count(RowKind::score) > 0; });
    if (has_prompt_logits) return plan;
    std::vector<PlannedSequence> decodes, others;
    for (PlannedSequence& p : plan.sequences) {
      const Sequence& s = *p.sequence;
      const bool is_decode_row =
          others.size() + decodes.size() < static_cast<std::size_t>(plan.num_decodes);
      if (is_decode_row && (s.id + static_cast<std::uint64_t>(p.end)) % 3 == 0 &&
          p.end + 2 < s.max_total_tokens && plan.num_tokens + 2 <= config.max_num_batched_tokens &&
          Blocks::blocks_for(p.end + 2) == Blocks::blocks_for(p.end)) {
        p.end += 2;
        p.rows = s.rows_in(p.begin, p.end);
        plan.num_tokens += 2;
      }
      (is_decode_row && p.rows.count(RowKind::draw) == 1 ? decodes : others)
          .push_back(std::move(p));
    }
    plan.num_decodes = static_cast<std::int32_t>(decodes.size());
    plan.sequences = std::move(decodes);
    std::move(others.begin(), others.end(), std::back_inserter(plan.sequences));
    return plan;
  }
};

/// The shortest prompt gets in first.
struct ShortestFirst {
  template <class Blocks>
  static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                       const BatchConfig& config) {
    PlanBuilder<Blocks> builder(queues, blocks);
    std::int32_t budget = config.max_num_batched_tokens;
    for (const Sequence* s : queues.running) budget -= is_decode(*s) ? 1 : 0;
    budget -=
        builder.extend_oldest_first(queues.running, budget, [](const Sequence&) { return true; });
    if (builder.preempts()) return builder.finish();
    std::vector<Sequence*> waiting(queues.waiting.begin(), queues.waiting.end());
    std::ranges::stable_sort(waiting, {}, [](const Sequence* s) { return s->num_tokens(); });
    for (Sequence* s : waiting) {
      if (budget == 0 || std::cmp_greater_equal(builder.num_running(), config.max_num_seqs)) break;
      const std::int32_t n = builder.admit_chunk(*s, budget);
      if (n == 0) break;
      budget -= n;
    }
    return builder.finish();
  }
};

/// The sequence that holds most blocks gives way, and is remembered.
struct MostBlocks {
  [[nodiscard]] static std::size_t choose(std::span<Sequence* const> candidates) {
    const auto most = std::ranges::max_element(
        candidates, {}, [](const Sequence* s) { return s->block_table.size(); });
    return static_cast<std::size_t>(most - candidates.begin());
  }
  void vacate(const Sequence& s, std::vector<BlockCopy>&) noexcept {
    last_id = s.id;
    num_blocks += s.block_table.size();
  }

  RequestId last_id = 0;
  std::size_t num_blocks = 0;
};

}  // namespace test
