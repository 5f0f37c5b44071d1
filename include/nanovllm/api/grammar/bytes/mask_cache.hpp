#pragma once
/// Token masks of an automaton's states, remembered as far as memory allows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// The tokens that may come next, as a list or as bits, whichever is smaller. Immutable.
class CompactMask {
 public:
  explicit CompactMask(std::vector<TokenId> tokens, std::size_t vocab_size)
      : tokens_(std::move(tokens)) {
    if (tokens_.size() < num_mask_words(vocab_size)) {
      tokens_.shrink_to_fit();
      return;
    }
    words_.resize(num_mask_words(vocab_size));
    for (TokenId token : tokens_) allow_token(words_, token);
    std::vector<TokenId>().swap(tokens_);
  }

  /// Sets the bits of the tokens in `bits`, all zero when called.
  void fill(std::span<std::uint32_t> bits) const {
    std::copy(words_.begin(), words_.end(), bits.begin());
    for (TokenId token : tokens_) allow_token(bits, token);
  }

  [[nodiscard]] std::size_t size_bytes() const {
    return sizeof(*this) + (tokens_.size() + words_.size()) * sizeof(std::uint32_t);
  }

 private:
  std::vector<TokenId> tokens_;       // empty where words_ are not
  std::vector<std::uint32_t> words_;  // all of the vocabulary's
};

/// Masks by the number of a state. When they need more than `max_bytes`, those go that were not
/// asked for of late (the clock algorithm); the newest stays. Thread-safe.
class MaskCache {
 public:
  MaskCache(std::size_t num_states, std::size_t max_bytes)
      : entries_(num_states), max_bytes_(max_bytes) {}

  /// The mask of `state`, from memory or else `make()`, a CompactMask. Two threads that ask at one
  /// time may both make it.
  template <class Make>
  [[nodiscard]] std::shared_ptr<const CompactMask> get(std::size_t state, Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      Entry& entry = entries_[state];
      entry.was_used = true;
      if (entry.mask) return entry.mask;
    }
    auto mask = std::make_shared<const CompactMask>(make());
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[state];
    if (!entry.mask) {
      entry.mask = mask;
      num_bytes_ += mask->size_bytes();
      while (num_bytes_ > max_bytes_ && !clock_.empty()) advance();
      clock_.push_back(state);
    }
    return mask;
  }

  [[nodiscard]] std::size_t size_bytes() const {
    const std::lock_guard lock(mutex_);
    return num_bytes_;
  }

 private:
  struct Entry {
    std::shared_ptr<const CompactMask> mask;
    bool was_used = false;
  };

  /// Forgets the mask under the clock's hand, or spares it once if it was used.
  void advance() {
    const std::size_t state = clock_.front();
    clock_.pop_front();
    Entry& entry = entries_[state];
    if (std::exchange(entry.was_used, false)) return clock_.push_back(state);
    num_bytes_ -= entry.mask->size_bytes();
    entry.mask.reset();
  }

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;     // by state
  std::deque<std::size_t> clock_;  // the states that have a mask, the hand at the front
  std::size_t num_bytes_ = 0;
  std::size_t max_bytes_;
};

}  // namespace nanovllm
