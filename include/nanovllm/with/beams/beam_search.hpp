#pragma once
/// Beam search: which beams continue with which tokens, and which have ended.
/// Source: `GenerationMixin._beam_search` of transformers 5.17, whose results these are.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// What a beam search is told before it begins.
struct BeamSearchTerms {
  std::int32_t width = 1;  ///< beams, ≥ 1
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  std::int32_t max_tokens = 1;            ///< most generated tokens, ≥ 1
  std::int32_t min_tokens = 0;            ///< no end token before this many
  std::span<const TokenId> end_tokens{};  ///< ascending; must outlive the search

  /// Continuations that are looked at in a step, of all beams together: enough to leave `width`
  /// that continue even if as many as possible end.
  [[nodiscard]] std::int64_t num_candidates() const {
    const auto per_beam = static_cast<std::int64_t>(end_tokens.size()) + 1;
    return (per_beam < 2 ? 2 : per_beam) * width;
  }
  /// Most likely tokens that must be known of every beam, to find those among them.
  [[nodiscard]] std::int64_t num_listed() const {
    return num_candidates() +
           (min_tokens > 0 ? static_cast<std::int64_t>(end_tokens.size()) : std::int64_t{0});
  }
};

/// The most likely tokens after a beam, best first, with their log-probabilities.
struct BeamCandidates {
  std::span<const TokenId> tokens;  ///< [num_listed]
  std::span<const float> logprobs;  ///< like tokens
};

/// A beam search over one prompt. Every step takes, of each beam, the likeliest next tokens, and
/// ranks all continuations by the sum of their log-probabilities, in float. Of the first
/// `num_candidates`:
/// - those that end (with an end token, or by max_tokens) become hypotheses if they are among the
///   first `width`, and are lost otherwise. Their score is sum / length^length_penalty; length
///   counts generated tokens, the end token too. The best `width` hypotheses are kept.
/// - the first `width` that do not end are the next beams.
///
/// It is over at max_tokens, and before that as soon as there are `width` hypotheses and, with
///
/// - EarlyStopping::yes: at once;
/// - EarlyStopping::no: the best beam, scored as if it ended now, is not better than the worst of
///   them;
/// - EarlyStopping::never: the same, but scored with the length that suits it best: max_tokens if
///   length_penalty > 0.
///
/// With one beam it is over at the first end token: greedy decoding. Among equals the continuation
/// of the earlier beam goes first, then the one listed first.
class BeamSearch {
 public:
  /// A beam as the last step left it.
  struct Beam {
    std::int32_t parent = 0;  ///< its rank before the step
    TokenId token = 0;        ///< what it got
    float cumulative_logprob = 0;
    std::int32_t node = kRoot;
  };
  /// A continuation that has ended.
  struct Hypothesis {
    float score = 0;
    float cumulative_logprob = 0;
    std::int32_t node = kRoot;
  };

  explicit BeamSearch(const BeamSearchTerms& terms);

  /// Takes the candidates of all beams, in their order.
  void advance(std::span<const BeamCandidates> candidates);

  /// The beams, likeliest first: one before the first step, then `width`.
  [[nodiscard]] std::span<const Beam> beams() const { return beams_; }
  /// Best first; `width` of them when the search is done.
  [[nodiscard]] std::span<const Hypothesis> hypotheses() const { return hypotheses_; }
  [[nodiscard]] bool is_done() const { return is_done_; }
  [[nodiscard]] std::int32_t num_generated() const { return num_generated_; }
  /// The generated tokens that lead to a node.
  [[nodiscard]] std::vector<TokenId> tokens(std::int32_t node) const;

 private:
  static constexpr std::int32_t kRoot = -1;

  /// Where tokens part: each knows the one before it.
  struct Node {
    std::int32_t before = kRoot;
    TokenId token = 0;
  };

  [[nodiscard]] bool is_end(TokenId token) const;
  /// All continuations that may be, the best `num_candidates` first.
  void rank(std::span<const BeamCandidates> candidates);
  /// `sum` of log-probabilities over `length` generated tokens, as hypotheses are compared.
  [[nodiscard]] float score(float sum, std::int32_t length) const;
  [[nodiscard]] bool can_improve() const;
  [[nodiscard]] std::int32_t add_node(std::int32_t before, TokenId token);

  const BeamSearchTerms terms_;
  std::vector<Node> nodes_;
  std::vector<Beam> beams_, next_, ranked_;
  std::vector<Hypothesis> hypotheses_;
  std::int32_t num_generated_ = 0;
  bool is_done_ = false;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"

namespace nanovllm {

NANOVLLM_INLINE BeamSearch::BeamSearch(const BeamSearchTerms& terms) : terms_(terms), beams_(1) {}

NANOVLLM_INLINE void BeamSearch::advance(std::span<const BeamCandidates> candidates) {
  check(!is_done_ && candidates.size() == beams_.size(), "beam search: ", candidates.size(),
        " lists of candidates for ", beams_.size(), " beams",
        is_done_ ? " of one that is over" : "");
  rank(candidates);
  ++num_generated_;
  const bool is_last = num_generated_ >= terms_.max_tokens;
  const auto width = static_cast<std::size_t>(terms_.width);
  next_.clear();
  for (std::size_t i = 0; i < ranked_.size(); ++i) {
    Beam beam = ranked_[i];
    const bool ends = is_last || is_end(beam.token);
    if (ends ? i >= width : next_.size() == width) continue;
    const std::int32_t before = beams_[static_cast<std::size_t>(beam.parent)].node;
    beam.node = add_node(before, beam.token);
    if (ends) {
      hypotheses_.push_back({.score = score(beam.cumulative_logprob, num_generated_),
                             .cumulative_logprob = beam.cumulative_logprob,
                             .node = beam.node});
    } else {
      next_.push_back(beam);
    }
  }
  sort_stably(hypotheses_,
              [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
  if (hypotheses_.size() > width) hypotheses_.resize(width);
  beams_.swap(next_);
  is_done_ = is_last || !can_improve();
}

NANOVLLM_INLINE std::vector<TokenId> BeamSearch::tokens(std::int32_t node) const {
  std::vector<TokenId> out;
  for (; node != kRoot; node = nodes_[static_cast<std::size_t>(node)].before)
    out.push_back(nodes_[static_cast<std::size_t>(node)].token);
  std::reverse(out.begin(), out.end());
  return out;
}

NANOVLLM_INLINE bool BeamSearch::is_end(TokenId token) const {
  return std::binary_search(terms_.end_tokens.begin(), terms_.end_tokens.end(), token);
}

NANOVLLM_INLINE void BeamSearch::rank(std::span<const BeamCandidates> candidates) {
  const bool may_end = num_generated_ >= terms_.min_tokens;
  ranked_.clear();
  for (std::size_t b = 0; b < candidates.size(); ++b) {
    for (std::size_t i = 0; i < candidates[b].tokens.size(); ++i) {
      const TokenId token = candidates[b].tokens[i];
      if (!may_end && is_end(token)) continue;
      ranked_.push_back(
          {.parent = static_cast<std::int32_t>(b),
           .token = token,
           .cumulative_logprob = beams_[b].cumulative_logprob + candidates[b].logprobs[i]});
    }
  }
  sort_stably(ranked_, [](const Beam& a, const Beam& b) {
    return a.cumulative_logprob > b.cumulative_logprob;
  });
  const auto most = static_cast<std::size_t>(terms_.num_candidates());
  if (ranked_.size() > most) ranked_.resize(most);
}

NANOVLLM_INLINE float BeamSearch::score(float sum, std::int32_t length) const {
  return sum /
         static_cast<float>(std::pow(static_cast<double>(length), double{terms_.length_penalty}));
}

NANOVLLM_INLINE bool BeamSearch::can_improve() const {
  if (hypotheses_.size() < static_cast<std::size_t>(terms_.width)) return true;
  if (terms_.width == 1 || terms_.early_stopping == EarlyStopping::yes) return false;
  const bool favours_length =
      terms_.early_stopping == EarlyStopping::never && terms_.length_penalty > 0;
  const float best =
      score(beams_.front().cumulative_logprob, favours_length ? terms_.max_tokens : num_generated_);
  return best > hypotheses_.back().score;
}

NANOVLLM_INLINE std::int32_t BeamSearch::add_node(std::int32_t before, TokenId token) {
  nodes_.push_back({before, token});
  return static_cast<std::int32_t>(nodes_.size()) - 1;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
