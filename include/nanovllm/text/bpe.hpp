#pragma once
/// Byte-pair encoding: the tokens of one piece of text, and a memory of pieces already encoded.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/text/check_stop.hpp"

namespace nanovllm {

/// What a pair of adjacent tokens merges into. One integer, so that comparing two merges compares
/// their ranks.
class Merge {
 public:
  constexpr Merge() = default;  ///< no merge: later than every other
  constexpr Merge(std::uint32_t rank, TokenId token)
      : packed_(std::uint64_t{rank} << 32 | static_cast<std::uint32_t>(token)) {}

  /// Place in the list of merges; merges of lower rank come first.
  [[nodiscard]] constexpr std::uint32_t rank() const {
    return static_cast<std::uint32_t>(packed_ >> 32);
  }
  [[nodiscard]] constexpr TokenId token() const { return static_cast<TokenId>(packed_); }
  [[nodiscard]] constexpr explicit operator bool() const { return packed_ != kNone; }
  constexpr auto operator<=>(const Merge&) const = default;

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t packed_ = kNone;
};

/// Maps pairs of tokens to merges: an open-addressing table, at most two thirds full. Lookups take
/// constant time and are thread-safe once the table is filled.
class MergeTable {
 public:
  explicit MergeTable(std::size_t num_merges = 0)
      : slots_(std::bit_ceil(num_merges + num_merges / 2 + 2)),
        shift_(64 - std::countr_zero(slots_.size())) {}

  /// Adds a pair or replaces its merge. Not more than the `num_merges` distinct pairs announced.
  void insert(TokenId left, TokenId right, Merge merge) {
    slots_[locate(key_of(left, right))] = {key_of(left, right), merge};
  }

  [[nodiscard]] Merge find(TokenId left, TokenId right) const {
    return slots_[locate(key_of(left, right))].merge;
  }

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };

  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  static std::uint64_t key_of(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }

  /// The slot of `key`, or the empty slot where it belongs.
  [[nodiscard]] std::size_t locate(std::uint64_t key) const {
    std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    std::size_t i = hash >> shift_;
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Slot> slots_;
  int shift_;
};

/// The buffers one thread needs to encode any number of pieces.
struct BpeScratch {
  std::vector<TokenId> tokens;
  std::vector<Merge> merges;        ///< merges[i] joins tokens[i] with the token after it
  std::vector<std::uint32_t> next;  ///< long pieces: linked list of the tokens left
  std::vector<std::uint32_t> previous;
  std::vector<std::uint64_t> heap;

  /// Memory that the buffers hold.
  [[nodiscard]] std::size_t bytes() const {
    return tokens.capacity() * sizeof(TokenId) + merges.capacity() * sizeof(Merge) +
           (next.capacity() + previous.capacity()) * sizeof(std::uint32_t) +
           heap.capacity() * sizeof(std::uint64_t);
  }
};

/// Merges the adjacent pair of lowest rank, the leftmost of equals, until none is left. Immutable
/// and thread-safe; each thread brings a BpeScratch.
class Bpe {
 public:
  /// `byte_tokens[b]` is the token of byte b.
  Bpe(const std::array<TokenId, 256>& byte_tokens, MergeTable merges)
      : byte_tokens_(byte_tokens), merges_(std::move(merges)) {}

  /// Appends the tokens of `piece` (below 4 GiB, any bytes) to `out`. O(n log n) time. Throws
  /// Cancelled, within some milliseconds, if a stop is requested; nothing is appended then.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out,
              const std::stop_token& stop = {}) const {
    const std::size_t n = piece.size();
    if (n == 0) return;
    scratch.tokens.resize(n);
    scratch.merges.resize(n);
    for (std::size_t i = 0; i < n; ++i)
      scratch.tokens[i] = byte_tokens_[static_cast<unsigned char>(piece[i])];
    for (std::size_t i = 0; i + 1 < n; ++i) {
      if (i % kUnchecked == kUnchecked - 1) check_stop(stop);  // not for short pieces
      scratch.merges[i] = merges_.find(scratch.tokens[i], scratch.tokens[i + 1]);
    }
    scratch.merges[n - 1] = Merge();
    if (n <= kShort) {
      encode_short(scratch, out);
    } else {
      encode_long(scratch, out, stop);
    }
  }

 private:
  /// Up to here a scan for the lowest merge beats a heap; anything from 16 to 128 would do.
  static constexpr std::size_t kShort = 32;
  /// Bytes that are looked at without a look at the stop.
  static constexpr std::size_t kUnchecked = 1 << 14;

  void encode_short(BpeScratch& s, std::vector<TokenId>& out) const {
    TokenId* tokens = s.tokens.data();
    Merge* merges = s.merges.data();
    std::size_t n = s.tokens.size();
    while (true) {
      const std::size_t i = std::min_element(merges, merges + n) - merges;
      if (!merges[i]) break;
      tokens[i] = merges[i].token();
      std::copy(tokens + i + 2, tokens + n, tokens + i + 1);
      std::copy(merges + i + 2, merges + n, merges + i + 1);
      --n;
      merges[i] = i + 1 < n ? merges_.find(tokens[i], tokens[i + 1]) : Merge();
      if (i > 0) merges[i - 1] = merges_.find(tokens[i - 1], tokens[i]);
    }
    out.insert(out.end(), tokens, tokens + n);
  }

  /// A heap of (rank, position). An entry is stale when the merge at its position has another rank
  /// by now; equal rank means the same pair, since a pair has one rank.
  void encode_long(BpeScratch& s, std::vector<TokenId>& out, const std::stop_token& stop) const {
    const auto n = static_cast<std::uint32_t>(s.tokens.size());
    s.next.resize(n);
    s.previous.resize(n);
    s.heap.clear();
    const auto entry = [&](std::uint32_t i) { return std::uint64_t{s.merges[i].rank()} << 32 | i; };
    for (std::uint32_t i = 0; i < n; ++i) {
      if (i % kUnchecked == 0) check_stop(stop);
      s.next[i] = i + 1;
      s.previous[i] = i - 1;  // wraps to kNone at the start
      if (s.merges[i]) s.heap.push_back(entry(i));
    }
    check_stop(stop);
    std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    const auto set_merge = [&](std::uint32_t i) {
      const std::uint32_t right = s.next[i];
      s.merges[i] = right < n ? merges_.find(s.tokens[i], s.tokens[right]) : Merge();
      if (!s.merges[i]) return;
      s.heap.push_back(entry(i));
      std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    };
    while (!s.heap.empty()) {
      check_stop(stop);
      std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
      const std::uint64_t top = s.heap.back();
      s.heap.pop_back();
      const auto i = static_cast<std::uint32_t>(top);
      if (!s.merges[i] || s.merges[i].rank() != top >> 32) continue;
      const std::uint32_t right = s.next[i];
      s.tokens[i] = s.merges[i].token();
      s.merges[right] = Merge();  // this position is gone
      s.next[i] = s.next[right];
      if (s.next[i] < n) s.previous[s.next[i]] = i;
      set_merge(i);
      if (s.previous[i] != kNone) set_merge(s.previous[i]);
    }
    for (std::uint32_t i = 0; i < n; i = s.next[i]) out.push_back(s.tokens[i]);
  }

  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::array<TokenId, 256> byte_tokens_;
  MergeTable merges_;
};

/// Direct-mapped cache from pieces of up to 31 bytes to up to 8 tokens. An entry is one cache line;
/// a newcomer replaces what lies in its slot. One megabyte, allocated on first use; one thread at
/// a time.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 31;
  static constexpr std::size_t kMaxTokens = 8;

  /// One slot, found for a word. `matches` says whether it holds that word's tokens.
  class Entry {
   public:
    [[nodiscard]] bool matches() const {
      std::uint64_t difference = 0;  // no early exit: quicker than std::array's comparison
      for (std::size_t i = 0; i < key_.size(); ++i) difference |= slot_->key[i] ^ key_[i];
      return difference == 0;
    }

    /// Appends the tokens to `out`; only if matches().
    void append_to(std::vector<TokenId>& out) const {
      for (TokenId token : slot_->tokens) {
        if (token < 0) break;
        out.push_back(token);
      }
    }

    /// Remembers the word's tokens, unless there are too many.
    void store(std::span<const TokenId> tokens) {
      if (tokens.size() > kMaxTokens) return;
      slot_->key = key_;
      slot_->tokens.fill(-1);
      std::copy(tokens.begin(), tokens.end(), slot_->tokens.begin());
    }

   private:
    friend class WordCache;
    using Key = std::array<std::uint64_t, 4>;  // the bytes, zeros, and the length as last byte

    struct alignas(64) Slot {
      Key key{};
      std::array<TokenId, kMaxTokens> tokens{};
    };

    Slot* slot_ = nullptr;
    Key key_{};
  };

  /// The entry for `word`, which must have 1…kMaxBytes bytes.
  [[nodiscard]] Entry find(std::string_view word) {
    if (slots_.empty()) slots_.resize(std::size_t{1} << kLogSlots);
    Entry entry;
    entry.key_ = key_of(word);
    std::uint64_t hash = entry.key_[0] * 0x9E3779B97F4A7C15u + entry.key_[1] * 0xC2B2AE3D27D4EB4Fu +
                         entry.key_[2] * 0x165667B19E3779F9u + entry.key_[3] * 0xD6E8FEB86659FD93u;
    hash = (hash ^ hash >> 32) * 0xFF51AFD7ED558CCDu;
    entry.slot_ = &slots_[hash >> (64 - kLogSlots)];
    return entry;
  }

 private:
  /// Loads whole words, and the last one as far as it goes: copying byte counts that vary is what
  /// would take the time here.
  static Entry::Key key_of(std::string_view word) {
    static_assert(std::endian::native == std::endian::little);
    const char* p = word.data();
    const std::size_t n = word.size(), tail = n % 8;
    Entry::Key key{};
    for (std::size_t i = 0; i < n / 8; ++i) key[i] = load<std::uint64_t>(p + 8 * i);
    std::uint64_t last = 0;
    if (n >= 8) {
      last = tail == 0 ? 0 : load<std::uint64_t>(p + n - 8) >> (64 - 8 * tail);
    } else if (n >= 4) {  // two halves that overlap where they agree
      last = load<std::uint32_t>(p) | std::uint64_t{load<std::uint32_t>(p + n - 4)}
                                          << (8 * (n - 4));
    } else {
      for (std::size_t i = 0; i < n; ++i)
        last |= std::uint64_t{static_cast<unsigned char>(p[i])} << (8 * i);
    }
    key[n / 8] = last;
    key[3] |= std::uint64_t{n} << 56;
    return key;
  }

  template <class Word>
  static Word load(const char* p) {
    Word word;
    std::memcpy(&word, p, sizeof(word));
    return word;
  }

  static constexpr int kLogSlots = 14;
  std::vector<Entry::Slot> slots_;
};

}  // namespace nanovllm
