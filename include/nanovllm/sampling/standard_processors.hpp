#pragma once
/// The logits processors for fields of SamplingParams other than `min_tokens`:
/// `allowed_token_ids`, `bad_words` and `token_masks`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// `SamplingParams::allowed_token_ids`: nothing but these.
class AllowedTokensProcessor {
 public:
  static constexpr const char* kNeed = "allowed_token_ids needs AllowedTokensProcessor";
  static constexpr bool kReadsTokens = false;

  [[nodiscard]] static bool applies(const LogitsProcessorSetup& setup) {
    return !setup.params.allowed_token_ids.empty();
  }

  explicit AllowedTokensProcessor(const LogitsProcessorSetup& setup)
      : allowed_(setup.params.allowed_token_ids) {}

  void accept(TokenId) {}
  void process(std::int32_t, TokenMask& mask) const { mask.allow_only(allowed_); }

 private:
  std::span<const TokenId> allowed_;
};

/// `SamplingParams::bad_words`: not the last token of a word whose other tokens were generated just
/// before.
class BadWordsProcessor {
 public:
  static constexpr const char* kNeed = "bad_words needs BadWordsProcessor";
  static constexpr bool kReadsTokens = true;

  [[nodiscard]] static bool applies(const LogitsProcessorSetup& setup) {
    return !setup.bad_words.empty();
  }

  explicit BadWordsProcessor(const LogitsProcessorSetup& setup) : words_(setup.bad_words) {
    for (const std::vector<TokenId>& word : words_) longest_ = std::max(longest_, word.size());
  }

  /// Words of one token are banned whatever came before.
  [[nodiscard]] bool reads_tokens() const { return longest_ > 1; }

  void accept(TokenId token) {
    if (longest_ < 2) return;
    if (last_.size() + 1 == longest_) last_.erase(last_.begin());
    last_.push_back(token);
  }
  void process(std::int32_t, TokenMask& mask) const {
    for (const std::vector<TokenId>& word : words_) {
      const std::size_t n = word.size() - 1;
      if (n <= last_.size() &&
          std::equal(word.begin(), word.end() - 1, last_.end() - static_cast<std::ptrdiff_t>(n)))
        mask.ban(word.back());
    }
  }

 private:
  std::span<const std::vector<TokenId>> words_;
  std::size_t longest_ = 0;
  std::vector<TokenId> last_;  // generated, at most longest_ - 1
};

/// `SamplingParams::token_masks`: what a constraint allows, and an end token where it is complete.
/// Without end tokens the sequence ends there.
class TokenMaskProcessor {
 public:
  static constexpr const char* kNeed = "token_masks needs TokenMaskProcessor";
  static constexpr bool kReadsTokens = true;

  [[nodiscard]] static bool applies(const LogitsProcessorSetup& setup) {
    return setup.params.token_masks != nullptr;
  }

  explicit TokenMaskProcessor(const LogitsProcessorSetup& setup)
      : matcher_(setup.params.token_masks->matcher()),
        end_tokens_(setup.end_tokens),
        vocab_size_(static_cast<std::size_t>(setup.params.token_masks->vocab_size())),
        // A beam whose text is complete too early is dropped, and others go on.
        min_tokens_(setup.params.beam_width ? 0 : setup.params.min_tokens) {
    check<RequestError>(matcher_ != nullptr, "token_masks: expected a matcher, got null");
  }

  TokenMaskProcessor(const TokenMaskProcessor& other)
      : matcher_(other.matcher_->clone()),
        end_tokens_(other.end_tokens_),
        vocab_size_(other.vocab_size_),
        min_tokens_(other.min_tokens_) {}
  TokenMaskProcessor& operator=(const TokenMaskProcessor&) = delete;
  TokenMaskProcessor(TokenMaskProcessor&&) noexcept = default;

  void accept(TokenId token) {
    if (ends(token)) return;  // of the sequence; nothing to match after it
    check<RequestError>(matcher_->accept(token), "token_masks: token ", token,
                        " was drawn, which its mask does not allow");
  }

  [[nodiscard]] bool is_complete() const { return end_tokens_.empty() && matcher_->is_finished(); }

  void process(std::int32_t num_generated, TokenMask& mask) const {
    if (matcher_->is_finished()) {
      check<RequestError>(num_generated >= min_tokens_, "token_masks: the text is complete after ",
                          num_generated, " tokens, but min_tokens = ", min_tokens_,
                          " tokens are wanted");
      check<RequestError>(!end_tokens_.empty(), "token_masks: the text is complete after ",
                          num_generated, " tokens, and there is no end token");
      return mask.allow_only(end_tokens_);
    }
    std::vector<std::uint32_t> bits((vocab_size_ + 31) / 32);
    matcher_->fill(bits);
    if (vocab_size_ % 32 != 0) bits.back() &= (std::uint32_t{1} << (vocab_size_ % 32)) - 1;
    check<RequestError>(std::any_of(bits.begin(), bits.end(), [](auto word) { return word != 0; }),
                        "token_masks: no token may follow after ", num_generated, " tokens");
    mask.keep(bits);
  }

 private:
  [[nodiscard]] bool ends(TokenId token) const {
    return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
  }

  std::unique_ptr<TokenMatcher> matcher_;
  std::span<const TokenId> end_tokens_;
  std::size_t vocab_size_;
  std::int32_t min_tokens_;
};

/// All processors that fields of SamplingParams need, then a policy's `Own`.
template <class... Own>
using StandardLogitsProcessors = LogitsProcessors<MinTokensProcessor, AllowedTokensProcessor,
                                                  BadWordsProcessor, TokenMaskProcessor, Own...>;

NANOVLLM_COMPILED_TEMPLATE(std::unique_ptr<SequenceProcessors> LogitsProcessors<
                           MinTokensProcessor, AllowedTokensProcessor, BadWordsProcessor,
                           TokenMaskProcessor>::make(const LogitsProcessorSetup&))

}  // namespace nanovllm
