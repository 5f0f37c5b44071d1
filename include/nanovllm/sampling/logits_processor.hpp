#pragma once
/// Logits processors: rules of a sequence's own for what may be drawn next.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/ops/logit_edits.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// What the processors of a new sequence are made from. All of it outlives the sequence but
/// `prompt`.
struct LogitsProcessorSetup {
  const SamplingParams& params;
  std::span<const TokenId> end_tokens{};  ///< ascending; any of them would end the sequence
  std::span<const TokenId> prompt{};
  std::int64_t vocab_size = 0;
  std::span<const std::vector<TokenId>> bad_words{};  ///< of `params`, as tokens; none empty
};

/// Which tokens the next draw of one sequence must not give: some that are banned one by one, or a
/// bitmap of those that may come; and what is added to the logits of others. How that reaches the
/// sampler is not a processor's business.
class TokenMask {
 public:
  /// Adds to `banned`, which must outlive the mask.
  /// @param bits    where a bitmap is appended; null if nothing reads bitmaps: bans replace them.
  /// @param biases  gets the biases; null if nothing reads them.
  TokenMask(std::vector<TokenId>& banned, std::int64_t vocab_size,
            std::vector<std::uint32_t>* bits = nullptr, std::vector<TokenBias>* biases = nullptr)
      : banned_(banned), vocab_size_(vocab_size), bits_(bits), biases_(biases) {}

  [[nodiscard]] std::int64_t vocab_size() const { return vocab_size_; }
  /// Whether there is a bitmap.
  [[nodiscard]] bool has_bits() const { return begin_ >= 0; }

  /// Throws RequestError for a token that does not exist.
  void ban(TokenId token) {
    check_token(token);
    banned_.push_back(token);
  }
  void ban(std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) check_token(token);
    banned_.insert(banned_.end(), tokens.begin(), tokens.end());
  }

  /// Adds `bias` to the token's logit, before temperature and filters. Biases of a token add up.
  /// Throws RequestError for a token that does not exist, and Error where the policy's executor has
  /// no deferred steps (EditingExecutorLike).
  void add_bias(TokenId token, float bias) {
    check_token(token);
    check(biases_ != nullptr, "logits processor: a bias needs an executor with deferred steps");
    biases_->push_back({token, bias});
  }

  /// Bans every token for which `is_banned(token)`.
  template <std::predicate<TokenId> IsBanned>
  void ban_if(IsBanned is_banned) {
    std::vector<std::uint32_t> kept(num_words(), ~std::uint32_t{0});
    for (std::int64_t i = 0; i < vocab_size_; ++i) {
      if (is_banned(static_cast<TokenId>(i))) kept[word_of(i)] &= ~bit_of(i);
    }
    keep(kept);
  }

  /// Bans all tokens but `tokens`, of which there should be one at least.
  void allow_only(std::span<const TokenId> tokens) {
    std::vector<std::uint32_t> kept(num_words());
    for (const TokenId token : tokens) {
      check_token(token);
      kept[word_of(token)] |= bit_of(token);
    }
    keep(kept);
  }

  /// Bans every token whose bit is not set, and those that have none.
  /// @param kept  token i is bit i % 32 of word i / 32.
  void keep(std::span<const std::uint32_t> kept) {
    const auto word = [&](std::size_t i) { return i < kept.size() ? kept[i] : 0; };
    if (bits_ == nullptr) {
      for (std::int64_t i = 0; i < vocab_size_; ++i) {
        if ((word(word_of(i)) & bit_of(i)) == 0) banned_.push_back(static_cast<TokenId>(i));
      }
      return;
    }
    if (!has_bits()) {
      begin_ = static_cast<std::ptrdiff_t>(bits_->size());
      bits_->resize(bits_->size() + num_words(), ~std::uint32_t{0});
    }
    std::uint32_t* const own = bits_->data() + begin_;
    for (std::size_t i = 0; i < num_words(); ++i) own[i] &= word(i);
  }

 private:
  [[nodiscard]] std::size_t num_words() const {
    return static_cast<std::size_t>((vocab_size_ + 31) / 32);
  }
  [[nodiscard]] static std::size_t word_of(std::int64_t token) {
    return static_cast<std::size_t>(token / 32);
  }
  [[nodiscard]] static std::uint32_t bit_of(std::int64_t token) {
    return std::uint32_t{1} << (token % 32);
  }
  void check_token(TokenId token) const {
    check<RequestError>(token >= 0 && token < vocab_size_, "logits processor: token ", token,
                        " is not in [0, vocab_size = ", vocab_size_, ")");
  }

  std::vector<TokenId>& banned_;
  std::int64_t vocab_size_;
  std::vector<std::uint32_t>* bits_;
  std::vector<TokenBias>* biases_;
  std::ptrdiff_t begin_ = -1;  // of the bitmap in `bits_`; -1 without
};

/// A type of which each sequence has an object: made with the sequence, copied when the sequence
/// forks, told of every token that is drawn.
///
/// - `P(setup)`: for a new sequence.
/// - `accept(token)`: the sequence has got `token`. Not called for the prompt.
/// - `process(num_generated, mask)`, const: bans what the draw after `num_generated` generated
///   tokens must not give. The bans of several processors add up.
/// - `kReadsTokens`: whether bans depend on tokens that were accepted, and not on `num_generated`
///   and the setup alone. If so, `process` is called when the results of the step before are
///   known, while the device computes the forward pass of the next one. If objects differ in this,
///   `reads_tokens()`, const, says it for each.
/// - Optionally `applies(setup)`, static: whether a sequence needs it. A sequence has no object of
///   a processor that it does not need, and costs a step nothing if it needs none.
///
/// Log-probabilities are the model's, whatever is banned. A request of which a processor throws
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

  /// A copy for a sequence that continues separately from here.
  [[nodiscard]] virtual std::unique_ptr<SequenceProcessors> fork() const = 0;
  virtual void accept(TokenId token) = 0;
  virtual void process(std::int32_t num_generated, TokenMask& mask) const = 0;
  /// Whether `process` must know all tokens before the one that is to be drawn.
  [[nodiscard]] virtual bool reads_tokens() const = 0;
  /// Whether the text is complete, and no end token may say so: one of the processors has an
  /// `is_complete()` that is true.
  [[nodiscard]] virtual bool is_complete() const = 0;

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

  /// Whether `One` is among them.
  template <class One>
  static constexpr bool kHas = (std::is_same_v<One, P> || ...);

  /// Of these, one that a sequence of `setup` needs and that `Processors` have not: its kNeed.
  /// Null if there is none.
  template <class Processors>
  [[nodiscard]] static const char* missing_in(const LogitsProcessorSetup& setup) {
    const char* need = nullptr;
    ((need = !Processors::template kHas<P> && applies<P>(setup) ? P::kNeed : need), ...);
    return need;
  }

  /// Those that apply; null where none does.
  [[nodiscard]] static std::unique_ptr<SequenceProcessors> make(const LogitsProcessorSetup& setup);

 private:
  template <class One>
  static bool applies(const LogitsProcessorSetup& setup) {
    if constexpr (requires {
                    { One::applies(setup) } -> std::convertible_to<bool>;
                  }) {
      return One::applies(setup);
    } else {
      return true;
    }
  }
  template <class One>
  static std::optional<One> make_one(const LogitsProcessorSetup& setup) {
    return applies<One>(setup) ? std::optional<One>(std::in_place, setup) : std::nullopt;
  }

  struct State final : SequenceProcessors {
    explicit State([[maybe_unused]] const LogitsProcessorSetup& setup)
        : processors(make_one<P>(setup)...) {}
    State(const State&) = default;

    [[nodiscard]] std::unique_ptr<SequenceProcessors> fork() const override {
      return std::make_unique<State>(*this);
    }
    void accept([[maybe_unused]] TokenId token) override {
      for_each(processors, [&](auto& each) { each.accept(token); });
    }
    void process([[maybe_unused]] std::int32_t num_generated,
                 [[maybe_unused]] TokenMask& mask) const override {
      for_each(processors, [&](const auto& each) { each.process(num_generated, mask); });
    }
    [[nodiscard]] bool reads_tokens() const override {
      bool reads = false;
      for_each(processors, [&]<class One>(const One& each) {
        if constexpr (requires {
                        { each.reads_tokens() } -> std::convertible_to<bool>;
                      })
          reads = reads || each.reads_tokens();
        else
          reads = reads || One::kReadsTokens;
      });
      return reads;
    }

    [[nodiscard]] bool is_complete() const override {
      bool complete = false;
      for_each(processors, [&](const auto& each) {
        if constexpr (requires {
                        { each.is_complete() } -> std::convertible_to<bool>;
                      })
          complete = complete || each.is_complete();
      });
      return complete;
    }

    template <class Tuple, class Call>
    static void for_each(Tuple& tuple, const Call& call) {
      const auto one = [&](auto& processor) {
        if (processor) call(*processor);
      };
      std::apply([&](auto&... each) { (one(each), ...); }, tuple);
    }

    std::tuple<std::optional<P>...> processors;
  };
};

// Not inline: a program does not compile the standard ones again where nanovllm::nanovllm has.
template <class... P>
std::unique_ptr<SequenceProcessors> LogitsProcessors<P...>::make(
    [[maybe_unused]] const LogitsProcessorSetup& setup) {
  if (!(applies<P>(setup) || ...)) return nullptr;
  return std::make_unique<State>(setup);
}

/// `SamplingParams::min_tokens`: nothing that would end the sequence before that many tokens.
class MinTokensProcessor {
 public:
  static constexpr const char* kNeed = "min_tokens needs MinTokensProcessor";
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
