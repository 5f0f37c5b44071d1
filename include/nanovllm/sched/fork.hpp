#pragma once
/// What a waiting sequence can share with those that were made with the same prompt, or the one
/// that it continues.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// Where a waiting sequence can continue after tokens that another one has computed.
struct Fork {
  const Sequence* source = nullptr;  ///< runs, or is parked; null if there is none
  std::int32_t num_tokens = 0;       ///< computed by `source`, or in a step under way
  bool must_wait = false;            ///< there will be a source, as soon as its prompt is computed
};

/// Tokens with which both begin, of the first `most`, which both have.
[[nodiscard]] inline std::int32_t num_common_tokens(const Sequence& a, const Sequence& b,
                                                    std::int32_t most) {
  const auto differs = std::mismatch(a.tokens.begin(), a.tokens.begin() + most, b.tokens.begin());
  return static_cast<std::int32_t>(differs.first - a.tokens.begin());
}

/// What waiting sequence `s` has in common with the one that it continues: nothing if their salts
/// differ. O(tokens).
[[nodiscard]] inline Fork find_continued(const Sequence& s) {
  const Sequence* const source = s.continues;
  if (source == nullptr || source->status != SequenceStatus::parked || source->salt != s.salt)
    return {};
  const std::int32_t most =
      std::min({source->num_computed_tokens, s.num_known_tokens(), s.num_tokens() - 1});
  return {.source = source, .num_tokens = num_common_tokens(s, *source, most)};
}

/// The longest beginning of `s`, whose tokens are chosen, that the one it continues has, or a
/// sibling has computed. They part and meet at any token. O(siblings · tokens).
[[nodiscard]] inline Fork find_chosen_fork(const Sequence& s) {
  Fork fork = find_continued(s);
  for (const Sequence* at = s.next_sibling; at != nullptr && at != &s; at = at->next_sibling) {
    if (at->status != SequenceStatus::running) continue;
    const std::int32_t most =
        std::min({at->num_computed_tokens, at->num_known_tokens(), s.num_known_tokens() - 1});
    const std::int32_t num_common = num_common_tokens(s, *at, most);
    if (num_common > fork.num_tokens) fork = {.source = at, .num_tokens = num_common};
  }
  return fork;
}

/// Looks at the one that `s`, which waits, continues, and among its siblings. The last token of a
/// sequence is never shared: its logits are wanted. O(siblings), times their tokens if they are
/// chosen.
[[nodiscard]] inline Fork find_fork(const Sequence& s) {
  if (s.is_chosen) return find_chosen_fork(s);
  Fork fork = find_continued(s);
  const std::int32_t most = std::min(s.num_prompt_tokens, s.num_tokens() - 1);
  bool will_be = false;
  for (const Sequence* at = s.next_sibling; at != nullptr && at != &s; at = at->next_sibling) {
    if (at->status == SequenceStatus::finished) continue;
    if (at->status == SequenceStatus::running && at->num_computed_tokens >= most)
      return {.source = at, .num_tokens = most};
    will_be = will_be || at->arrival < s.arrival;
  }
  // One that was preempted does not wait again: it has a place among those before it.
  fork.must_wait = will_be && s.num_tokens() == s.num_prompt_tokens && most > 0;
  return fork;
}

/// The blocks of `fork`'s source that hold its tokens, the last one to be copied if it holds more.
[[nodiscard]] inline PrefixMatch shared_prefix(const Fork& fork, std::int32_t block_size) {
  const auto num_whole = static_cast<std::ptrdiff_t>(fork.num_tokens / block_size);
  const auto& table = fork.source->block_table;
  PrefixMatch match{.num_tokens = fork.num_tokens,
                    .blocks = {table.begin(), table.begin() + num_whole}};
  if (fork.num_tokens % block_size > 0)
    match.copy_tail = table[static_cast<std::size_t>(num_whole)];
  return match;
}

}  // namespace nanovllm
