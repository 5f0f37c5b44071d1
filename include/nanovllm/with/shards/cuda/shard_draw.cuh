#pragma once
/// `survey_shard` and `draw_shard` on CUDA; see with/shards/shard_draw.hpp for the contract.
///
/// A survey is the scan of `sample` (scan.cuh) and a block per row that lists what is largest. The
/// draw after it is a block per row: from the surveys it finds what the filters keep, the same in
/// every shard, and draws from that. Slices, tiles' maxima and bans stay in the sampler's workspace
/// between the two. Of plain rows the draw is one kernel, that of `sample` (plain.cuh).
///
/// Ids within a shard count from its first token. Masses are integers in the units of `sample`, so
/// that cuts are those of the whole row. What is beyond the contract is as in sampler.cuh.
///
/// Bytes: 4 · rows · tokens of the shard read once; tiles that may hold listed or kept tokens
/// again; 520 a row and shard of surveys, of which what is listed is touched.
/// Measured: engine_bench, cuda_tp2_draws.json, with pick_winner.cuh a step of 256 sequences on two
/// GPUs 3.40 to 3.15 ms (0.6B, 7.5%), 7.56 to 7.33 (8B, 3.0%).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/filter.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/plain.cuh"
#include "nanovllm/cuda/sampling/sampler.cuh"
#include "nanovllm/cuda/sampling/scan.cuh"
#include "nanovllm/cuda/sampling/select.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/with/shards/cuda/pick_winner.cuh"
#include "nanovllm/with/shards/shard_draw.hpp"

namespace nanovllm::cuda {

static_assert(kMaxShards * kShardTop <= kSelectCapacity && kWinnerWords == kPartWinnerWords);

/// Shared memory of a block that surveys a row.
struct SurveyShared {
  SelectShared select;
  std::uint32_t num_ties;
};

/// A row's largest logit after the bans, and the lowest id with it.
__device__ inline RowSummary merge_largest(const SlicePart* parts, int num_parts,
                                           SamplingRow settings) {
  settings.num_logprobs = -1;
  settings.top_p = 1;
  return merge_parts(parts, num_parts, settings);
}

/// Row r as the selection reads it.
__device__ inline RowTiles tiles_of_shard(const ShardLogits& logits, const SamplingBatch& batch,
                                          const SamplerScratch& scratch, std::int64_t r,
                                          float largest, double mass_unit) {
  const bool has_bans = batch.banned.starts.data[r] < batch.banned.starts.data[r + 1];
  return {logits.values.at(r),
          logits.values.extent(1),
          scratch.maxima + r * scratch.tile_pitch,
          has_bans ? scratch.ban_bits + r * scratch.word_pitch : nullptr,
          largest,
          mass_scale(batch.rows.data[r]),
          mass_unit};
}

/// Lists the `count` ≤ vocab largest tokens, best first, in shared memory, and perhaps more after
/// them. Contains barriers.
__device__ inline void list_largest(RowTiles row, std::uint32_t count, SelectShared& shared) {
  const std::uint32_t low = bound_of_largest(row, count, kMinusInfKey, shared);
  std::uint32_t size = gather(row, {.key = low}, row.largest_key(), shared);
  if (size > kSelectCapacity) {
    const Cut cut = find_prefix(row, {.by_mass = false, .count = count, .mass = 0}, low,
                                row.largest_key(), shared);
    size = gather(row, cut, row.largest_key(), shared);
  }
  sort_list(shared, static_cast<int>(size));
}

/// How many tokens have the key of the list's `k`-th and are not among its first k. Contains
/// barriers.
__device__ inline std::uint32_t count_ties(RowTiles row, int k, SurveyShared& shared) {
  const std::uint32_t key = list_key(shared.select, k - 1);
  if (key == kMinusInfKey) return 0;
  if (threadIdx.x == 0) shared.num_ties = 0;
  __syncthreads();
  std::uint32_t mine = 0;
  visit_tiles(row, key, [&](TokenId, const std::uint32_t(&keys)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) mine += keys[i] == key ? 1 : 0;
  });
  if (static_cast<int>(threadIdx.x) < k && list_key(shared.select, threadIdx.x) == key) --mine;
  if (mine != 0) atomicAdd(&shared.num_ties, mine);  // wraps to the right sum
  __syncthreads();
  return shared.num_ties;
}

/// A block for each row. Dynamic shared memory: a SurveyShared.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 2)
    survey_shard_kernel(const SurveyShardArgs args, const SamplerScratch scratch, int num_parts) {
  extern __shared__ __align__(16) std::byte survey_shared[];
  auto& shared = *reinterpret_cast<SurveyShared*>(survey_shared);
  static_assert(kThreads == kSelectThreads && kShardTop <= kThreads);
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t r = blockIdx.x, vocab = args.logits.values.extent(1);
  const SamplingRow settings = args.batch.rows.data[r];
  const float largest =
      merge_largest(scratch.parts + r * scratch.part_pitch, num_parts, settings).largest;
  float* const words = args.survey.at(r);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) words[0] = largest;
  const int listed = min(num_listed(settings), static_cast<std::int32_t>(kShardTop));
  const int count = static_cast<int>(min(std::int64_t{listed}, vocab));
  if (count > 0) {
    const RowTiles row = tiles_of_shard(args.logits, args.batch, scratch, r, largest, 1);
    list_largest(row, static_cast<std::uint32_t>(count), shared.select);
    const int k = settings.temperature > 0 ? settings.top_k : 0;
    const std::uint32_t ties = k > 0 && k <= count ? count_ties(row, k, shared) : 0;
    if (thread == 0) words[1] = __uint_as_float(ties);
  }
  if (thread >= listed) return;
  const bool is_there = thread < count;
  words[2 + 2 * thread] = is_there ? logit_of(list_key(shared.select, thread))
                                   : -std::numeric_limits<float>::infinity();
  words[3 + 2 * thread] = __int_as_float(
      is_there ? list_id(shared.select, thread) + static_cast<TokenId>(args.logits.first_token)
               : kNoToken);
}

/// The surveys of one row.
struct RowSurveys {
  const float* words;
  int num_shards;

  [[nodiscard]] __device__ const float* of(int shard) const { return words + shard * kSurveyWords; }
  /// The largest logit of all shards, by every thread for itself.
  [[nodiscard]] __device__ float largest() const {
    float out = -std::numeric_limits<float>::infinity();
    for (int s = 0; s < num_shards; ++s) out = fmaxf(out, of(s)[0]);
    return out;
  }
};

/// What top_k, and top_p after it, keep of shard `shard`. `row` is that shard, with the largest
/// logit of all. Contains barriers.
__device__ inline Cut cut_by_surveys(RowTiles row, const SamplingRow& settings, RowSurveys surveys,
                                     int shard, std::int64_t first_token, SelectShared& shared) {
  const int k = min(settings.top_k, static_cast<std::int32_t>(kShardTop));
  const int size = surveys.num_shards * k;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSelectThreads) {
    const std::uint32_t key = key_of(clean(surveys.of(i / k)[2 + 2 * (i % k)]));
    shared.list[i] = key > kMinusInfKey ? static_cast<unsigned long long>(key) << 32 |
                                              ~static_cast<std::uint32_t>(i)
                                        : 0;
  }
  sort_list(shared, size);
  // Where the shards have fewer than k tokens above -inf, all of them are kept.
  Cut cut{.key = max(list_key(shared, k - 1), kLowestKey)};
  if (!(settings.top_p < 1)) return cut;
  // After a shard's k-th token are those with the same logit that it has not listed.
  const auto weight = [&](int i) {
    const TokenId place = list_id(shared, i);
    return place % k == k - 1 ? 1 + __float_as_uint(surveys.of(place / k)[1]) : 1u;
  };
  const auto item = [&](int i, std::uint32_t& count, Mass& mass) {
    if (i >= size || list_key(shared, i) < cut.key) return;
    count = weight(i);
    mass = row.mass_of_key(list_key(shared, i)) * count;
  };
  constexpr int kPer = kSelectCapacity / kSelectThreads;
  Goal goal{.by_mass = true, .count = 0, .mass = std::numeric_limits<double>::infinity()};
  goal.mass = double{settings.top_p} * static_cast<double>(find_crossing<kPer>(shared, goal, item));
  find_crossing<kPer>(shared, goal, item);
  const auto crossing = shared.crossing;
  if (crossing.index < 0) return cut;
  const TokenId place = list_id(shared, crossing.index);
  cut.key = list_key(shared, crossing.index);
  // Of equal tokens, those of earlier shards are kept and those of later ones are not.
  if (place / k < shard) cut.last = kNoToken;
  if (place / k != shard) return cut;
  const float* const own = surveys.of(shard);
  const Mass each = row.mass_of_key(cut.key);
  const double rest = goal.mass - static_cast<double>(crossing.mass_before);
  std::uint32_t kept = 1;
  if (crossing.count > 1) {
    kept = static_cast<std::uint32_t>(
        fmin(fmax(ceil(rest / static_cast<double>(each)), 1.), crossing.count));
  }
  if (kept == 1) {
    cut.last = __float_as_int(own[3 + 2 * (place % k)]) - static_cast<TokenId>(first_token);
    return cut;
  }
  std::uint32_t before = 0;
  for (int j = 0; j < k; ++j) before += key_of(clean(own[2 + 2 * j])) == cut.key ? 1 : 0;
  cut.last = find_tie(row, cut.key, before + kept - 1, shared);
  return cut;
}

/// What wins in the shard: an id within it, kNoToken for none. `row` has the shard's own largest
/// logit. Contains barriers.
__device__ inline TokenId win_in_shard(RowTiles row, const DrawShardArgs& args,
                                       const SamplingRow& settings, TokenId first,
                                       RowSurveys surveys, float of_all, const SlicePart* parts,
                                       int num_parts, FilterShared& shared) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (row.vocab == 0) return kNoToken;
  if (row.largest == -kInfinity) {
    const TokenId lowest = lowest_allowed(row.ban_bits, row.vocab, shared.best[0].id);
    const bool is_banned = row.ban_bits != nullptr && (row.ban_bits[0] & 1) != 0;
    return lowest == 0 && is_banned ? kNoToken : lowest;
  }
  if (!(settings.temperature > 0) || row.largest == kInfinity) return first;
  const Draw draw(settings, row.largest, static_cast<std::uint32_t>(args.logits.first_token / 4));
  if (!has_filter(settings, args.logits.vocab_size)) return merge_winners(parts, num_parts, draw);
  if (of_all == kInfinity) return first;  // another shard's wins
  RowTiles whole = row;
  whole.largest = of_all;
  Cut cut;
  if (settings.top_k > 0) {
    cut = cut_by_surveys(whole, settings, surveys, static_cast<int>(args.shard),
                         args.logits.first_token, shared.select);
  }
  if (settings.min_p > 0) {
    const std::uint32_t bound = bound_of_min_p(whole, settings.min_p);
    if (bound > cut.key) cut = {.key = bound};
  }
  if (!cut.keeps(row.largest_key(), first)) return kNoToken;
  __syncthreads();
  return draw_kept(row, {.cut = cut}, draw, shared);
}

/// A block for each row. Dynamic shared memory: a FilterShared.
/// @param mass_unit  see RowTiles; that of the whole vocabulary
template <int kBlocksPerSm>
__global__ void __launch_bounds__(kSelectThreads, kBlocksPerSm)
    draw_shard_kernel(const DrawShardArgs args, const SamplerScratch scratch, int num_parts,
                      double mass_unit) {
  extern __shared__ __align__(16) std::byte draw_shared[];
  auto& shared = *reinterpret_cast<FilterShared*>(draw_shared);
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t r = blockIdx.x;
  const SamplingRow settings = args.batch.rows.data[r];
  const SlicePart* const parts = scratch.parts + r * scratch.part_pitch;
  const RowSummary summary = merge_largest(parts, num_parts, settings);
  const RowSurveys surveys{args.surveys.at(r),
                           static_cast<int>(args.surveys.extent(1) / kSurveyWords)};
  const float of_all = surveys.largest();
  double sum = 0;
  if (settings.num_logprobs >= 0 && of_all > -std::numeric_limits<float>::infinity())
    sum = sum_of_parts(parts, num_parts, of_all);
  const RowTiles row =
      tiles_of_shard(args.logits, args.batch, scratch, r, summary.largest, mass_unit);
  const TokenId id =
      win_in_shard(row, args, settings, summary.first, surveys, of_all, parts, num_parts, shared);
  if (threadIdx.x != 0) return;
  const bool wins = id != kNoToken;
  write_winner(args.winner.at(r),
               wins && summary.largest > -std::numeric_limits<float>::infinity()
                   ? clean(row.logits[id])
                   : -std::numeric_limits<float>::infinity(),
               wins ? id + static_cast<TokenId>(args.logits.first_token) : kNoToken, sum);
}

namespace detail {

/// The rows of a shard as operands of `sample`, without results.
[[nodiscard]] inline SampleArgs rows_to_draw(const ShardLogits& logits,
                                             const SamplingBatch& batch) {
  SampleArgs out;
  out.logits = logits.values;
  out.batch = batch;
  return out;
}

inline void check_shard_room(const char* op, const ShardLogits& logits,
                             const SamplerWorkspace& workspace) {
  const MatrixView<float>& values = logits.values;
  check<ShapeError>(values.extent(0) <= std::min<std::int64_t>(workspace.max_rows(), 65535) &&
                        values.extent(1) <= workspace.max_vocab(),
                    op, ": 'logits' must have at most ", workspace.max_rows(),
                    " rows (65535 at most) and ", workspace.max_vocab(),
                    " columns, the workspace's, got ", shape_string(values));
}

}  // namespace detail

/// See with/shards/shard_draw.hpp and the top of this file. Throws ShapeError when the operands do
/// not fit together or into the workspace, CudaError when a launch is refused. Nothing that
/// pointers point to is looked at on the host.
void survey_shard(const SurveyShardArgs& args, SamplerWorkspace& workspace,
                  const LaunchContext auto& context) {
  validate(args);
  detail::check_shard_room("survey_shard", args.logits, workspace);
  const std::int64_t rows = args.logits.values.extent(0);
  if (rows == 0) return;
  const VocabPlace place{.first_token = args.logits.first_token, .size = args.logits.vocab_size};
  const int num_parts = launch_sample_scan(detail::rows_to_draw(args.logits, args.batch),
                                           workspace.scratch(), place, context);
  launch(survey_shard_kernel<kSelectThreads>,
         {.grid = static_cast<unsigned>(rows),
          .block = kSelectThreads,
          .shared_bytes = sizeof(SurveyShared)},
         context, args, workspace.scratch(), num_parts);
}

/// The same of the draw.
void draw_shard(const DrawShardArgs& args, SamplerWorkspace& workspace,
                const LaunchContext auto& context) {
  validate(args);
  detail::check_shard_room("draw_shard", args.logits, workspace);
  const MatrixView<float>& logits = args.logits.values;
  const std::int64_t rows = logits.extent(0), size = logits.extent(1);
  if (rows == 0) return;
  if (args.surveys.extent(1) == 0 && size > 0) {
    return sample_plain(detail::rows_to_draw(args.logits, args.batch), workspace.scratch(), context,
                        {args.logits.first_token, args.winner.data});
  }
  launch(sample_finish_blocks_per_sm(rows, context.num_sms) == 1 ? draw_shard_kernel<1>
                                                                 : draw_shard_kernel<2>,
         {.grid = static_cast<unsigned>(rows),
          .block = kSelectThreads,
          .shared_bytes = sizeof(FilterShared)},
         context, args, workspace.scratch(), sample_slices(rows, size, context.num_sms).num_parts,
         sample_mass_unit(args.logits.vocab_size));
}

template <class State>
void run_op(const SurveyShardArgs& args, State& state) {
  survey_shard(args, *state.sampler, state.context);
}
template <class State>
void run_op(const DrawShardArgs& args, State& state) {
  draw_shard(args, *state.sampler, state.context);
}

#if defined(NANOVLLM_CUDA_OPS)
#define NANOVLLM_CUDA_SHARDS_OPS(extern_or_nothing)     \
  NANOVLLM_CUDA_OP(extern_or_nothing, SurveyShardArgs); \
  NANOVLLM_CUDA_OP(extern_or_nothing, DrawShardArgs);   \
  NANOVLLM_CUDA_OP(extern_or_nothing, PickWinnerArgs)
NANOVLLM_CUDA_SHARDS_OPS(extern);
#endif

}  // namespace nanovllm::cuda
