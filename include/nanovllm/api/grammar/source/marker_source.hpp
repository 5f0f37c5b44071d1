#pragma once
/// A constraint that begins after a marker in the text, such as the end of a thought, and one that
/// comes and goes between markers, such as that of tool calls.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

/// What leads to a marker.
struct MarkerLead {
  std::string marker;    ///< not empty; the first occurrence counts
  bool any_text = true;  ///< before the marker anything may come; else the marker comes at once
};

/// A text with parts that begin after a marker and that an inner source constrains.
struct MarkerRules {
  MarkerLead first;
  bool may_end_before = false;  ///< the text may end before the first marker
  /// White space that may come between the marker and the inner text, in bytes.
  int max_whitespace = 0;
  /// Where the inner text has come to an end, what leads to the next one; the text may end there.
  /// Without it the text ends where the inner one does.
  std::optional<MarkerLead> again{};
};

/// Texts as MarkerRules describe them, then a stop token.
///
/// A marker may be one token or spelt by several. A token that holds the end of a marker and more
/// is not allowed, since the inner source could not read the rest of it.
///
/// With `again` the inner text must have an end that nothing can follow, as a closing tag is:
/// there, when the inner matcher is finished, the next lead begins.
class MarkerSource final : public TokenMaskSource {
 public:
  /// @param inner made for the same vocabulary.
  /// Throws RequestError for an empty marker.
  MarkerSource(std::shared_ptr<const GrammarVocabulary> vocabulary, MarkerRules rules,
               std::shared_ptr<const TokenMaskSource> inner);

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override;
  [[nodiscard]] int vocab_size() const override;

  /// Most bytes of memory, without those of the inner source.
  [[nodiscard]] std::size_t size_bytes() const;

 private:
  struct Compiled;
  class Lead;
  class Matcher;

  std::shared_ptr<const Compiled> compiled_;
};

/// What `inner` allows, after a thought: anything up to "</think>", white space, then `inner` from
/// its beginning. The text cannot end within the thought.
[[nodiscard]] inline std::shared_ptr<const MarkerSource> after_reasoning(
    std::shared_ptr<const GrammarVocabulary> vocabulary,
    std::shared_ptr<const TokenMaskSource> inner) {
  MarkerRules rules{.first = {.marker = "</think>"}, .max_whitespace = 16};
  return std::make_shared<const MarkerSource>(std::move(vocabulary), std::move(rules),
                                              std::move(inner));
}

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/bytes/mask_cache.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// The way to one marker: state i has read the first i bytes of it.
/// Source: Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", 1977.
class MarkerSource::Lead {
 public:
  explicit Lead(MarkerLead lead)
      : lead_(std::move(lead)), masks_(lead_.marker.size(), kMaxMaskBytes) {
    check<RequestError>(!lead_.marker.empty(), "a constraint after a marker needs a marker");
    const std::string& marker = lead_.marker;
    shorter_.assign(marker.size(), 0);
    for (std::size_t i = 1, k = 0; i < marker.size(); ++i) {
      while (k > 0 && marker[i] != marker[k]) k = shorter_[k - 1];
      if (marker[i] == marker[k]) ++k;
      shorter_[i] = k;
    }
  }

  [[nodiscard]] bool any_text() const { return lead_.any_text; }
  /// The state in which the marker is complete, which no byte leads on from.
  [[nodiscard]] std::size_t end() const { return lead_.marker.size(); }
  [[nodiscard]] static constexpr std::size_t max_mask_bytes() { return kMaxMaskBytes; }

  /// Whether `byte` can be read in `state`, and then where it leads.
  [[nodiscard]] bool step(std::size_t state, char byte, std::size_t& next) const {
    if (state == end()) return false;
    while (lead_.any_text && state > 0 && lead_.marker[state] != byte) state = shorter_[state - 1];
    if (lead_.marker[state] == byte) {
      next = state + 1;
      return true;
    }
    next = 0;
    return lead_.any_text;
  }

  [[nodiscard]] bool read(std::size_t state, std::string_view bytes, std::size_t& next) const {
    next = state;
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](char byte) { return step(next, byte, next); });
  }

  void fill(const GrammarVocabulary& vocabulary, std::size_t state,
            std::span<std::uint32_t> bits) const {
    masks_
        .get(state,
             [&] {
               std::vector<TokenId> tokens;
               vocabulary.for_each_token(
                   state,
                   [&](std::size_t from, std::uint8_t byte, std::size_t& to) {
                     return step(from, static_cast<char>(byte), to);
                   },
                   [&](TokenId token) { tokens.push_back(token); });
               return CompactMask(std::move(tokens),
                                  static_cast<std::size_t>(vocabulary.vocab_size()));
             })
        ->fill(bits);
  }

 private:
  static constexpr std::size_t kMaxMaskBytes = std::size_t{1} << 19;

  MarkerLead lead_;
  std::vector<std::size_t> shorter_;  // [i]: of the marker's first i + 1 bytes the longest end that
                                      // the marker begins with, except themselves
  mutable MaskCache masks_;           // [state]
};

/// What the matchers of a source share.
struct MarkerSource::Compiled {
  Compiled(std::shared_ptr<const GrammarVocabulary> of, MarkerRules rules,
           std::shared_ptr<const TokenMaskSource> behind)
      : vocabulary(std::move(of)),
        may_end_before(rules.may_end_before),
        max_whitespace(static_cast<std::size_t>(std::max(rules.max_whitespace, 0))),
        first(std::move(rules.first)),
        inner(std::move(behind)) {
    if (rules.again) again.emplace(std::move(*rules.again));
    for (TokenId token = 0; token < vocabulary->vocab_size(); ++token)
      if (is_whitespace(vocabulary->bytes(token))) whitespace.push_back(token);
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary;
  bool may_end_before;
  std::size_t max_whitespace;
  Lead first;
  std::optional<Lead> again;
  std::shared_ptr<const TokenMaskSource> inner;
  std::vector<TokenId> whitespace;  ///< tokens of nothing else

  [[nodiscard]] static bool is_whitespace(std::string_view bytes) {
    return !bytes.empty() && bytes.find_first_not_of(" \t\r\n") == bytes.npos;
  }
};

class MarkerSource::Matcher final : public TokenMatcher {
 public:
  explicit Matcher(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  Matcher(const Matcher& other)
      : TokenMatcher(other),
        compiled_(other.compiled_),
        phase_(other.phase_),
        is_first_(other.is_first_),
        position_(other.position_),
        ended_(other.ended_),
        inner_(other.inner_ ? other.inner_->clone() : nullptr) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
    return std::make_unique<Matcher>(*this);
  }

  [[nodiscard]] bool accept(TokenId token) override {
    if (compiled_->vocabulary->is_stop(token)) return accept_stop(token);
    const std::string_view bytes = compiled_->vocabulary->bytes(token);
    if (ended_ || bytes.empty()) return false;
    if (phase_ == Phase::lead) {
      std::size_t next = 0;
      if (!lead().read(position_, bytes, next)) return false;
      position_ = next;
      if (next == lead().end()) begin_inner();
      return true;
    }
    if (!inner_->accept(token)) {
      if (phase_ != Phase::whitespace || bytes.size() > whitespace_left()) return false;
      if (!Compiled::is_whitespace(bytes)) return false;
      position_ += bytes.size();
      return true;
    }
    phase_ = Phase::inner;
    end_inner();
    return true;
  }

  void fill(std::span<std::uint32_t> bits) const override {
    if (phase_ != Phase::lead) inner_->fill(bits);
    if (ended_) return fill_stops(bits);
    if (phase_ == Phase::lead) {
      lead().fill(*compiled_->vocabulary, position_, bits);
      if (may_end()) fill_stops(bits);
    }
    if (phase_ == Phase::whitespace) {
      for (TokenId token : compiled_->whitespace)
        if (compiled_->vocabulary->bytes(token).size() <= whitespace_left())
          allow_token(bits, token);
    }
  }

  [[nodiscard]] bool is_finished() const override {
    if (ended_) return true;
    if (phase_ == Phase::whitespace && whitespace_left() > 0) return false;
    return phase_ != Phase::lead && inner_->is_finished();
  }

 private:
  enum class Phase : std::uint8_t { lead, whitespace, inner };

  [[nodiscard]] const Lead& lead() const {
    return is_first_ ? compiled_->first : *compiled_->again;
  }
  [[nodiscard]] std::size_t whitespace_left() const {
    return compiled_->max_whitespace - position_;
  }

  /// Whether the text may end within a lead.
  [[nodiscard]] bool may_end() const {
    return (!is_first_ || compiled_->may_end_before) && (lead().any_text() || position_ == 0);
  }

  [[nodiscard]] bool accept_stop(TokenId token) {
    const bool fits = ended_ || (phase_ == Phase::lead ? may_end() : inner_->accept(token));
    ended_ |= fits;
    return fits;
  }

  void begin_inner() {
    inner_ = compiled_->inner->matcher();
    position_ = 0;
    phase_ = compiled_->max_whitespace > 0 ? Phase::whitespace : Phase::inner;
    if (phase_ == Phase::inner) end_inner();
  }

  /// Goes on to the next lead if there is one and the inner text is at its end.
  void end_inner() {
    if (!compiled_->again || !inner_->is_finished()) return;
    inner_.reset();
    phase_ = Phase::lead;
    is_first_ = false;
    position_ = 0;
  }

  void fill_stops(std::span<std::uint32_t> bits) const {
    for (TokenId token : compiled_->vocabulary->stop_token_ids()) allow_token(bits, token);
  }

  std::shared_ptr<const Compiled> compiled_;
  Phase phase_ = Phase::lead;
  bool is_first_ = true;      // the first lead, or after it
  std::size_t position_ = 0;  // the state of the lead, or bytes of white space after the marker
  bool ended_ = false;        // by a stop token
  std::unique_ptr<TokenMatcher> inner_;  // null in a lead
};

NANOVLLM_GRAMMAR_INLINE MarkerSource::MarkerSource(
    std::shared_ptr<const GrammarVocabulary> vocabulary, MarkerRules rules,
    std::shared_ptr<const TokenMaskSource> inner) {
  compiled_ =
      std::make_shared<const Compiled>(std::move(vocabulary), std::move(rules), std::move(inner));
}

NANOVLLM_GRAMMAR_INLINE std::unique_ptr<TokenMatcher> MarkerSource::matcher() const {
  return std::make_unique<Matcher>(compiled_);
}

NANOVLLM_GRAMMAR_INLINE int MarkerSource::vocab_size() const {
  return compiled_->vocabulary->vocab_size();
}

NANOVLLM_GRAMMAR_INLINE std::size_t MarkerSource::size_bytes() const {
  return compiled_->first.max_mask_bytes() +
         (compiled_->again ? compiled_->again->max_mask_bytes() : 0) +
         compiled_->whitespace.size() * sizeof(TokenId) + sizeof(Compiled);
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
