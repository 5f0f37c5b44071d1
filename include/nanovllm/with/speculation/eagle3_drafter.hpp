#pragma once
/// The drafter that is an EAGLE-3 head on the ranks of its target.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/with/speculation/drafter.hpp"
#include "nanovllm/with/speculation/eagle3/part.hpp"

namespace nanovllm {

/// Drafts with the head in the directory `SpeculativeConfig::model`. After every step, of prompts
/// too, it has each rank store the pairs of all tokens that the step has computed and the target
/// has kept; drafts are made in the same call. So each step waits for the one before it, be its
/// number of drafts 0. docs/speculation_eagle3.md says what a pair is.
class Eagle3Drafter : public Drafter {
 public:
  static constexpr std::string_view kMethod = "eagle3";
  using RankParts = Eagle3Parts;

  explicit Eagle3Drafter(const DraftSetup& setup) : runner_(*setup.runner) {}

  [[nodiscard]] bool reads_steps() const override { return true; }
  void begin(const StepPlan& plan) override;
  void commit(const StepPlan& plan) override;
  void cancel() noexcept override { num_rows_ = 0; }
  /// A sequence that the step before did not compute gets the drafts that it had then.
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override;
  void forget(std::uint64_t sequence) noexcept override { kept_.erase(sequence); }

 private:
  /// A sequence's share of a step. It is copied: by the next call the sequence may be gone.
  struct Rows {
    std::uint64_t sequence = 0;
    std::size_t place = 0;
    std::int32_t begin = 0, num_rows = 0;
    std::vector<TokenId> next{};
    std::vector<BlockId> blocks{};
  };
  struct Kept {
    std::size_t num_tokens = 0;  ///< of the sequence, when they were drafted
    std::vector<TokenId> tokens{};
  };

  /// What the ranks compute now: the rows of the step before, with drafts for those of `requests`
  /// whose last pair is among them. of_request[i] is the place of request i in it, or -1.
  [[nodiscard]] std::vector<Eagle3Rows> rows_for(std::span<const DraftRequest> requests,
                                                 std::vector<std::ptrdiff_t>& of_request) const;

  StepRunner& runner_;
  std::vector<Rows> rows_;  // of the step before; the first num_rows_ count, memory is kept
  std::size_t num_rows_ = 0;
  bool is_committed_ = false;  // the step's tokens are there
  std::unordered_map<std::uint64_t, Kept> kept_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <utility>

#include "nanovllm/engine/request/request_sequence.hpp"

namespace nanovllm {

NANOVLLM_INLINE void Eagle3Drafter::begin(const StepPlan& plan) {
  is_committed_ = false;
  num_rows_ = 0;
  if (rows_.size() < plan.sequences.size()) rows_.resize(plan.sequences.size());
  for (const PlannedSequence& planned : plan.sequences) {
    Rows& rows = rows_[num_rows_];
    rows.sequence = RequestSequence::of(*planned.sequence).owner_id();
    rows.place = num_rows_++;
    rows.begin = planned.begin;
    rows.num_rows = planned.num_tokens();
    rows.blocks = planned.sequence->block_table;
  }
}

NANOVLLM_INLINE void Eagle3Drafter::commit(const StepPlan& plan) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(num_rows_, plan.sequences.size()); ++i) {
    const std::vector<TokenId>& tokens = plan.sequences[i].sequence->tokens;
    Rows& rows = rows_[i];
    // The last token is one that was not computed: rows from it on are of refused guesses.
    const std::int32_t end =
        std::min(rows.begin + rows.num_rows, static_cast<std::int32_t>(tokens.size()) - 1);
    if (end <= rows.begin) continue;
    rows.next.assign(tokens.begin() + rows.begin + 1, tokens.begin() + end + 1);
    std::swap(rows, rows_[count++]);
  }
  num_rows_ = count;
  is_committed_ = true;
}

NANOVLLM_INLINE std::vector<Eagle3Rows> Eagle3Drafter::rows_for(
    std::span<const DraftRequest> requests, std::vector<std::ptrdiff_t>& of_request) const {
  std::vector<Eagle3Rows> out;
  std::unordered_map<std::uint64_t, std::ptrdiff_t> places;
  for (const Rows& rows : std::span(rows_).first(num_rows_)) {
    places[rows.sequence] = std::ssize(out);
    out.push_back({rows.place,
                   rows.num_rows,
                   {.begin = rows.begin, .next = rows.next, .blocks = rows.blocks}});
  }
  for (const DraftRequest& request : requests) {
    const auto found = places.find(request.sequence);
    of_request.push_back(-1);
    if (found == places.end()) continue;
    Eagle3Request& pairs = out[static_cast<std::size_t>(found->second)].request;
    // The last pair is of the token before the last.
    if (pairs.begin + std::ssize(pairs.next) + 1 != std::ssize(request.tokens)) continue;
    pairs.num_drafts = request.max_tokens;
    of_request.back() = found->second;
  }
  return out;
}

NANOVLLM_INLINE void Eagle3Drafter::propose(std::span<const DraftRequest> requests,
                                            std::span<Draft> drafts) {
  if (!is_committed_) num_rows_ = 0;
  std::vector<std::ptrdiff_t> of_request;
  const std::vector<Eagle3Rows> rows = rows_for(requests, of_request);
  num_rows_ = 0;  // streams are there for one call, be it the one that throws
  std::vector<std::vector<TokenId>> drafted;
  if (!rows.empty()) {
    runner_.on_parts([&](int rank, RankPart& part) {
      const auto& tokens = static_cast<Eagle3Part&>(part).draft(rows);
      if (rank == 0) drafted = tokens;
    });
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Kept& kept = kept_[requests[i].sequence];
    if (of_request[i] >= 0)
      kept = {requests[i].tokens.size(),
              std::move(drafted[static_cast<std::size_t>(of_request[i])])};
    if (kept.num_tokens == requests[i].tokens.size()) drafts[i].tokens = kept.tokens;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
