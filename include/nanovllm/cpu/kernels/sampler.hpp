#pragma once
/// `sample` on the CPU: one row is one thread's work.
///
/// Each tile of 64 logits is summed up by its maximum first; everything after looks only into tiles
/// whose maximum says that it must:
/// - the k-th largest maximum is a lower bound of the k-th largest logit, so few tokens are left to
///   select the k largest from;
/// - all three filters together keep the tokens above a logit and, among those equal to it, the
///   lowest ids: they end in a `Cut`, not in a list;
/// - noise is at most 22.9, so a tile far enough below the best token so far needs none.
/// Decisions are made in float64. Where a float32 estimate comes first (the total mass for top_p,
/// the noise of a token) it decides only what lies outside its error. Hence tokens depend neither
/// on the number of threads nor on the instruction set (which may only change the order of top_p's
/// float64 sums: a prefix within 1e-13 of top_p could fall either way). Log-probabilities are
/// within 1e-5 and may differ in their last bits between instruction sets.
///
/// Beyond the contract:
/// - a logit that is NaN counts as -inf;
/// - a largest logit of +inf wins whatever the temperature, the lowest id among equals; the log-
///   probability of n such tokens is -log n, that of all others -inf;
/// - without any logit above -inf the lowest id that is not banned wins, 0 when all are; if that
///   holds before the bans, all log-probabilities are -inf;
/// - of more log-probabilities than tokens, those that do not exist are not written.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/scratch.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cpu::detail {

inline constexpr int kLogitTile = 64;        ///< sixteen counters of four random words each
inline constexpr float kExpIsZero = -100.f;  ///< e to this is 0 in `exp`
inline constexpr double kMaxNoise = 23;      ///< above -log(-log1p(-u)) for the smallest u, 2^-33
inline constexpr double kTotalError = 5e-6;  ///< relative error of `sum_exp`: 16 · 3 + 10 roundings

struct Candidate {
  float logit;  ///< never NaN
  TokenId id;

  /// The order of the contract: larger logits first, lower ids first among equals.
  [[nodiscard]] friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
};

/// One row and the memory to work on it.
struct LogitRow {
  float* logits;  ///< [vocab]
  std::int64_t vocab;
  std::int64_t num_tiles;
  float* maxima;          ///< [num_tiles]
  float* sorted;          ///< [num_tiles], scratch
  Candidate* candidates;  ///< [vocab], scratch
};

/// What the filters keep: logits above `logit`, and those equal to it up to id `last`.
struct Cut {
  float logit = std::numeric_limits<float>::lowest();
  TokenId last = std::numeric_limits<TokenId>::max();

  [[nodiscard]] bool keeps(float x, TokenId id) const {
    return x > logit || (x == logit && id <= last);
  }
};

/// Narrows to float where the value may lie below all floats.
[[nodiscard]] inline float saturate(double x) {
  return static_cast<float>(std::max(x, double{std::numeric_limits<float>::lowest()}));
}

/// The Gumbel-max rule, half way through a row.
struct Draw {
  SamplingRow settings;
  Cut cut;
  float largest;  ///< logit of the row, finite
  float scale;    ///< 1 / temperature
  double best = -std::numeric_limits<double>::infinity();
  TokenId token = 0;
  float chance = 0;  ///< e^(largest / temperature - best), and 1 % more
  float reach = 0;   ///< logits below cannot win

  /// Takes the token if it is kept and better than the best so far.
  void offer(float logit, TokenId id) {
    if (!cut.keeps(logit, id)) return;
    const double temperature = settings.temperature;
    const double u = to_unit_interval(
        sampling_bits(settings.seed, settings.position, static_cast<std::uint32_t>(id)));
    const double score = logit / temperature - std::log(-std::log1p(-u));
    if (score < best || (score == best && id > token)) return;
    best = score;
    token = id;
    chance = static_cast<float>(1.01 * std::exp(largest / temperature - best));
    reach = std::max(cut.logit, saturate((best - kMaxNoise) * temperature));
  }
};

}  // namespace nanovllm::cpu::detail

#define NANOVLLM_KERNELS "nanovllm/cpu/kernels/sampler_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {
namespace detail {

/// The kernels of one instruction set.
struct SamplerKernels {
  decltype(&portable::find_tile_maxima) find_tile_maxima;
  decltype(&portable::sum_exp) sum_exp;
  decltype(&portable::gather_above) gather_above;
  decltype(&portable::draw_from_row) draw_from_row;

  explicit SamplerKernels(Isa isa)
      : find_tile_maxima(pick(isa, portable::find_tile_maxima, avx2::find_tile_maxima,
                              avx512::find_tile_maxima)),
        sum_exp(pick(isa, portable::sum_exp, avx2::sum_exp, avx512::sum_exp)),
        gather_above(pick(isa, portable::gather_above, avx2::gather_above, avx512::gather_above)),
        draw_from_row(
            pick(isa, portable::draw_from_row, avx2::draw_from_row, avx512::draw_from_row)) {}
};

[[nodiscard]] inline float largest_logit(const LogitRow& row) {
  return *std::max_element(row.maxima, row.maxima + row.num_tiles);
}

/// The lowest id with the largest logit.
[[nodiscard]] inline TokenId first_of(const LogitRow& row, float largest) {
  const std::int64_t tile = std::find(row.maxima, row.maxima + row.num_tiles, largest) - row.maxima;
  float* const end = row.logits + row.vocab;
  return static_cast<TokenId>(std::find(row.logits + tile * kLogitTile, end, largest) - row.logits);
}

/// A logit that at least `count` ≥ 1 tokens reach: the count-th largest of the tiles' maxima. -inf
/// when there are fewer tiles.
[[nodiscard]] inline float bound_of_largest(const LogitRow& row, std::int64_t count) {
  if (count > row.num_tiles) return -std::numeric_limits<float>::infinity();
  std::copy_n(row.maxima, row.num_tiles, row.sorted);
  std::nth_element(row.sorted, row.sorted + count - 1, row.sorted + row.num_tiles,
                   [](float a, float b) { return a > b; });
  return row.sorted[count - 1];
}

/// e^((logit - largest) / temperature): a probability relative to the largest.
[[nodiscard]] inline double mass_of(float logit, float largest, double temperature) {
  return std::exp((double{logit} - double{largest}) / temperature);
}

/// 1 / temperature, finite: where it saturates, only a factor of 0 needs it.
[[nodiscard]] inline float inverse(float temperature) {
  return std::min(1.f / temperature, std::numeric_limits<float>::max());
}

/// Finds the candidate at which the mass, best first, certainly reaches top_p · total, and cuts
/// there: a selection by mass, as std::nth_element is one by number, that sorts only the last few.
/// @param count  ≥ 1
/// @param error  relative error of `total`
/// @return false if it takes a better total to decide
inline bool cut_by_mass(Candidate* candidates, std::int64_t count, const SamplingRow& settings,
                        float largest, double total, double error, Cut& cut) {
  constexpr std::int64_t kFew = 64;
  const double target = double{settings.top_p} * total;
  const double low = target * (1 - error), high = target * (1 + error);
  const auto add_mass = [&](double mass, const Candidate& candidate) {
    return mass + mass_of(candidate.logit, largest, settings.temperature);
  };
  Candidate *begin = candidates, *end = candidates + count;  // it is one of these,
  double mass = 0;                                           // and this comes before them
  while (end - begin > kFew) {
    Candidate* const middle = begin + (end - begin) / 4;  // the prefix is short more often than not
    std::nth_element(begin, middle, end);
    const double more = std::accumulate(begin, middle, mass, add_mass);
    if (more >= low) {
      end = middle;
    } else {
      begin = middle;
      mass = more;
    }
  }
  std::sort(begin, end);
  for (; begin != end; ++begin) {
    mass = add_mass(mass, *begin);
    if (mass >= low || begin + 1 == end) break;  // sums in another order may round across `low`
  }
  cut = {begin->logit, begin->id};
  return mass >= high || begin + 1 == candidates + count;
}

/// top_k. Leaves what it keeps in row.candidates and returns its number.
inline std::int64_t apply_top_k(const LogitRow& row, std::int64_t top_k,
                                const SamplerKernels& kernels, Cut& cut) {
  const float bound = bound_of_largest(row, top_k);
  const std::int64_t count =
      kernels.gather_above(row, std::max(bound, std::numeric_limits<float>::lowest()));
  if (count < top_k) return count;  // all that are above -inf
  Candidate* const first = row.candidates;
  std::nth_element(first, first + top_k - 1, first + count);
  cut.logit = first[top_k - 1].logit;
  return std::partition(first, first + count,
                        [&](const Candidate& c) { return c.logit >= cut.logit; }) -
         first;
}

/// The mass of all tokens.
[[nodiscard]] inline double total_mass(const LogitRow& row, float largest, double temperature) {
  double total = 0;
  for (std::int64_t i = 0; i < row.vocab; ++i) {
    if (!std::isnan(row.logits[i])) total += mass_of(row.logits[i], largest, temperature);
  }
  return total;
}

/// top_p of all tokens: of those only that may be among the kept, whose order then matters.
inline void apply_top_p(const LogitRow& row, const SamplingRow& settings, float largest,
                        const SamplerKernels& kernels, Cut& cut) {
  const double temperature = settings.temperature;
  const bool is_ordinary = settings.temperature >= std::numeric_limits<float>::min();
  const double estimate = is_ordinary ? kernels.sum_exp(row, largest, inverse(settings.temperature))
                                      : total_mass(row, largest, temperature);
  // Tokens `depth` temperatures below the largest have, all of them together, half of what may be
  // left out.
  const double share = std::max(0., (1 - double{settings.top_p}) / 2 - 2 * kTotalError);
  const double depth = std::log(static_cast<double>(row.vocab) / (share * estimate));
  const std::int64_t count =
      kernels.gather_above(row, saturate(largest - std::max(0., depth) * temperature));
  if (cut_by_mass(row.candidates, count, settings, largest, estimate, kTotalError, cut)) return;
  cut = Cut{};
  cut_by_mass(row.candidates, count, settings, largest, total_mass(row, largest, temperature), 0,
              cut);
}

/// The smallest float whose mass is at least min_p, found by bisection in the order of floats.
[[nodiscard]] inline float min_p_bound(const SamplingRow& settings, float largest) {
  const auto to_float = [](std::int64_t rank) {  // ranks count from 0.f up and down
    return std::bit_cast<float>(static_cast<std::uint32_t>(rank >= 0 ? rank : 0x80000000 - rank));
  };
  const auto to_rank = [](float x) {
    const std::int64_t bits = std::bit_cast<std::uint32_t>(x);
    return bits < 0x80000000 ? bits : 0x80000000 - bits;
  };
  const double min_p = std::min(1.f, settings.min_p);
  std::int64_t above = to_rank(largest), below = to_rank(std::numeric_limits<float>::lowest()) - 1;
  while (above - below > 1) {
    const std::int64_t middle = below + (above - below) / 2;
    const bool kept = mass_of(to_float(middle), largest, settings.temperature) >= min_p;
    (kept ? above : below) = middle;
  }
  return to_float(above);
}

/// What top_k, top_p and min_p leave of a row whose largest logit is finite. The lowest id with the
/// largest logit is always among it.
[[nodiscard]] inline Cut find_cut(const LogitRow& row, const SamplingRow& settings, float largest,
                                  const SamplerKernels& kernels) {
  Cut cut;
  if (settings.top_k > 0 && settings.top_k < row.vocab) {
    const std::int64_t count = apply_top_k(row, settings.top_k, kernels, cut);
    if (settings.top_p < 1) {
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        total += mass_of(row.candidates[i].logit, largest, settings.temperature);
      }
      cut_by_mass(row.candidates, count, settings, largest, total, 0, cut);
    }
  } else if (settings.top_p < 1) {
    apply_top_p(row, settings, largest, kernels, cut);
  }
  if (settings.min_p > 0) {
    const float bound = min_p_bound(settings, largest);
    if (bound > cut.logit) cut = {.logit = bound};
  }
  return cut;
}

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
  Draw draw{
      .settings = settings, .cut = cut, .largest = largest, .scale = inverse(settings.temperature)};
  draw.offer(largest, first);
  kernels.draw_from_row(row, draw);
  return draw.token;
}

/// log_softmax of a row.
struct LogSoftmax {
  float largest;
  double log_total;  ///< of the masses relative to the largest

  [[nodiscard]] float operator()(float logit) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (std::isnan(logit) || logit == -kInfinity) return -kInfinity;
    if (largest == kInfinity && logit < largest) return -kInfinity;
    const double relative = logit == largest ? 0 : double{logit} - double{largest};
    return static_cast<float>(relative - log_total);
  }
};

[[nodiscard]] inline LogSoftmax log_softmax(const LogitRow& row, const SamplerKernels& kernels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float largest = largest_logit(row);
  if (largest == -kInfinity) return {largest, 0};
  const double total =
      largest == kInfinity
          ? static_cast<double>(std::count(row.logits, row.logits + row.vocab, kInfinity))
          : kernels.sum_exp(row, largest, 1);
  return {largest, std::log(total)};
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
  // A banned token is never chosen but for token 0, when all are banned.
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

/// See ops/sampler.hpp, and the top of this file for what that leaves open. Throws ShapeError when
/// the operands do not fit together or a banned token does not exist, and ConfigError for a
/// temperature that is negative or not finite.
inline void sample(const SampleArgs& args, const Context& context) {
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

inline void run_op(const SampleArgs& args, Context& context) { sample(args, context); }

}  // namespace nanovllm::cpu
