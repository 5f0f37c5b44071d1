#pragma once
/// `sample` on the CPU: one row is one thread's work.
///
/// Each tile of 64 logits is summed up by its maximum first; everything after looks only into tiles
/// whose maximum says that it must:
/// - the k-th largest maximum is a lower bound of the k-th largest logit, so few tokens are left to
///   select the k largest from;
/// - all three filters together keep the tokens above a logit and, among those equal to it, the
///   lowest ids: they end in a `Cut`, not in a list;
/// - top_p of the whole vocabulary is not cut at all: a token is drawn from more than is kept, and
///   is asked whether the tokens before it have top_p of the mass; if so, the draw goes on among
///   those (`draw_from_nucleus`);
/// - noise is at most 22.9, so a tile far enough below the best token so far needs none.
/// Decisions are made in float64. Where a float32 estimate comes first (the masses for top_p, the
/// noise of a token) it decides only what lies outside its error. Hence tokens depend neither on
/// the number of threads nor on the instruction set. Log-probabilities are within 1e-5 and may
/// differ in their last bits between instruction sets.
///
/// Beyond the contract:
/// - a logit that is NaN counts as -inf;
/// - a largest logit of +inf wins whatever the temperature, the lowest id among equals; the log-
///   probability of n such tokens is -log n, that of all others -inf;
/// - without any logit above -inf the lowest id that is not banned wins, 0 when all are; if that
///   holds before the bans, all log-probabilities are -inf;
/// - of more log-probabilities than tokens, those that do not exist are not written.

#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cpu {

/// See ops/sampler.hpp, and the top of this file for what that leaves open. Throws ShapeError when
/// the operands do not fit together or a banned token does not exist, and ConfigError for a
/// temperature that is negative or not finite.
void sample(const SampleArgs& args, const Context& context);

inline void run_op(const SampleArgs& args, Context& context) { sample(args, context); }

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/kernels/sampler_filters.hpp"

namespace nanovllm::cpu {
namespace detail {

/// The token of a row without any logit above -inf.
[[nodiscard]] inline TokenId lowest_allowed(const LogitRow& row, VectorView<const TokenId> banned) {
  std::fill_n(row.logits, row.vocab, -std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < banned.extent(0); ++i) row.logits[banned.data[i]] = 0;
  float* const end = row.logits + row.vocab;
  float* const found = std::find_if(row.logits, end, [](float mark) { return mark != 0; });
  return found == end ? 0 : static_cast<TokenId>(found - row.logits);
}

/// Rules 2 to 4 of the contract. The tiles' maxima are those after the bans.
[[nodiscard]] inline TokenId choose(const LogitRow& row, const SamplingRow& settings,
                                    VectorView<const TokenId> banned,
                                    const SamplerKernels& kernels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float largest = largest_logit(row);
  if (largest == -kInfinity) return lowest_allowed(row, banned);
  const TokenId first = first_of(row, largest);
  if (settings.temperature == 0 || largest == kInfinity) return first;
  const Cut cut = find_cut(row, settings, largest, kernels);
  if (has_nucleus_of_all(settings, row.vocab))
    return draw_from_nucleus(row, settings, cut, {largest, first}, kernels);
  Draw draw = begin_draw(settings, cut, {largest, first});
  kernels.draw_from_row(row, draw);
  return draw.token;
}

/// Writes the `count` ≤ vocab most likely tokens, best first.
inline void write_most_likely(const LogitRow& row, std::int64_t count, const LogSoftmax& log_prob,
                              const SamplerKernels& kernels, TokenId* tokens, float* logprobs) {
  if (count == 0) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float bound = bound_of_largest(row, count);
  Candidate* const first = row.candidates;
  std::int64_t found = row.vocab;
  if (bound > -kInfinity) {
    found = kernels.gather_above(row, bound);
  } else {
    for (std::int64_t i = 0; i < row.vocab; ++i) {
      const float x = row.logits[i];
      first[i] = {std::isnan(x) ? -kInfinity : x, static_cast<TokenId>(i)};
    }
  }
  std::partial_sort(first, first + count, first + found);
  for (std::int64_t i = 0; i < count; ++i) {
    tokens[i] = first[i].id;
    logprobs[i] = log_prob(first[i].logit);
  }
}

inline void sample_row(const SampleArgs& args, std::int64_t r, const LogitRow& row,
                       const SamplerKernels& kernels) {
  const SamplingRow& settings = args.batch.rows.data[r];
  kernels.find_tile_maxima(row, 0, row.num_tiles);
  LogSoftmax log_prob{};
  if (settings.num_logprobs >= 0) {
    log_prob = log_softmax(row, kernels);
    write_most_likely(row, std::min<std::int64_t>(settings.num_logprobs, row.vocab), log_prob,
                      kernels, args.top_tokens.at(r), args.top_logprobs.at(r));
  }
  const float first = row.logits[0];
  const auto banned = args.batch.banned[r];
  for (std::int64_t i = 0; i < banned.extent(0); ++i) {
    row.logits[banned.data[i]] = -std::numeric_limits<float>::infinity();
    const std::int64_t tile = banned.data[i] / kLogitTile;
    kernels.find_tile_maxima(row, tile, tile + 1);
  }
  const TokenId token = choose(row, settings, banned, kernels);
  args.tokens.data[r] = token;
  // A banned token is never chosen, except token 0 if all are banned.
  if (settings.num_logprobs >= 0) {
    args.logprobs.data[r] = log_prob(token == 0 ? first : row.logits[token]);
  }
}

/// Throws unless settings and banned tokens of every row are ones that `sample` can honour.
inline void check_rows(const SampleArgs& args) {
  const std::int64_t n = args.logits.extent(0), vocab = args.logits.extent(1);
  const std::int32_t* const starts = args.batch.banned.starts.data;
  const VectorView<const TokenId>& banned = args.batch.banned.values;
  check<ShapeError>(starts[0] == 0 && starts[n] <= banned.extent(0),
                    "sample: 'banned.starts' must run from 0 to ", banned.extent(0),
                    " at the most, got ", starts[0], " to ", starts[n]);
  for (std::int64_t r = 0; r < n; ++r) {
    const SamplingRow& settings = args.batch.rows.data[r];
    check<ConfigError>(settings.temperature >= 0 && std::isfinite(settings.temperature),
                       "sample: temperature of row ", r, " must be finite and >= 0, got ",
                       settings.temperature);
    check<ShapeError>(settings.num_logprobs <= args.top_tokens.extent(1), "sample: row ", r,
                      " asks for ", settings.num_logprobs,
                      " log-probabilities, 'top_tokens' has room for ", args.top_tokens.extent(1));
    check<ShapeError>(starts[r] <= starts[r + 1], "sample: 'banned.starts' must ascend, got ",
                      starts[r], " then ", starts[r + 1]);
  }
  for (std::int64_t i = 0; i < starts[n]; ++i) {
    const TokenId id = banned.data[i];
    check<ShapeError>(id >= 0 && id < vocab, "sample: banned token ", i, " must be in [0, ", vocab,
                      "), got ", id);
  }
}

}  // namespace detail

NANOVLLM_INLINE void sample(const SampleArgs& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.logits.extent(0), vocab = args.logits.extent(1);
  if (n == 0) return;
  detail::check_rows(args);
  const std::int64_t num_tiles = ceil_div(vocab, detail::kLogitTile);
  const std::int64_t threads = context.pool->num_threads();
  float* const maxima = detail::scratch<SampleArgs, float>(threads * 2 * num_tiles);
  auto* const candidates = detail::scratch<SampleArgs, detail::Candidate>(threads * vocab);
  const detail::SamplerKernels kernels(context.isa);
  context.pool->parallel_for(n, 1, [&](std::int64_t r, std::int64_t end, int thread) {
    for (; r < end; ++r) {
      float* const mine = maxima + thread * 2 * num_tiles;
      detail::sample_row(args, r,
                         {args.logits.at(r), vocab, num_tiles, mine, mine + num_tiles,
                          candidates + thread * vocab},
                         kernels);
    }
  });
}

}  // namespace nanovllm::cpu

#endif  // NANOVLLM_BODIES
