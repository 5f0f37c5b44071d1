#pragma once
/// A constraint for tests in which what may come depends on what was drawn before.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm::test {

/// Odd or even tokens, by what the last one was; of any number.
struct OddAndEven final : TokenMaskSource {
  struct Matcher final : TokenMatcher {
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId token) override {
      if ((token % 2 != 0) != wants_odd) return false;
      wants_odd = token % 4 < 2;
      return true;
    }
    void fill(std::span<std::uint32_t> bits) const override {
      std::fill(bits.begin(), bits.end() - 1, wants_odd ? 0xaaaaaaaau : 0x55555555u);
    }
    [[nodiscard]] bool is_finished() const override { return false; }
    bool wants_odd = true;
  };

  explicit OddAndEven(int vocab_size) : vocab(vocab_size) {}
  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>();
  }
  [[nodiscard]] int vocab_size() const override { return vocab; }
  int vocab;
};

}  // namespace nanovllm::test
