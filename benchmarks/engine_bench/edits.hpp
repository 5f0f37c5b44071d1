#pragma once
/// Requests whose logits are edited, to see what that costs a step.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace engine_bench {

/// A constraint that allows half of the vocabulary, which half by the token before, and never ends.
class Halves final : public nanovllm::TokenMaskSource {
 public:
  explicit Halves(std::int64_t vocab_size) : vocab_size_(static_cast<int>(vocab_size)) {}

  [[nodiscard]] std::unique_ptr<nanovllm::TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>();
  }
  [[nodiscard]] int vocab_size() const override { return vocab_size_; }

 private:
  struct Matcher final : nanovllm::TokenMatcher {
    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(nanovllm::TokenId token) override {
      word = token % 4 < 2 ? 0x55555555u : 0xaaaaaaaau;
      return true;
    }
    void fill(std::span<std::uint32_t> bits) const override {
      std::fill(bits.begin(), bits.end() - 1, word);  // without the last tokens, of which one ends
    }
    [[nodiscard]] bool is_finished() const override { return false; }
    std::uint32_t word = 0x55555555u;
  };

  int vocab_size_;
};

/// Adds to requests what `kind` says: "none", "penalties", "mask", "both", or "one", a mask for the
/// first request alone.
class Edits {
 public:
  Edits(std::string kind, std::int64_t vocab_size)
      : kind_(std::move(kind)),
        end_token_(static_cast<nanovllm::TokenId>(vocab_size - 1)),
        masks_(std::make_shared<Halves>(vocab_size)) {}

  /// @param i  which request of a measurement it is, from 0.
  [[nodiscard]] nanovllm::SamplingParams operator()(nanovllm::SamplingParams params,
                                                    std::size_t i) const {
    if (kind_ == "penalties" || kind_ == "both") {
      params.repetition_penalty = 1.1f;
      params.frequency_penalty = 0.1f;
    }
    if (kind_ == "mask" || kind_ == "both" || (kind_ == "one" && i == 0)) {
      params.token_masks = masks_;
      params.stop_token_ids = {end_token_};
    }
    return params;
  }

 private:
  std::string kind_;
  nanovllm::TokenId end_token_;  // that a constraint needs, and no mask allows
  std::shared_ptr<const Halves> masks_;
};

}  // namespace engine_bench
