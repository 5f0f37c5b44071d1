#pragma once
/// A bounded memory of pieces already encoded: text repeats its words.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

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
