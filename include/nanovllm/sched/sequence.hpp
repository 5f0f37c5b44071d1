#pragma once
/// A sequence: the tokens of one request and where their keys and values are.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/row_use.hpp"

namespace nanovllm {

/// The samples that steps under way draw for one sequence: each a row of its own step's logits,
/// oldest first. There are at most two steps, each with rows in a run, so nothing is allocated.
class PendingTokens {
 public:
  /// The newest step draws from rows [first, first + count) for the sequence.
  void push(std::int32_t first, std::int32_t count) {
    if (count == 0) return;
    (runs_[0].count == 0 ? runs_[0] : runs_[1]) = {first, count};
  }
  /// The samples of the oldest step that draws any are known.
  void pop_oldest() { runs_[0] = std::exchange(runs_[1], {}); }
  /// The newest step that draws any is taken back.
  void pop_newest() { (runs_[1].count == 0 ? runs_[0] : runs_[1]) = {}; }
  void clear() { runs_ = {}; }

  [[nodiscard]] bool empty() const { return runs_[0].count == 0; }
  [[nodiscard]] std::int32_t size() const { return runs_[0].count + runs_[1].count; }
  [[nodiscard]] std::int32_t operator[](std::int32_t i) const {
    return i < runs_[0].count ? runs_[0].first + i : runs_[1].first + (i - runs_[0].count);
  }

  friend bool operator==(const PendingTokens&, const PendingTokens&) = default;

 private:
  struct Run {
    std::int32_t first = 0, count = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };
  std::array<Run, 2> runs_{};
};

/// Where the scheduler keeps a sequence.
enum class SequenceStatus : std::uint8_t {
  waiting,
  running,
  awaiting_choice,  ///< in no queue and without blocks: its next token is to be chosen
  finished,
  parked,  ///< it is a BlockOwner's, and keeps its blocks for those that continue it
};

/// What is kept of a sequence outside of the pool that steps compute in, see Outside.
struct KeptTokens {
  std::vector<BlockId> blocks{};  ///< of another pool, hold its first tokens
  std::int32_t num_tokens = 0;
};

/// The scheduler's view of a request. Owned by the engine; the scheduler holds pointers, so a
/// sequence must stay where it is from `add` until it is finished.
///
/// Its tokens are the known ones, and after them those that steps under way are yet to draw.
struct alignas(64) Sequence {
  // What a step reads of every sequence is in two cache lines.
  RequestId id = 0;
  std::vector<TokenId> tokens;         ///< known: the prompt and what was generated
  PendingTokens pending;               ///< what steps under way draw for it
  std::int32_t num_prompt_tokens = 0;  ///< ≥ 1
  std::int32_t max_total_tokens = 0;   ///< most prompt and generated tokens

  std::uint64_t arrival = 0;  ///< rank in the order of arrival, from 1; set by the scheduler
  SequenceStatus status = SequenceStatus::waiting;
  FinishReason finish_reason = FinishReason::none;
  /// What steps draw for it are candidates: its tokens come by `Choices::apply`.
  bool is_chosen = false;
  /// It has nothing to compute before the next `Choices::apply`, or begins after the first one.
  bool awaits_choice = false;
  RowKind output = RowKind::draw;         ///< what its last token's row is for: *draw*, or *hidden*
  std::int32_t num_computed_tokens = 0;   ///< K and V of [0, n) are there after steps under way
  std::int32_t num_published_tokens = 0;  ///< that the prefix cache has been told of
  std::int32_t num_guesses = 0;           ///< of `guesses`, those that the step under way checks
  /// Rows that are still to be scored: of all tokens but the prompt's last, or of none, at first.
  /// While there are any, only tokens [0, scores.first) may be taken from elsewhere.
  RowUse scores{RowKind::score};
  std::vector<BlockId> block_table;  ///< block_table[i] holds tokens [i · B, (i + 1) · B)
  std::uint64_t mark = 0;            ///< of the last plan check that saw it: finds duplicates

  Sequence* earlier_waiting = nullptr;  ///< neighbours in the waiting queue
  Sequence* later_waiting = nullptr;
  PrefixMemo prefix_memo{};  ///< affects only time
  /// Samples of one request form a ring. All must live as long as this one. Null: no other.
  Sequence* next_sibling = nullptr;

  /// A parked sequence, its beginning, to which it leaves its blocks, and which must outlive it.
  Sequence* continues = nullptr;
  KeptTokens kept{};                   ///< while it waits
  std::vector<TokenId> guesses{};      ///< of what follows its tokens, for its next step to check
  std::int32_t num_cached_tokens = 0;  ///< taken from the prefix cache on first admission

  std::int64_t order = 0;     ///< lower goes before; set by the scheduler, see order_of
  std::int32_t priority = 0;  ///< lower is more urgent
  std::int32_t num_preemptions = 0;
  CacheSalt salt{};  ///< with which its blocks are in the prefix cache, and looked for

  [[nodiscard]] std::int32_t num_known_tokens() const {
    return static_cast<std::int32_t>(tokens.size());
  }
  /// Known and pending ones.
  [[nodiscard]] std::int32_t num_tokens() const { return num_known_tokens() + pending.size(); }
  [[nodiscard]] std::int32_t num_generated_tokens() const {
    return num_tokens() - num_prompt_tokens;
  }
  [[nodiscard]] bool has_pending_token() const { return !pending.empty(); }
  /// Whether the step under way draws several tokens for it, of which it may keep fewer, or its
  /// next token is not chosen yet: no other step can have it before its tokens are known.
  [[nodiscard]] bool is_unsettled() const {
    return pending.size() > 1 || awaits_choice || (is_chosen && !pending.empty());
  }
  /// Where token `position`, in [0, num_tokens()), comes from; a guess is taken as known.
  [[nodiscard]] TokenSource token_source(std::int32_t position) const {
    const std::int32_t i = position - num_known_tokens();
    if (i < 0) return TokenSource::known(tokens[static_cast<std::size_t>(position)]);
    if (i < num_guesses) return TokenSource::known(guesses[static_cast<std::size_t>(i)]);
    return TokenSource::sampled(pending[i]);
  }
  /// What the rows of a step that computes tokens [begin, end) are for. Those from the last token
  /// on give its output; after it, they are of guesses.
  [[nodiscard]] RowUses rows_in(std::int32_t begin, std::int32_t end) const {
    RowUses rows;
    if (scores.count > 0) rows.add(scores.within(begin, end));
    rows.add({output, num_tokens() - 1, end - num_tokens() + 1});
    return rows;
  }
  /// Whether it has all the tokens it may have, pending ones included: nothing is left to compute.
  [[nodiscard]] bool is_complete() const { return num_tokens() >= max_total_tokens; }
};

/// The order in which sequences are served: total, and the same as long as they live.
[[nodiscard]] inline bool goes_before(const Sequence& a, const Sequence& b) {
  return a.order != b.order ? a.order < b.order : a.arrival < b.arrival;
}

}  // namespace nanovllm
