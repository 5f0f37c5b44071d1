#pragma once
/// `pick_winner` on CUDA; see with/shards/shard_draw.hpp for the contract. A warp for each row.
///
/// Bytes a row: 16 for each shard read; with log-probabilities 8 for each of the listed tokens, of
/// which every one is compared with those of the other shards.
/// Measured: engine_bench, cuda_tp2_draws.json, with shard_draw.cuh a step of 256 sequences on two
/// GPUs 3.40 to 3.15 ms (0.6B, 7.5%), 7.56 to 7.33 (8B, 3.0%).

#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/logprobs.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/with/shards/shard_draw.hpp"

namespace nanovllm::cuda {

inline constexpr int kPickThreads = 128;
static_assert(kMaxShards <= 32, "a lane for each shard");

/// The id in a word of a message. That of no token is a NaN as a float, and a communicator may hand
/// on another NaN for it.
__device__ inline TokenId received_id(float word) {
  const int id = __float_as_int(word);
  return id == std::numeric_limits<int>::max() ? kNoToken : id;
}

/// A listed token of a shard, best first.
struct ListedToken {
  float logit;
  TokenId id;
};
__device__ inline ListedToken listed_token(const float* surveys, int shard, int index) {
  const float* const words = surveys + shard * kSurveyWords + 2 + 2 * index;
  return {words[0], received_id(words[1])};
}

/// Writes the `count` most likely tokens of all shards, best first. By one warp.
__device__ inline void merge_most_likely(const float* surveys, int num_shards, int count,
                                         const LogSoftmax& log_prob, TokenId* tokens,
                                         float* logprobs) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = lane; i < num_shards * count; i += 32) {
    const int shard = i / count;
    const ListedToken mine = listed_token(surveys, shard, i % count);
    if (mine.id == kNoToken) continue;
    int before = i % count;
    for (int other = 0; other < num_shards && before < count; ++other) {
      if (other == shard) continue;
      for (int j = 0; j < count; ++j) {
        const ListedToken token = listed_token(surveys, other, j);
        const bool is_before =
            token.logit > mine.logit || (token.logit == mine.logit && other < shard);
        if (token.id == kNoToken || !is_before) break;
        ++before;
      }
    }
    if (before >= count) continue;
    tokens[before] = mine.id;
    logprobs[before] = log_prob(mine.logit);
  }
}

/// A warp for each row.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) pick_winner_kernel(const PickWinnerArgs args) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t r = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (r >= args.rows.extent(0)) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int num_shards = static_cast<int>(args.winners.extent(1) / kWinnerWords);
  const SamplingRow settings = args.rows.data[r];
  float logit = -kInfinity;
  double sum = 0;
  Scored mine;
  if (lane < num_shards) {
    const float* const words = args.winners.at(r) + lane * kWinnerWords;
    const TokenId id = received_id(words[1]);
    sum = __hiloint2double(__float_as_int(words[3]), __float_as_int(words[2]));
    if (id != kNoToken) {
      logit = words[0];
      mine = {double{logit}, id};
      if (settings.temperature > 0) {
        const std::uint32_t bits =
            sampling_bits(settings.seed, settings.position, static_cast<std::uint32_t>(id));
        mine.score = score_of(logit, settings.temperature, bits);
      }
    }
  }
  const Scored best = warp_best(mine);
  const bool has_token = best.id != Scored{}.id;
  if (lane == 0) args.tokens.data[r] = has_token ? best.id : 0;
  if (settings.num_logprobs < 0 || args.surveys.extent(1) == 0) return;
  const unsigned owner = __ballot_sync(kAllLanes, has_token && mine.id == best.id);
  logit =
      owner == 0 ? -kInfinity : __shfl_sync(kAllLanes, logit, __ffs(static_cast<int>(owner)) - 1);
  const float* const surveys = args.surveys.at(r);
  const std::uint32_t key =
      lane < num_shards ? key_of(clean(surveys[lane * kSurveyWords])) : kMinusInfKey;
  LogSoftmax log_prob{logit_of(__reduce_max_sync(kAllLanes, key)), 0};
  sum = warp_sum(sum);
  if (log_prob.largest > -kInfinity) log_prob.log_total = log(sum);
  if (lane == 0) args.logprobs.data[r] = log_prob(logit);
  const auto width = static_cast<std::int32_t>(args.top_tokens.extent(1));
  merge_most_likely(surveys, num_shards, min(settings.num_logprobs, width), log_prob,
                    args.top_tokens.at(r), args.top_logprobs.at(r));
}

/// See with/shards/shard_draw.hpp. Throws ShapeError when the operands do not fit together,
/// CudaError when the launch is refused.
void pick_winner(const PickWinnerArgs& args, const LaunchContext auto& context) {
  validate(args);
  const std::int64_t rows = args.rows.extent(0);
  if (rows == 0) return;
  constexpr std::int64_t kRows = kPickThreads / 32;
  launch(pick_winner_kernel<kPickThreads>,
         {.grid = static_cast<unsigned>((rows + kRows - 1) / kRows), .block = kPickThreads},
         context, args);
}

template <class State>
void run_op(const PickWinnerArgs& args, State& state) {
  pick_winner(args, state.context);
}

}  // namespace nanovllm::cuda
