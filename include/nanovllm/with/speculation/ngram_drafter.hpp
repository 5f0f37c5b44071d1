#pragma once
/// The drafter that looks up what followed the last tokens when they came before.
/// Source: Saxena, "Prompt lookup decoding", 2023.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/speculation/drafter.hpp"

namespace nanovllm {

/// Where each n-gram of one sequence came last, for n in [min, max]. Every token is entered once:
/// O(max − min) table entries a token, of at most 16 bytes.
class NgramIndex {
 public:
  /// @param min, max  1 ≤ min ≤ max.
  NgramIndex(std::int32_t min, std::int32_t max);

  /// The longest suffix of `tokens` with min to max tokens that also ends earlier, at its latest
  /// such end: appends the tokens from there on to `out`, `count` of them. Where they reach the end
  /// of `tokens` they go on with what was appended: the text repeats. Nothing if there is none.
  /// @param tokens  those of the call before, and maybe more.
  void look_up(std::span<const TokenId> tokens, std::int32_t count, std::vector<TokenId>& out);

 private:
  /// An open-addressed table of one n.
  struct Table {
    std::int32_t n = 0;
    std::int32_t num_entries = 0;
    std::vector<std::int32_t> ends{};  ///< one past an n-gram's last token; 0: empty. 2^i places
  };

  /// The place of the n-gram of `tokens` that ends at `end`: its own, or an empty one.
  [[nodiscard]] static std::size_t find(const Table& table, std::span<const TokenId> tokens,
                                        std::int32_t end);
  static void enter(Table& table, std::span<const TokenId> tokens, std::int32_t end);
  static void grow(Table& table, std::span<const TokenId> tokens);

  std::vector<Table> tables_;   // of the longest n first
  std::int32_t num_ended_ = 0;  // n-grams that end at [1, num_ended_] are entered
};

/// `SpeculativeConfig::prompt_lookup_max` and `prompt_lookup_min`. Sequences share nothing, so that
/// none can tell from times what another has.
class NgramDrafter final : public Drafter {
 public:
  static constexpr std::string_view kMethod = "ngram";

  explicit NgramDrafter(const DraftSetup& setup)
      : min_(setup.options.lookup_min()), max_(setup.options.lookup_max()) {}

  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const DraftRequest& request = requests[i];
      const auto index = indexes_.try_emplace(request.sequence, min_, max_).first;
      index->second.look_up(request.tokens, request.max_tokens, drafts[i].tokens);
    }
  }
  void forget(std::uint64_t sequence) noexcept override { indexes_.erase(sequence); }

 private:
  std::int32_t min_, max_;
  std::unordered_map<std::uint64_t, NgramIndex> indexes_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <utility>

namespace nanovllm {

NANOVLLM_INLINE NgramIndex::NgramIndex(std::int32_t min, std::int32_t max) {
  for (std::int32_t n = max; n >= min; --n) tables_.push_back({.n = n});
}

NANOVLLM_INLINE std::size_t NgramIndex::find(const Table& table, std::span<const TokenId> tokens,
                                             std::int32_t end) {
  const auto ngram_at = [&](std::int32_t e) {
    return tokens.subspan(static_cast<std::size_t>(e - table.n), static_cast<std::size_t>(table.n));
  };
  const std::span<const TokenId> ngram = ngram_at(end);
  std::uint64_t hash = 0;
  for (const TokenId token : ngram)
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  const std::size_t mask = table.ends.size() - 1;
  for (std::size_t place = static_cast<std::size_t>(hash >> 32) & mask;;
       place = (place + 1) & mask) {
    const std::int32_t other = table.ends[place];
    if (other == 0 || std::ranges::equal(ngram_at(other), ngram)) return place;
  }
}

NANOVLLM_INLINE void NgramIndex::grow(Table& table, std::span<const TokenId> tokens) {
  const std::vector<std::int32_t> before = std::exchange(
      table.ends, std::vector<std::int32_t>(std::max<std::size_t>(16, 2 * table.ends.size())));
  for (const std::int32_t end : before) {
    if (end != 0) table.ends[find(table, tokens, end)] = end;
  }
}

NANOVLLM_INLINE void NgramIndex::enter(Table& table, std::span<const TokenId> tokens,
                                       std::int32_t end) {
  if (end < table.n) return;
  if (static_cast<std::size_t>(table.num_entries) * 2 >= table.ends.size()) grow(table, tokens);
  std::int32_t& place = table.ends[find(table, tokens, end)];
  table.num_entries += place == 0 ? 1 : 0;
  place = end;
}

NANOVLLM_INLINE void NgramIndex::look_up(std::span<const TokenId> tokens, std::int32_t count,
                                         std::vector<TokenId>& out) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  for (; num_ended_ + 1 < size; ++num_ended_) {  // all but the suffixes, which end at `size`
    for (Table& table : tables_) enter(table, tokens, num_ended_ + 1);
  }
  for (const Table& table : tables_) {
    if (table.n >= size || table.ends.empty()) continue;
    const std::int32_t end = table.ends[find(table, tokens, size)];
    if (end == 0) continue;
    const std::size_t first = out.size();
    for (std::int32_t i = end; i < end + count; ++i)
      out.push_back(i < size ? tokens[static_cast<std::size_t>(i)]
                             : out[first + static_cast<std::size_t>(i - size)]);
    return;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
