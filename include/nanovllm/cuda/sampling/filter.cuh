#pragma once
/// top_k, top_p and min_p: what they keep of a row, and the draw from that.
///
/// Each filter keeps a prefix of the tokens in descending order (lower ids first among equals), and
/// so do all together: they end in one `Cut`. The k-th largest of the tiles' maxima is a lower
/// bound of the k-th largest logit, so that for the usual top_k about as many tiles are read and
/// tokens sorted as tokens are kept. top_p alone needs the mass of all tokens, which the first
/// kernel has added up, and looks only at tokens so likely that those below them have half of what
/// may be left out. Masses are within 3e-12: a prefix within that of top_p may fall either way.

#include <cstdint>
#include <limits>

#include "nanovllm/cuda/sampling/exponential_race.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/select.cuh"

namespace nanovllm::cuda {

/// Shared memory of the draw from a filtered row.
struct FilterShared {
  SelectShared select;
  ExponentialRace race;
  Scored best[kSelectWarps];
  double sums[kSelectWarps];
};

/// What the filters keep. Where `list_size` ≥ 0, all of it is among that many first tokens of the
/// list in shared memory.
struct Kept {
  Cut cut;
  int list_size = -1;
};

/// top_k. Contains barriers.
__device__ inline Kept apply_top_k(RowTiles row, std::uint32_t top_k, SelectShared& shared) {
  Kept kept;
  const std::uint32_t low = bound_of_largest(row, top_k, kLowestKey, shared);
  const std::uint32_t size = gather(row, {.key = low}, row.largest_key(), shared);
  if (size > kSelectCapacity) {
    kept.cut = find_prefix(row, {.by_mass = false, .count = top_k, .mass = 0}, low,
                           row.largest_key(), shared);
    kept.cut.last = std::numeric_limits<TokenId>::max();  // ties stay
    return kept;
  }
  kept.list_size = static_cast<int>(size);
  if (size <= kSelectFew) return kept;  // the rest is choose_from_few
  sort_list(shared, kept.list_size);
  if (size >= top_k) kept.cut.key = list_key(shared, static_cast<int>(top_k) - 1);
  return kept;
}

/// top_p of what is in the list and kept by `cut`. Contains barriers.
__device__ inline Cut apply_top_p_to_list(RowTiles row, float top_p, const Kept& kept,
                                          SelectShared& shared) {
  const auto item = [&](int i, std::uint32_t& count, Mass& mass) {
    if (i >= kept.list_size || list_key(shared, i) < kept.cut.key) return;
    count = 1;
    mass = row.mass_of_key(list_key(shared, i));
  };
  Goal goal{.by_mass = true, .count = 0, .mass = std::numeric_limits<double>::infinity()};
  const Mass total = find_crossing<kSelectCapacity / kSelectThreads>(shared, goal, item);
  goal.mass = double{top_p} * static_cast<double>(total);
  find_crossing<kSelectCapacity / kSelectThreads>(shared, goal, item);
  const int last = shared.crossing.index;
  if (last < 0) return kept.cut;
  return {.key = list_key(shared, last), .last = list_id(shared, last)};
}

/// The mass of the tokens with keys from `low` on. Contains barriers.
__device__ __noinline__ inline Mass mass_above(RowTiles row, std::uint32_t low,
                                               SelectShared& shared) {
  Mass mine = 0;
  visit_tiles(row, low, [&](TokenId, const std::uint32_t(&keys)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) mine += keys[i] >= low ? row.mass_of_key(keys[i]) : 0;
  });
  const Goal none{.by_mass = true, .count = 0, .mass = std::numeric_limits<double>::infinity()};
  return find_crossing<1>(shared, none, [&](int, std::uint32_t&, Mass& mass) { mass = mine; });
}

/// Σ e^((logit - largest) / temperature) of the row. Contains barriers.
__device__ __noinline__ inline double total_mass(RowTiles row, double (&sums)[kSelectWarps]) {
  double sum = 0;
  visit_tiles(row, kLowestKey, [&](TokenId, const std::uint32_t(&keys)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += keys[i] >= kLowestKey ? mass_of(logit_of(keys[i]), row.largest, row.scale) : 0;
    }
  });
  sum = warp_sum(sum);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

/// The key from which on all tokens together have all but half of what top_p may leave out. `total`
/// is the mass of all tokens.
__device__ inline std::uint32_t bound_of_top_p(RowTiles row, const SamplingRow& settings,
                                               double total) {
  const double share = fmax(0., (1 - double{settings.top_p}) / 2 - 1e-9);
  const double depth = fmax(0., log(static_cast<double>(row.vocab) / (share * total)));
  const double bound = double{row.largest} - depth * double{settings.temperature};
  const float lowest = std::numeric_limits<float>::lowest();
  return key_of(bound > double{lowest} ? clean(__double2float_rd(bound)) : lowest);
}

/// The smallest key whose mass is at least min_p.
__device__ inline std::uint32_t bound_of_min_p(RowTiles row, float min_p) {
  const double least = fmin(1., double{min_p});
  return first_key(kLowestKey, row.largest_key(), [&](std::uint32_t key) {
    return mass_of(logit_of(key), row.largest, row.scale) >= least;
  });
}

/// The draw from a row with top_k of which the list has all that top_k may keep, unsorted: a thread
/// per token finds how many tokens, and how much mass, come before its own. Contains barriers.
__device__ inline TokenId choose_from_few(RowTiles row, const SamplingRow& settings, Draw draw,
                                          int size, FilterShared& shared) {
  SelectShared& select = shared.select;
  const auto thread = static_cast<int>(threadIdx.x);
  const bool has_token = thread < size, by_mass = settings.top_p < 1;
  const unsigned long long mine = has_token ? select.list[thread] : 0;
  const auto key = static_cast<std::uint32_t>(mine >> 32);
  if (has_token && by_mass) select.few_masses[thread] = row.mass_of_key(key);
  if (thread == 0) select.few_kth = kLowestKey;
  __syncthreads();
  std::int32_t before = 0;
  Mass mass_before = 0, total = 0;
  if (has_token) {
    for (int i = 0; i < size; ++i) {
      const bool is_before = select.list[i] > mine;
      before += is_before ? 1 : 0;
      if (by_mass && is_before) mass_before += select.few_masses[i];
    }
    if (before == settings.top_k - 1) select.few_kth = key;
  }
  const std::uint32_t least = settings.min_p > 0 ? bound_of_min_p(row, settings.min_p) : kLowestKey;
  __syncthreads();
  const std::uint32_t kth = select.few_kth;
  Scored best;
  if (has_token && key >= kth && key >= least) {
    bool is_kept = true;
    if (by_mass && before > 0) {
      for (int i = 0; i < size; ++i) total += list_key(select, i) >= kth ? select.few_masses[i] : 0;
      is_kept =
          static_cast<double>(mass_before) < double{settings.top_p} * static_cast<double>(total);
    }
    if (is_kept) best = draw.score(logit_of(key), list_id(select, thread));
  }
  best = warp_best(best);
  if (thread % 32 == 0) shared.best[thread / 32] = best;
  __syncthreads();
  for (int warp = 0; warp < kSelectFew / 32; ++warp) best.offer(shared.best[warp]);
  return best.id;
}

/// All three filters, except that of few tokens left by top_k only the list is made, unsorted, for
/// choose_from_few. Contains barriers.
__device__ inline Kept apply_filters(RowTiles row, const SamplingRow& settings,
                                     FilterShared& filter_shared) {
  SelectShared& shared = filter_shared.select;
  Kept kept;
  const bool by_top_k = has_top_k(settings, row.vocab);
  if (by_top_k) kept = apply_top_k(row, static_cast<std::uint32_t>(settings.top_k), shared);
  if (kept.list_size >= 0 && kept.list_size <= kSelectFew) return kept;
  if (settings.top_p < 1) {
    if (kept.list_size >= 0) {
      kept.cut = apply_top_p_to_list(row, settings.top_p, kept, shared);
    } else {
      const double total = by_top_k ? 0 : total_mass(row, filter_shared.sums);
      const std::uint32_t low = by_top_k ? kept.cut.key : bound_of_top_p(row, settings, total);
      const double all =
          by_top_k ? static_cast<double>(mass_above(row, low, shared)) : total * row.mass_unit;
      const Goal goal{.by_mass = true, .count = 0, .mass = double{settings.top_p} * all};
      kept.cut = find_prefix(row, goal, low, row.largest_key(), shared);
    }
  }
  if (settings.min_p > 0) {
    const std::uint32_t bound = bound_of_min_p(row, settings.min_p);
    if (bound > kept.cut.key) kept.cut = {.key = bound};
  }
  return kept;
}

/// Draws from a list. Contains barriers.
__device__ inline TokenId draw_from_list(const Kept& kept, Draw draw, FilterShared& shared) {
  Scored best;
  for (int i = static_cast<int>(threadIdx.x); i < kept.list_size; i += kSelectThreads) {
    const std::uint32_t key = list_key(shared.select, i);
    const TokenId id = list_id(shared.select, i);
    if (kept.cut.keeps(key, id)) best.offer(draw.score(logit_of(key), id));
  }
  return block_best(best, shared.best).id;
}

/// Draws from what is kept. Contains barriers.
__device__ inline TokenId draw_kept(RowTiles row, const Kept& kept, Draw draw,
                                    FilterShared& shared) {
  if (kept.list_size >= 0) return draw_from_list(kept, draw, shared);
  if (threadIdx.x == 0) shared.race.start();
  __syncthreads();
  if (!draw.needs_exact) {
    visit_tiles(row, kept.cut.key, [&](TokenId first, const std::uint32_t(&keys)[4]) {
      float logits[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        logits[i] = kept.cut.keeps(keys[i], first + i) ? logit_of(keys[i])
                                                       : -std::numeric_limits<float>::infinity();
      }
      const std::uint32_t group = static_cast<std::uint32_t>(first) / 4;
      const Noise noise = draw.noise(logits, group);
      const bool is_open = shared.race.bound() == std::numeric_limits<float>::infinity();
      if (__any_sync(kAllLanes, is_open)) {
        offer_bound(shared.race, noise);
        __syncwarp();
      }
      enter(shared.race, noise, logits, group);
    });
  }
  __syncthreads();
  if (!draw.is_void(shared.race)) {
    return shared.race.candidates[find_winner(shared.race, draw)].id;
  }
  Scored best;
  visit_tiles(row, kept.cut.key, [&](TokenId first, const std::uint32_t(&keys)[4]) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t key = i < 2 ? (i == 0 ? keys[0] : keys[1]) : (i == 2 ? keys[2] : keys[3]);
      if (kept.cut.keeps(key, first + i)) best.offer(draw.score(logit_of(key), first + i));
    }
  });
  return block_best(best, shared.best).id;
}

}  // namespace nanovllm::cuda
