#pragma once
/// `sample` on CUDA; see ops/sampler.hpp for the contract.
///
/// Two kernels, whatever the rows ask for, so that a captured graph decides again in each replay:
/// 1. `sample_scan_kernel` (scan.cuh), a block per (row, slice), reads the logits once;
/// 2. `sample_finish_kernel`, a block per row, merges the slices. Rows that are greedy or drawn
///    from the whole vocabulary are done then; for the others it finds what the filters keep and
///    draws (filter.cuh); with top_p alone it draws without finding that, by a cluster of blocks a
///    row while there are few rows (nucleus.cuh). A second block per row lists the most likely
///    tokens (logprobs.cuh).
/// Steps whose caller promises that no row has filters or bans have a separate kernel (plain.cuh).
///
/// Tokens are those of cpu::sample: what might win is scored in float64 (math.cuh), and the
/// filters' cuts are exact except for a top_p within 3e-12 of a prefix's mass. Results do not
/// depend on the other rows nor on the order in which blocks run, and repeat bit by bit.
/// Log-probabilities are within 1e-5. What the contract leaves open is as on the CPU: NaN counts as
/// -inf, a largest logit of +inf wins whatever the temperature, without a logit above -inf the
/// lowest id that is not banned wins (0 when all are), and of more log-probabilities than tokens
/// those that do not exist are not written.
///
/// Settings and bans are read on the device and not checked: banned ids outside the vocabulary are
/// ignored, and no more than top_tokens.extent(1) tokens are listed. The logits are left as they
/// are.
///
/// Operands: logits of any row stride and alignment (16-byte loads where a row is 16-byte aligned;
/// in the second kernel only if the vocabulary is a multiple of 4, too).
/// Bytes: 4 · rows · vocab read once by the first kernel; the second reads the tiles that may hold
/// kept tokens (top_k = 20: about 20 · 512 bytes a row; top_p alone: an eighth of the row, and up
/// to all of it).
/// Measured: sampler_bench, cuda_sampler.json, needed: with scan.cuh 66 us for 256 rows with top_k
/// 20 and top_p 0.95, 191 with top_p alone; one read of the logits takes 36.5.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/filter.cuh"
#include "nanovllm/cuda/sampling/logprobs.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/nucleus.cuh"
#include "nanovllm/cuda/sampling/plain.cuh"
#include "nanovllm/cuda/sampling/scan.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cuda {

/// What the slices of a row say together.
struct RowSummary {
  float largest;  ///< after bans
  TokenId first;  ///< the lowest id with it
  LogSoftmax log_prob;
  double mass;
};

/// Σ e^(logit - largest) of a row's parts, or how many are +inf where `largest` is; every warp does
/// it for itself.
__device__ inline double sum_of_parts(const SlicePart* parts, int num_parts, float largest) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x % 32); i < num_parts; i += 32) {
    const float largest_of_part = parts[i].original_largest;
    if (largest_of_part == largest)
      sum += parts[i].original_sum;
    else if (largest < std::numeric_limits<float>::infinity()) {
      sum += parts[i].original_sum * mass_of(largest_of_part, largest, kLog2E);
    }
  }
  return warp_sum(sum);
}

/// Merges the parts of a row; every warp does it for itself.
__device__ inline RowSummary merge_parts(const SlicePart* parts, int num_parts,
                                         const SamplingRow& settings) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Scored first, original;  // a largest logit is a score, too
  for (int i = lane; i < num_parts; i += 32) {
    first.offer({double{parts[i].largest}, parts[i].first});
    if (settings.num_logprobs >= 0) original.offer({double{parts[i].original_largest}, i});
  }
  first = warp_best(first);
  RowSummary out{};
  out.largest = static_cast<float>(first.score);
  out.first = first.id;
  if (settings.num_logprobs >= 0) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    original = warp_best(original);
    out.log_prob.largest = static_cast<float>(original.score);
    const double sum = sum_of_parts(parts, num_parts, out.log_prob.largest);
    out.log_prob.log_total = original.score > -kInfinity ? log(sum) : 0.;
  }
  if (settings.top_p < 1 && settings.temperature > 0) {
    double sum = 0;
    for (int i = lane; i < num_parts; i += 32) {
      if (!(parts[i].mass > 0)) continue;
      sum += parts[i].mass * mass_of(parts[i].largest, out.largest, mass_scale(settings));
    }
    out.mass = warp_sum(sum);
  }
  return out;
}

/// The winner among the slices' winners, by every warp for itself. As in a race, only those that
/// are close are scored.
__device__ inline TokenId merge_winners(const SlicePart* parts, int num_parts, Draw draw) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto arrival = [&](const SlicePart& part) {
    if (part.winner.id < 0) return std::numeric_limits<float>::infinity();
    return __fdividef(part.winner.arrival, draw.weight(part.largest));
  };
  float earliest = std::numeric_limits<float>::infinity();
  for (int i = lane; i < num_parts; i += 32) earliest = fminf(earliest, arrival(parts[i]));
  const float bound = __uint_as_float(__reduce_min_sync(kAllLanes, __float_as_uint(earliest))) *
                      (1.f + kArrivalSlack);
  Scored best;
  for (int i = lane; i < num_parts; i += 32) {
    const Candidate& winner = parts[i].winner;
    if (winner.id < 0 || !(draw.needs_exact || arrival(parts[i]) <= bound)) continue;
    best.offer(draw.score(winner.logit, winner.id, winner.bits));
  }
  return warp_best(best).id;
}

/// The lowest id that is not banned, 0 when all are. Contains barriers.
__device__ inline TokenId lowest_allowed(const std::uint32_t* ban_bits, std::int64_t vocab,
                                         TokenId& shared) {
  if (ban_bits == nullptr) return 0;
  constexpr TokenId kNone = std::numeric_limits<TokenId>::max();
  if (threadIdx.x == 0) shared = kNone;
  __syncthreads();
  for (std::int64_t id = threadIdx.x; id < vocab; id += blockDim.x) {
    if ((ban_bits[id / 32] >> static_cast<unsigned>(id % 32) & 1) != 0) continue;
    atomicMin(&shared, static_cast<TokenId>(id));
    break;
  }
  __syncthreads();
  return shared == kNone ? 0 : shared;
}

/// Rules 2 to 4 of the contract for a row whose slices are merged. Contains barriers.
__device__ inline TokenId choose(RowTiles row, const SamplingRow& settings,
                                 const RowSummary& summary, const SlicePart* parts, int num_parts,
                                 FilterShared& shared) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (summary.largest == -kInfinity) {
    return lowest_allowed(row.ban_bits, row.vocab, shared.best[0].id);
  }
  if (!(settings.temperature > 0) || summary.largest == kInfinity) return summary.first;
  const Draw draw(settings, summary.largest);
  if (!has_filter(settings, row.vocab)) return merge_winners(parts, num_parts, draw);
  const Kept kept = apply_filters(row, settings, shared);
  if (kept.list_size >= 0 && kept.list_size <= kSelectFew) {
    return choose_from_few(row, settings, draw, kept.list_size, shared);
  }
  return draw_kept(row, kept, draw, shared);
}

/// The token of a row with a nucleus, kNoToken where `choose` must find it. Called by all blocks of
/// the row's cluster. Contains barriers.
__device__ inline TokenId choose_in_nucleus(RowTiles row, const SamplingRow& settings,
                                            const RowSummary& summary, NucleusShared& shared) {
  if (!(fabsf(summary.largest) < std::numeric_limits<float>::infinity())) return kNoToken;
  const Draw draw(settings, summary.largest);
  if (draw.needs_exact) return kNoToken;
  const float least = settings.min_p > 0 ? logit_of(bound_of_min_p(row, settings.min_p))
                                         : std::numeric_limits<float>::lowest();
  return draw_from_nucleus(row, settings, draw, summary.mass, summary.first, least, shared);
}

/// Shared memory of a block of the second kernel; a nucleus is done with before a filter begins.
union FinishShared {
  FilterShared filter;
  NucleusShared nucleus;
};

/// Grid (rows · blocks of a cluster, 1 or 2), clusters along x: blocks with blockIdx.y = 0 choose,
/// those with 1 list the most likely tokens. Only rows with a nucleus need more than the first
/// block of their cluster. Dynamic shared memory: a FinishShared.
/// @param mass_unit  see RowTiles
template <int kThreads, int kBlocksPerSm>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    sample_finish_kernel(const SampleArgs args, const SamplerScratch scratch, int num_parts,
                         double mass_unit) {
  static_assert(kThreads == kSelectThreads);
  extern __shared__ __align__(16) std::byte finish_shared[];
  auto& shared = *reinterpret_cast<FinishShared*>(finish_shared);
  grid_dependency_launch();
  grid_dependency_wait();
  const BlockCluster cluster;
  const std::int64_t r = blockIdx.x / static_cast<unsigned>(cluster.size);
  const std::int64_t vocab = args.logits.extent(1);
  const SamplingRow settings = args.batch.rows.data[r];
  const bool lists = blockIdx.y == 1;
  if (lists && settings.num_logprobs <= 0) return;
  const bool by_nucleus = !lists && has_nucleus(settings, vocab);
  if (cluster.rank > 0 && !by_nucleus) return;
  const bool has_bans = args.batch.banned.starts.data[r] < args.batch.banned.starts.data[r + 1];
  const SlicePart* const parts = scratch.parts + r * scratch.part_pitch;
  const RowSummary summary = merge_parts(parts, num_parts, settings);
  const float* const logits = args.logits.at(r);
  const std::uint32_t* const maxima =
      (lists && has_bans ? scratch.original_maxima : scratch.maxima) + r * scratch.tile_pitch;
  if (lists) {
    const RowTiles row{logits, vocab, maxima, nullptr, summary.log_prob.largest, 0, mass_unit};
    const std::int64_t count =
        min(min(std::int64_t{settings.num_logprobs}, vocab), args.top_tokens.extent(1));
    write_most_likely(row, static_cast<std::uint32_t>(count), summary.log_prob,
                      shared.filter.select, args.top_tokens.at(r), args.top_logprobs.at(r));
    return;
  }
  const RowTiles row{
      logits,          vocab,
      maxima,          has_bans ? scratch.ban_bits + r * scratch.word_pitch : nullptr,
      summary.largest, mass_scale(settings),
      mass_unit};
  TokenId token = kNoToken;
  if (by_nucleus) token = choose_in_nucleus(row, settings, summary, shared.nucleus);
  if (cluster.rank > 0) return;
  if (token == kNoToken) token = choose(row, settings, summary, parts, num_parts, shared.filter);
  if (threadIdx.x != 0) return;
  args.tokens.data[r] = token;
  if (settings.num_logprobs >= 0) {
    args.logprobs.data[r] = summary.log_prob(clean(logits[token]));
  }
}

template <int kGroups>
void launch_sample_scan(const SampleArgs& args, const SamplerScratch& scratch, int num_parts,
                        const VocabPlace& place, const Context& context) {
  const auto rows = static_cast<unsigned>(args.logits.extent(0));
  launch(sample_scan_kernel<kGroups>,
         {.grid = dim3(static_cast<unsigned>(num_parts), rows),
          .block = dim3(SampleScanTraits<kGroups>::kThreads)},
         context, args, scratch, place);
}

/// Starts the first kernel, if the rows have tokens, and returns how many slices each has.
int launch_sample_scan(const SampleArgs& args, const SamplerScratch& scratch,
                       const VocabPlace& place, const LaunchContext auto& context) {
  const SampleSlices slices =
      sample_slices(args.logits.extent(0), args.logits.extent(1), context.num_sms);
  if (slices.num_parts == 0) return 0;
  if (slices.groups == kLongSliceGroups) {
    launch_sample_scan<kLongSliceGroups>(args, scratch, slices.num_parts, place, context);
  } else {
    launch_sample_scan<kShortSliceGroups>(args, scratch, slices.num_parts, place, context);
  }
  return slices.num_parts;
}

/// Starts the second kernel on what the first left in `scratch`, `num_parts` slices a row.
void launch_sample_finish(const SampleArgs& args, const SamplerScratch& scratch, int num_parts,
                          const LaunchContext auto& context) {
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  const int cluster = context.has_clusters ? sample_finish_cluster(rows, context.num_sms) : 1;
  const LaunchConfig config{
      .grid = dim3(static_cast<unsigned>(rows * cluster), args.top_tokens.extent(1) > 0 ? 2 : 1),
      .block = dim3(kSelectThreads),
      .shared_bytes = sizeof(FinishShared),
      .cluster = cluster};
  auto* const kernel = sample_finish_blocks_per_sm(rows, context.num_sms) == 1
                           ? sample_finish_kernel<kSelectThreads, 1>
                           : sample_finish_kernel<kSelectThreads, 2>;
  launch(kernel, config, context, args, scratch, num_parts, sample_mass_unit(vocab));
}

/// See ops/sampler.hpp and the top of this file. Throws ShapeError when the operands do not fit
/// together or into the workspace, CudaError when a launch is refused. All pointers are the
/// device's; nothing they point to is looked at on the host.
void sample(const SampleArgs& args, SamplerWorkspace& workspace,
            const LaunchContext auto& context) {
  validate(args);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (rows == 0) return;
  check<ShapeError>(
      rows <= std::min<std::int64_t>(workspace.max_rows(), 65535) && vocab <= workspace.max_vocab(),
      "sample: 'logits' must have at most ", workspace.max_rows(), " rows (65535 at most) and ",
      workspace.max_vocab(), " columns, the workspace's, got ", shape_string(args.logits));
  const std::int64_t width = args.top_tokens.extent(1);
  check<ShapeError>(width <= kMaxTopTokens, "sample: 'top_tokens' must have at most ",
                    kMaxTopTokens, " columns, got ", width);
  if (args.plain) return sample_plain(args, workspace.scratch(), context);
  const int num_parts = launch_sample_scan(args, workspace.scratch(), {.size = vocab}, context);
  launch_sample_finish(args, workspace.scratch(), num_parts, context);
}

template <class State>
void run_op(const SampleArgs& args, State& state) {
  sample(args, *state.sampler, state.context);
}

}  // namespace nanovllm::cuda
