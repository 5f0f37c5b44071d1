#pragma once
/// A constraint whose masks may not cost more than so much time.
///
/// A grammar with several readings of a text can take longer with each token. Masks are made on the
/// thread of the engine's step, which all requests wait for, so such a request is ended.

#include <time.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// Time of the processor that the matcher of one sequence may take.
struct CpuBudget {
  std::chrono::nanoseconds at_first = std::chrono::milliseconds(500);
  std::chrono::nanoseconds per_token = std::chrono::milliseconds(2);
};

/// What another source allows, as long as that keeps to a budget. Beyond it `accept` and `fill`
/// throw RequestError, which ends the request. The call that goes beyond it comes to its end first.
class CpuBudgetSource final : public TokenMaskSource {
 public:
  explicit CpuBudgetSource(std::shared_ptr<const TokenMaskSource> inner, CpuBudget budget = {})
      : inner_(std::move(inner)), budget_(budget) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(inner_->matcher(), budget_, budget_.at_first);
  }
  [[nodiscard]] int vocab_size() const override { return inner_->vocab_size(); }

 private:
  class Matcher final : public TokenMatcher {
   public:
    Matcher(std::unique_ptr<TokenMatcher> inner, CpuBudget budget, std::chrono::nanoseconds left)
        : inner_(std::move(inner)), budget_(budget), left_(left) {}

    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(inner_->clone(), budget_, left_);
    }
    [[nodiscard]] bool accept(TokenId token) override {
      left_ += budget_.per_token;
      return spend([&] { return inner_->accept(token); });
    }
    void fill(std::span<std::uint32_t> bits) const override {
      spend([&] { return inner_->fill(bits), true; });
    }
    [[nodiscard]] bool is_finished() const override { return inner_->is_finished(); }

   private:
    template <class Call>
    bool spend(Call&& call) const {
      check<RequestError>(left_.count() > 0,
                          "the request's grammar is too ambiguous: finding out what may come next "
                          "takes longer than a request may");
      const std::chrono::nanoseconds before = now();
      const bool result = call();
      left_ -= now() - before;
      return result;
    }

    [[nodiscard]] static std::chrono::nanoseconds now() {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    }

    std::unique_ptr<TokenMatcher> inner_;
    CpuBudget budget_;
    mutable std::chrono::nanoseconds left_;  // a matcher is one thread's at a time
  };

  std::shared_ptr<const TokenMaskSource> inner_;
  CpuBudget budget_;
};

}  // namespace nanovllm
