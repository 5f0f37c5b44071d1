#pragma once
/// Logits processors: rules of a sequence's own for what may be drawn next.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// What the processors of a new sequence are made from. All of it outlives the sequence but
/// `prompt`.
struct LogitsProcessorSetup {
  const SamplingParams& params;
  std::span<const TokenId> end_tokens{};  ///< ascending; any of them would end the sequence
  std::span<const TokenId> prompt{};
  std::int64_t vocab_size = 0;
};

/// Which tokens the next draw of one sequence must not give. How that reaches the sampler is not a
/// processor's business; it is a list today.
class TokenMask {
 public:
  /// Adds to `banned`, which must outlive the mask.
  TokenMask(std::vector<TokenId>& banned, std::int64_t vocab_size)
      : banned_(banned), vocab_size_(vocab_size) {}

  [[nodiscard]] std::int64_t vocab_size() const { return vocab_size_; }

  /// Throws RequestError for a token that does not exist.
  void ban(TokenId token) {
    check_token(token);
    banned_.push_back(token);
  }
  void ban(std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) check_token(token);
    banned_.insert(banned_.end(), tokens.begin(), tokens.end());
  }

  /// Bans every token for which `is_banned(token)`.
  template <std::predicate<TokenId> IsBanned>
  void ban_if(IsBanned is_banned) {
    for (std::int64_t i = 0; i < vocab_size_; ++i) {
      if (const auto token = static_cast<TokenId>(i); is_banned(token)) banned_.push_back(token);
    }
  }

  /// Bans all tokens but `tokens`, of which there should be one at least.
  void allow_only(std::span<const TokenId> tokens) {
    std::vector<bool> allowed(static_cast<std::size_t>(vocab_size_));
    for (const TokenId token : tokens) {
      check_token(token);
      allowed[static_cast<std::size_t>(token)] = true;
    }
    ban_if([&](TokenId token) { return !allowed[static_cast<std::size_t>(token)]; });
  }

 private:
  void check_token(TokenId token) const {
    check<RequestError>(token >= 0 && token < vocab_size_, "logits processor: token ", token,
                        " is not in [0, vocab_size = ", vocab_size_, ")");
  }

  std::vector<TokenId>& banned_;
  std::int64_t vocab_size_;
};

/// A type of which each sequence has an object of its own: made with the sequence, copied when the
/// sequence forks, told of every token that is drawn.
///
/// - `P(setup)`: for a new sequence.
/// - `accept(token)`: the sequence has got `token`. Not called for the prompt.
/// - `process(num_generated, mask)`, const: bans what the draw behind `num_generated` generated
///   tokens must not give. Several processors' bans add up.
/// - `kReadsTokens`: whether bans depend on tokens that were accepted, and not on `num_generated`
///   and the setup alone. If so, an engine plans no step before the results of the one ahead are
///   there.
/// - Optionally `applies(setup)`, static: whether a sequence needs it at all. One that needs none
/// of
///   its policy's processors has none, and costs a step nothing.
///
/// Log-probabilities are the model's own, whatever is banned. A request of which a processor throws
/// ends with that error; others do not notice.
template <class P>
concept LogitsProcessorLike = std::copy_constructible<P> &&
    std::constructible_from<P, const LogitsProcessorSetup&> &&
    requires(P& processor, const P& same, TokenMask& mask) {
  processor.accept(TokenId{});
  same.process(std::int32_t{}, mask);
  { P::kReadsTokens } -> std::convertible_to<bool>;
};

/// All processors of one sequence.
class SequenceProcessors {
 public:
  virtual ~SequenceProcessors() = default;
  SequenceProcessors& operator=(const SequenceProcessors&) = delete;

  /// A copy for a sequence that goes on from here on its own.
  [[nodiscard]] virtual std::unique_ptr<SequenceProcessors> fork() const = 0;
  virtual void accept(TokenId token) = 0;
  virtual void process(std::int32_t num_generated, TokenMask& mask) const = 0;

 protected:
  SequenceProcessors() = default;
  SequenceProcessors(const SequenceProcessors&) = default;
};

/// The policy slot: the processors that every sequence has, in this order.
template <class... P>
struct LogitsProcessors {
  static_assert((LogitsProcessorLike<P> && ...),
                "nanovllm: a logits processor must be copyable, be made from a "
                "'const LogitsProcessorSetup&' and have accept(TokenId), "
                "process(std::int32_t, TokenMask&) const and a static kReadsTokens; see "
                "sampling/logits_processor.hpp and docs/policies.md");

  static constexpr bool kReadsTokens = (P::kReadsTokens || ...);

  /// Null where none of them applies.
  [[nodiscard]] static std::unique_ptr<SequenceProcessors> make(
      [[maybe_unused]] const LogitsProcessorSetup& setup) {
    if (!(applies<P>(setup) || ...)) return nullptr;
    return std::make_unique<State>(setup);
  }

 private:
  template <class One>
  static bool applies(const LogitsProcessorSetup& setup) {
    if constexpr (requires { { One::applies(setup) } -> std::convertible_to<bool>; }) {
      return One::applies(setup);
    } else {
      return true;
    }
  }

  struct State final : SequenceProcessors {
    explicit State([[maybe_unused]] const LogitsProcessorSetup& setup) : processors(P(setup)...) {}
    State(const State&) = default;

    [[nodiscard]] std::unique_ptr<SequenceProcessors> fork() const override {
      return std::make_unique<State>(*this);
    }
    void accept([[maybe_unused]] TokenId token) override {
      std::apply([&](P&... each) { (each.accept(token), ...); }, processors);
    }
    void process([[maybe_unused]] std::int32_t num_generated,
                 [[maybe_unused]] TokenMask& mask) const override {
      std::apply([&](const P&... each) { (each.process(num_generated, mask), ...); }, processors);
    }

    std::tuple<P...> processors;
  };
};

/// `SamplingParams::min_tokens`: nothing that would end the sequence before that many tokens.
class MinTokensProcessor {
 public:
  static constexpr bool kReadsTokens = false;

  [[nodiscard]] static bool applies(const LogitsProcessorSetup& setup) {
    return setup.params.min_tokens > 0;
  }

  explicit MinTokensProcessor(const LogitsProcessorSetup& setup)
      : min_tokens_(setup.params.min_tokens), end_tokens_(setup.end_tokens) {}

  void accept(TokenId) {}
  void process(std::int32_t num_generated, TokenMask& mask) const {
    if (num_generated < min_tokens_) mask.ban(end_tokens_);
  }

 private:
  std::int32_t min_tokens_;
  std::span<const TokenId> end_tokens_;
};

}  // namespace nanovllm
