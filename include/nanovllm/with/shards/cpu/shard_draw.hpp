#pragma once
/// `survey_shard`, `draw_shard` and `pick_winner` on the CPU: one row is one thread's work. Rows
/// are read as `sample` reads them (sampler.hpp), and what the contract leaves open is as there.
///
/// The cut of top_k and top_p follows from the surveys, and every shard finds the same. Of equal
/// logits at the cut, those with lower ids are kept: those of earlier shards, and within a shard
/// the first. The sums behind log-probabilities are those of `sample`, tile by tile; only the
/// shards' float64 totals are added to each other at the end.

#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/with/shards/shard_draw.hpp"

namespace nanovllm::cpu {

/// See with/shards/shard_draw.hpp. All throw ShapeError when the operands do not fit together or a
/// banned token is below 0.
void survey_shard(const SurveyShardArgs& args, const Context& context);
void draw_shard(const DrawShardArgs& args, const Context& context);
void pick_winner(const PickWinnerArgs& args, const Context& context);

inline void run_op(const SurveyShardArgs& args, Context& context) { survey_shard(args, context); }
inline void run_op(const DrawShardArgs& args, Context& context) { draw_shard(args, context); }
inline void run_op(const PickWinnerArgs& args, Context& context) { pick_winner(args, context); }

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/kernels/sampler_filters.hpp"

namespace nanovllm::cpu {
namespace detail {

inline constexpr TokenId kNoToken = -1;

/// What a shard tells of a row.
struct ShardSurvey {
  const float* words;

  [[nodiscard]] float largest() const { return words[0]; }
  [[nodiscard]] std::int64_t num_ties() const { return std::bit_cast<std::int32_t>(words[1]); }
  [[nodiscard]] Candidate operator[](std::int64_t i) const {
    return {words[2 + 2 * i], std::bit_cast<TokenId>(words[3 + 2 * i])};
  }
};

/// A listed token in the order of the contract, and equal ones of its shard that are not listed.
struct ListedToken {
  Candidate token;
  std::int64_t shard;
  std::int64_t count;  ///< 1, and how many equal ones come after it

  [[nodiscard]] friend bool operator<(const ListedToken& a, const ListedToken& b) {
    return a.token < b.token;
  }
};

/// Calls row(r, LogitRow) for every row, on threads, with the bans applied and the tiles' maxima
/// found. A shard may have no tokens.
template <class Op, class Body>
void for_each_shard_row(const ShardLogits& logits, const SamplingBatch& batch,
                        const Context& context, const SamplerKernels& kernels, const Body& body) {
  const std::int64_t n = logits.values.extent(0), size = logits.values.extent(1);
  const std::int64_t num_tiles = ceil_div(size, kLogitTile);
  const std::int64_t threads = context.pool->num_threads();
  for (std::int64_t i = 0; i < batch.banned.values.extent(0); ++i) {
    check<ShapeError>(batch.banned.values.data[i] >= 0, "shard draw: banned token ", i,
                      " must be >= 0, got ", batch.banned.values.data[i]);
  }
  float* const maxima = scratch<Op, float>(threads * 2 * (num_tiles + 1));
  auto* const candidates = scratch<Op, Candidate>(threads * (size + 1));
  context.pool->parallel_for(n, 1, [&](std::int64_t r, std::int64_t end, int thread) {
    for (; r < end; ++r) {
      float* const mine = maxima + thread * 2 * (num_tiles + 1);
      const LogitRow row{logits.values.at(r),
                         size,
                         num_tiles,
                         mine,
                         mine + num_tiles + 1,
                         candidates + thread * (size + 1),
                         logits.first_token};
      const auto banned = batch.banned[r];
      for (std::int64_t i = 0; i < banned.extent(0); ++i) {
        const std::int64_t at = banned.data[i] - logits.first_token;
        if (at >= 0 && at < size) row.logits[at] = -std::numeric_limits<float>::infinity();
      }
      kernels.find_tile_maxima(row, 0, num_tiles);
      body(r, row);
    }
  });
}

/// The largest logit of a shard; -inf if it has none.
[[nodiscard]] inline float largest_of_shard(const LogitRow& row) {
  return row.num_tiles == 0 ? -std::numeric_limits<float>::infinity() : largest_logit(row);
}

inline void survey_row(const LogitRow& row, const SamplingRow& settings,
                       const SamplerKernels& kernels, float* words) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  words[0] = largest_of_shard(row);
  words[1] = 0;
  const std::int64_t listed = num_listed(settings);
  for (std::int64_t i = 0; i < listed; ++i) {
    words[2 + 2 * i] = -kInfinity;
    words[3 + 2 * i] = std::bit_cast<float>(kNoToken);
  }
  const std::int64_t count = std::min(listed, row.vocab);
  if (count == 0) return;
  const float bound = bound_of_largest(row, count);
  Candidate* const first = row.candidates;
  std::int64_t found = row.vocab;
  if (bound > -kInfinity) {
    found = kernels.gather_above(row, bound);
  } else {
    for (std::int64_t i = 0; i < row.vocab; ++i) {
      const float x = row.logits[i];
      first[i] = {std::isnan(x) ? -kInfinity : x, static_cast<TokenId>(row.first_token + i)};
    }
  }
  std::partial_sort(first, first + count, first + found);
  for (std::int64_t i = 0; i < count; ++i) {
    words[2 + 2 * i] = first[i].logit;
    words[3 + 2 * i] = std::bit_cast<float>(first[i].id);
  }
  const std::int64_t k = settings.temperature > 0 ? settings.top_k : 0;
  if (k <= 0 || k > count) return;
  const float last = first[k - 1].logit;
  const auto num_ties = static_cast<std::int32_t>(std::count_if(
      first + k, first + found, [&](const Candidate& other) { return other.logit == last; }));
  words[1] = std::bit_cast<float>(num_ties);
}

/// The surveys of one row.
struct RowSurveys {
  const float* words;  ///< of all shards, one after the other
  std::int64_t num_shards;

  [[nodiscard]] ShardSurvey operator[](std::int64_t shard) const {
    return {words + shard * kSurveyWords};
  }
  [[nodiscard]] float largest() const {
    float out = -std::numeric_limits<float>::infinity();
    for (std::int64_t s = 0; s < num_shards; ++s) out = std::max(out, (*this)[s].largest());
    return out;
  }

  /// The tokens above -inf that may be kept by the row's top_k, in the order of the contract, at
  /// `out`. Returns their number.
  std::int64_t list(std::int64_t top_k, ListedToken* out) const {
    std::int64_t count = 0;
    for (std::int64_t s = 0; s < num_shards; ++s) {
      const ShardSurvey survey = (*this)[s];
      for (std::int64_t i = 0; i < top_k; ++i) {
        const Candidate token = survey[i];
        if (!(token.logit > -std::numeric_limits<float>::infinity())) break;
        out[count++] = {token, s, i + 1 == top_k ? 1 + survey.num_ties() : 1};
      }
    }
    std::sort(out, out + count);
    return count;
  }
};

/// The id of the `count`-th token of a shard with this logit, lowest first.
[[nodiscard]] inline TokenId find_tie(const LogitRow& row, float logit, std::int64_t count) {
  std::int64_t at = 0;
  for (; at < row.vocab; ++at) {
    if (row.logits[at] == logit && --count == 0) break;
  }
  return static_cast<TokenId>(row.first_token + at);
}

/// What top_k, and top_p after it, keep of a shard.
[[nodiscard]] inline Cut cut_by_surveys(const LogitRow& row, const SamplingRow& settings,
                                        const RowSurveys& surveys, float largest,
                                        std::int64_t shard) {
  ListedToken listed[kMaxShards * kShardTop];
  const std::span tokens(listed, static_cast<std::size_t>(surveys.list(settings.top_k, listed)));
  Cut cut;
  if (std::ssize(tokens) >= settings.top_k)
    cut.logit = tokens[static_cast<std::size_t>(settings.top_k) - 1].token.logit;
  if (!(settings.top_p < 1)) return cut;
  double total = 0;
  for (const ListedToken& one : tokens) {
    if (one.token.logit < cut.logit) break;
    total +=
        static_cast<double>(one.count) * mass_of(one.token.logit, largest, settings.temperature);
  }
  const double target = double{settings.top_p} * total;
  double mass = 0;
  for (const ListedToken& one : tokens) {
    if (one.token.logit < cut.logit) break;
    const double each = mass_of(one.token.logit, largest, settings.temperature);
    for (std::int64_t kept = 1; kept <= one.count; ++kept) {
      mass += each;
      if (mass < target) continue;
      cut.logit = one.token.logit;
      if (one.shard < shard) cut.last = kNoToken;
      if (one.shard != shard) return cut;  // of a shard before it, all are kept
      cut.last = one.token.id;
      if (kept > 1) {  // after those that are listed
        const auto before = std::count_if(tokens.begin(), tokens.end(), [&](const auto& other) {
          return other.shard == shard && other.token.logit == cut.logit;
        });
        cut.last = find_tie(row, cut.logit, before + kept - 1);
      }
      return cut;
    }
  }
  return cut;
}

/// The token that wins in a shard whose largest logit is `largest`.
[[nodiscard]] inline Candidate win_in_shard(const LogitRow& row, const SamplingRow& settings,
                                            VectorView<const TokenId> banned, float largest,
                                            const RowSurveys& surveys, std::int64_t shard,
                                            const SamplerKernels& kernels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (largest == -kInfinity) {  // the lowest that is not banned
    for (std::int64_t i = 0; i < row.vocab; ++i) {
      const auto id = static_cast<TokenId>(row.first_token + i);
      const TokenId* const end = banned.data + banned.extent(0);
      if (std::find(banned.data, end, id) == end) return {-kInfinity, id};
    }
    return {-kInfinity, kNoToken};
  }
  const auto first = static_cast<TokenId>(row.first_token) + first_of(row, largest);
  if (settings.temperature == 0 || largest == kInfinity) return {largest, first};
  Cut cut;
  if (surveys.num_shards > 0 && surveys.largest() < kInfinity) {
    const float of_all = surveys.largest();
    if (settings.top_k > 0) cut = cut_by_surveys(row, settings, surveys, of_all, shard);
    if (settings.min_p > 0) {
      const float bound = min_p_bound(settings, of_all);
      if (bound > cut.logit) cut = {.logit = bound};
    }
  }
  if (!cut.keeps(largest, first)) return {-kInfinity, kNoToken};
  Draw draw = begin_draw(settings, cut, {largest, first});
  kernels.draw_from_row(row, draw);
  return {row.logits[draw.token - row.first_token], draw.token};
}

/// The sum that log-probabilities need, see kWinnerWords.
[[nodiscard]] inline double sum_of_shard(const LogitRow& row, float largest, float of_all,
                                         const SamplerKernels& kernels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (largest == -kInfinity) return 0;
  if (of_all == kInfinity)
    return static_cast<double>(std::count(row.logits, row.logits + row.vocab, kInfinity));
  return kernels.sum_exp(row, of_all, 1);
}

/// Writes the most likely tokens of all shards: each lists its own in order.
inline void merge_most_likely(const RowSurveys& surveys, std::int64_t count,
                              const LogSoftmax& log_prob, TokenId* tokens, float* logprobs) {
  std::int64_t next[kMaxShards] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    Candidate best{0, kNoToken};
    std::int64_t from = 0;
    for (std::int64_t s = 0; s < surveys.num_shards; ++s) {
      if (next[s] == count) continue;
      const Candidate token = surveys[s][next[s]];
      if (token.id == kNoToken || (best.id != kNoToken && !(token < best))) continue;
      best = token;
      from = s;
    }
    if (best.id == kNoToken) return;
    ++next[from];
    tokens[i] = best.id;
    logprobs[i] = log_prob(best.logit);
  }
}

/// The best of the shards' winners.
[[nodiscard]] inline Candidate pick(const SamplingRow& settings, const float* winners,
                                    std::int64_t num_shards) {
  Candidate best{-std::numeric_limits<float>::infinity(), kNoToken};
  double best_score = 0;
  for (std::int64_t s = 0; s < num_shards; ++s) {
    const Candidate token{winners[s * kWinnerWords],
                          std::bit_cast<TokenId>(winners[s * kWinnerWords + 1])};
    if (token.id == kNoToken) continue;
    const double score =
        settings.temperature > 0 ? score_of(settings, token.logit, token.id) : double{token.logit};
    // Ids ascend with the shards: of equals the first wins.
    if (best.id != kNoToken && !(score > best_score)) continue;
    best = token;
    best_score = score;
  }
  return best;
}

inline void pick_row(const PickWinnerArgs& args, std::int64_t r) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const SamplingRow& settings = args.rows.data[r];
  const std::int64_t num_shards = args.winners.extent(1) / kWinnerWords;
  const float* const winners = args.winners.at(r);
  const Candidate token = pick(settings, winners, num_shards);
  args.tokens.data[r] = token.id == kNoToken ? 0 : token.id;
  if (settings.num_logprobs < 0 || args.surveys.extent(1) == 0) return;
  const RowSurveys surveys{args.surveys.at(r), num_shards};
  double total = 0;
  for (std::int64_t s = 0; s < num_shards; ++s) {
    const float* const words = winners + s * kWinnerWords;
    total += std::bit_cast<double>(std::uint64_t{std::bit_cast<std::uint32_t>(words[3])} << 32 |
                                   std::bit_cast<std::uint32_t>(words[2]));
  }
  const float largest = surveys.largest();
  const LogSoftmax log_prob{largest, largest == -kInfinity ? 0 : std::log(total)};
  args.logprobs.data[r] = log_prob(token.logit);
  merge_most_likely(surveys, settings.num_logprobs, log_prob, args.top_tokens.at(r),
                    args.top_logprobs.at(r));
}

}  // namespace detail

NANOVLLM_INLINE void survey_shard(const SurveyShardArgs& args, const Context& context) {
  validate(args);
  const detail::SamplerKernels kernels(context.isa);
  detail::for_each_shard_row<SurveyShardArgs>(
      args.logits, args.batch, context, kernels, [&](std::int64_t r, const detail::LogitRow& row) {
        detail::survey_row(row, args.batch.rows.data[r], kernels, args.survey.at(r));
      });
}

NANOVLLM_INLINE void draw_shard(const DrawShardArgs& args, const Context& context) {
  validate(args);
  const detail::SamplerKernels kernels(context.isa);
  const std::int64_t num_shards = args.surveys.extent(1) / kSurveyWords;
  detail::for_each_shard_row<DrawShardArgs>(
      args.logits, args.batch, context, kernels, [&](std::int64_t r, const detail::LogitRow& row) {
        const SamplingRow& settings = args.batch.rows.data[r];
        const detail::RowSurveys surveys{args.surveys.at(r), num_shards};
        const float largest = detail::largest_of_shard(row);
        double sum = 0;
        if (settings.num_logprobs >= 0 && num_shards > 0)
          sum = detail::sum_of_shard(row, largest, surveys.largest(), kernels);
        const detail::Candidate winner = detail::win_in_shard(
            row, settings, args.batch.banned[r], largest, surveys, args.shard, kernels);
        const auto bits = std::bit_cast<std::uint64_t>(sum);
        float* const words = args.winner.at(r);
        words[0] = winner.logit;
        words[1] = std::bit_cast<float>(winner.id);
        words[2] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        words[3] = std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32));
      });
}

NANOVLLM_INLINE void pick_winner(const PickWinnerArgs& args, const Context&) {
  validate(args);
  for (std::int64_t r = 0; r < args.rows.extent(0); ++r) detail::pick_row(args, r);
}

}  // namespace nanovllm::cpu

#endif  // NANOVLLM_BODIES
