#pragma once
/// What `sample` looks for in a row of logits: its largest, and what top_k, top_p and min_p keep of
/// it. sampler.hpp has the whole; the kernels are in sampler_kernels.inc.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
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
  /// Id of the first logit, a multiple of kLogitTile: the row may be a shard of one.
  std::int64_t first_token = 0;
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

/// Sums of e^((logit - largest) / temperature) of a row, in float32 within kTotalError.
struct RowMass {
  double total = 0;
  double kept = 0;  ///< of logits that are at least the cut's
};

/// By what tokens are compared: the largest wins.
[[nodiscard]] inline double score_of(const SamplingRow& settings, float logit, TokenId id) {
  const double temperature = settings.temperature;
  const double u = to_unit_interval(
      sampling_bits(settings.seed, settings.position, static_cast<std::uint32_t>(id)));
  return logit / temperature - std::log(-std::log1p(-u));
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
    const double score = score_of(settings, logit, id);
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
  decltype(&portable::sum_exp_before) sum_exp_before;
  decltype(&portable::guess_bound) guess_bound;
  decltype(&portable::draw_from_row) draw_from_row;
  decltype(&portable::draw_and_sum) draw_and_sum;

  explicit SamplerKernels(Isa isa)
      : find_tile_maxima(NANOVLLM_PICK(isa, find_tile_maxima)),
        sum_exp(NANOVLLM_PICK(isa, sum_exp)),
        gather_above(NANOVLLM_PICK(isa, gather_above)),
        sum_exp_before(NANOVLLM_PICK(isa, sum_exp_before)),
        guess_bound(NANOVLLM_PICK(isa, guess_bound)),
        draw_from_row(NANOVLLM_PICK(isa, draw_from_row)),
        draw_and_sum(NANOVLLM_PICK(isa, draw_and_sum)) {}
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

/// e^((logit - largest) / temperature): a probability relative to the largest.
[[nodiscard]] inline double mass_of(float logit, float largest, double temperature) {
  return std::exp((double{logit} - double{largest}) / temperature);
}

/// 1 / temperature, finite: where it saturates, only a factor of 0 needs it.
[[nodiscard]] inline float inverse(float temperature) {
  return std::min(1.f / temperature, std::numeric_limits<float>::max());
}

/// Finds the candidate at which the mass, best first, reaches top_p · total, and cuts there: a
/// selection by mass, as std::nth_element is one by number, that sorts only the last few.
/// @param count  ≥ 1
[[nodiscard]] inline Cut cut_by_mass(Candidate* candidates, std::int64_t count,
                                     const SamplingRow& settings, float largest, double total) {
  constexpr std::int64_t kFew = 64;
  const double target = double{settings.top_p} * total;
  const auto add_mass = [&](double mass, const Candidate& candidate) {
    return mass + mass_of(candidate.logit, largest, settings.temperature);
  };
  Candidate *begin = candidates, *end = candidates + count;  // it is one of these,
  double mass = 0;                                           // and this comes before them
  while (end - begin > kFew) {
    Candidate* const middle = begin + (end - begin) / 4;  // the prefix is short more often than not
    std::nth_element(begin, middle, end);
    const double more = std::accumulate(begin, middle, mass, add_mass);
    if (more >= target) {
      end = middle;
    } else {
      begin = middle;
      mass = more;
    }
  }
  std::partial_sort(begin, end, end);  // few; `write_most_likely` has the same
  for (; begin != end; ++begin) {
    mass = add_mass(mass, *begin);
    if (mass >= target || begin + 1 == end) break;  // sums in another order may round across
  }
  return {begin->logit, begin->id};
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

/// Whether top_p keeps a token of a row: whether the tokens before it have less than top_p of the
/// mass. The token drawn is asked, instead of all for the last that is kept.
struct Nucleus {
  const LogitRow& row;
  const SamplingRow& settings;
  const SamplerKernels& kernels;
  float largest;  ///< logit, finite
  double total;   ///< mass of all tokens, within kTotalError

  /// Not for the lowest id with the largest logit, which is kept always.
  [[nodiscard]] bool keeps(const Candidate& token) const {
    if (settings.temperature >= std::numeric_limits<float>::min()) {
      const double mass =
          kernels.sum_exp_before(row, largest, inverse(settings.temperature), token);
      const double target = double{settings.top_p} * total;
      if (mass * (1 + kTotalError) < target * (1 - kTotalError)) return true;
      if (mass * (1 - kTotalError) >= target * (1 + kTotalError)) return false;
    }
    return keeps_exactly(token);
  }

  /// The same, decided by sums in float64 in the order of ids.
  [[nodiscard]] bool keeps_exactly(const Candidate& token) const {
    double mass = 0, all = 0;
    for (std::int64_t i = 0; i < row.vocab; ++i) {
      const float x = row.logits[i];
      if (std::isnan(x)) continue;
      const double more = mass_of(x, largest, settings.temperature);
      all += more;
      if (Candidate{x, static_cast<TokenId>(i)} < token) mass += more;
    }
    return mass < double{settings.top_p} * all;
  }
};

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

/// Whether the row has top_p without a top_k before it. Then `draw_from_nucleus` has top_p.
[[nodiscard]] inline bool has_nucleus_of_all(const SamplingRow& settings, std::int64_t vocab) {
  return settings.top_p < 1 && !(settings.top_k > 0 && settings.top_k < vocab);
}

/// What top_k, top_p after it, and min_p leave of a row whose largest logit is finite. The lowest
/// id with the largest logit is always among it.
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
      cut = cut_by_mass(row.candidates, count, settings, largest, total);
    }
  }
  if (settings.min_p > 0) {
    const float bound = min_p_bound(settings, largest);
    if (bound > cut.logit) cut = {.logit = bound};
  }
  return cut;
}

/// The token drawn from what `cut` leaves, of whose tokens `first` is the best.
[[nodiscard]] inline Draw begin_draw(const SamplingRow& settings, const Cut& cut,
                                     const Candidate& first) {
  Draw draw{.settings = settings,
            .cut = cut,
            .largest = first.logit,
            .scale = inverse(settings.temperature)};
  draw.offer(first.logit, first.id);
  return draw;
}

/// The token drawn from what top_p, of all tokens, and `cut` keep. The winner among more tokens is
/// the winner among those kept if it is one of them; if it is not, they are all before it. So draws
/// go on among those, until one is kept: 1 - ln top_p draws in the mean, and hardly more than one
/// after a guess that leaves little more than what is kept.
/// @param first  the lowest id with the largest logit
/// @param cut    a bound alone, that of min_p
[[nodiscard]] inline TokenId draw_from_nucleus(const LogitRow& row, const SamplingRow& settings,
                                               const Cut& cut, const Candidate& first,
                                               const SamplerKernels& kernels) {
  const float scale = inverse(settings.temperature);
  const double top_p = settings.top_p;
  const Cut guess{
      .logit = std::max(cut.logit, kernels.guess_bound(row, first.logit, scale, settings.top_p))};
  Draw draw = begin_draw(settings, guess, first);
  const RowMass mass = kernels.draw_and_sum(row, draw);
  if (top_p * mass.total * (1 + kTotalError) <= 1) return first.id;
  const bool is_proven = mass.kept * (1 - kTotalError) >= top_p * mass.total * (1 + kTotalError);
  if (guess.logit > cut.logit && !is_proven) {
    draw = begin_draw(settings, cut, first);
    kernels.draw_from_row(row, draw);
  }
  const Nucleus nucleus{row, settings, kernels, first.logit, mass.total};
  while (draw.token != first.id) {
    const float logit = row.logits[draw.token];
    if (nucleus.keeps({logit, draw.token})) break;
    draw = begin_draw(settings, {logit, draw.token - 1}, first);
    kernels.draw_from_row(row, draw);
  }
  return draw.token;
}

}  // namespace detail
}  // namespace nanovllm::cpu
