#pragma once
/// A bounded memory of pieces already encoded: text repeats its words.

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// Direct-mapped cache from pieces of up to 31 bytes to up to 8 tokens. An entry is one cache line;
/// a newcomer replaces what lies in its slot. Two megabytes, allocated on first use; one thread at
/// a time.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 31;
  static constexpr std::size_t kMaxTokens = 8;

  /// One slot, found for a word. `matches` says whether it holds that word's tokens.
  class Entry {
   public:
    [[nodiscard]] bool matches() const { return slot_->key == key_; }

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
    auto* bytes = reinterpret_cast<char*>(entry.key_.data());
    std::memcpy(bytes, word.data(), word.size());
    bytes[kMaxBytes] = static_cast<char>(word.size());
    std::uint64_t hash = entry.key_[0] * 0x9E3779B97F4A7C15u + entry.key_[1] * 0xC2B2AE3D27D4EB4Fu +
                         entry.key_[2] * 0x165667B19E3779F9u + entry.key_[3] * 0xD6E8FEB86659FD93u;
    hash = (hash ^ hash >> 32) * 0xFF51AFD7ED558CCDu;
    entry.slot_ = &slots_[hash >> (64 - kLogSlots)];
    return entry;
  }

 private:
  static constexpr int kLogSlots = 15;
  std::vector<Entry::Slot> slots_;
};

}  // namespace nanovllm
