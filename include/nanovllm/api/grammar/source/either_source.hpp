#pragma once
/// A constraint that is one of two: an answer in a form, or calls of tools instead.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// Allows the texts of one source and those of another. A sequence may follow both while both
/// allow its text.
class EitherSource final : public TokenMaskSource {
 public:
  /// Both for the same vocabulary; RequestError otherwise.
  EitherSource(std::shared_ptr<const TokenMaskSource> first,
               std::shared_ptr<const TokenMaskSource> second)
      : first_(std::move(first)), second_(std::move(second)) {
    check<RequestError>(first_->vocab_size() == second_->vocab_size(),
                        "two constraints of one text need the same vocabulary, got those of ",
                        first_->vocab_size(), " and ", second_->vocab_size(), " tokens");
  }

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    std::vector<std::unique_ptr<TokenMatcher>> ways;
    ways.push_back(first_->matcher());
    ways.push_back(second_->matcher());
    return std::make_unique<Matcher>(std::move(ways), vocab_size());
  }
  [[nodiscard]] int vocab_size() const override { return first_->vocab_size(); }

 private:
  class Matcher final : public TokenMatcher {
   public:
    Matcher(std::vector<std::unique_ptr<TokenMatcher>> ways, int vocab_size)
        : ways_(std::move(ways)), vocab_size_(vocab_size) {}

    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      std::vector<std::unique_ptr<TokenMatcher>> ways;
      for (const auto& way : ways_) ways.push_back(way->clone());
      return std::make_unique<Matcher>(std::move(ways), vocab_size_);
    }

    [[nodiscard]] bool accept(TokenId token) override {
      std::vector<std::unique_ptr<TokenMatcher>> open;
      for (auto& way : ways_) {
        if (way->accept(token)) open.push_back(std::move(way));
      }
      if (open.empty()) return false;  // and both are as they were
      ways_ = std::move(open);
      return true;
    }

    void fill(std::span<std::uint32_t> bits) const override {
      ways_.front()->fill(bits);
      if (ways_.size() == 1) return;
      std::vector<std::uint32_t> more(num_mask_words(static_cast<std::size_t>(vocab_size_)), 0);
      ways_.back()->fill(more);
      for (std::size_t i = 0; i < more.size(); ++i) bits[i] |= more[i];
    }

    [[nodiscard]] bool is_finished() const override {
      return std::all_of(ways_.begin(), ways_.end(), [](auto& way) { return way->is_finished(); });
    }

   private:
    std::vector<std::unique_ptr<TokenMatcher>> ways_;  // one or two, those that are open yet
    int vocab_size_;
  };

  std::shared_ptr<const TokenMaskSource> first_, second_;
};

}  // namespace nanovllm
