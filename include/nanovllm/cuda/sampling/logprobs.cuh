#pragma once
/// Log-probabilities: log_softmax of the logits as they came, and the most likely tokens; and
/// `token_logprobs` on CUDA, those of given tokens, as `sample` gives them. Contract:
/// ops/logit_edits.hpp.
///
/// Two kernels: a block for each slice of a row, then a block a row, in the workspace of `sample`.
/// Tokens are read on the device and not checked: of those that do not exist nothing is written.
/// Bytes: 4 · rows · vocab read.
/// Measured: logit_edits_bench, cuda_logit_edits.json, needed: 256 rows in 39 us, 93% of the floor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/scan.cuh"
#include "nanovllm/cuda/sampling/select.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/ops/logit_edits.hpp"

namespace nanovllm::cuda {

/// log_softmax of a row. Without a logit above -inf all are -inf; with logits of +inf these share
/// the probability.
struct LogSoftmax {
  float largest;
  double log_total;  ///< of Σ e^(logit - largest), or of the number of +inf

  [[nodiscard]] __device__ float operator()(float logit) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (logit == -kInfinity || (largest == kInfinity && logit < largest)) return -kInfinity;
    const double relative = logit == largest ? 0. : double{logit} - double{largest};
    return static_cast<float>(relative - log_total);
  }
};

/// Writes the `count` ≤ min(vocab, kMaxTopTokens) most likely tokens, best first. `row` has the
/// logits before the bans. Contains barriers.
__device__ inline void write_most_likely(RowTiles row, std::uint32_t count,
                                         const LogSoftmax& log_prob, SelectShared& shared,
                                         TokenId* tokens, float* logprobs) {
  const std::uint32_t low = bound_of_largest(row, count, kMinusInfKey, shared);
  std::uint32_t size = gather(row, {.key = low}, row.largest_key(), shared);
  if (size > kSelectCapacity) {
    const Cut cut = find_prefix(row, {.by_mass = false, .count = count, .mass = 0}, low,
                                row.largest_key(), shared);
    size = gather(row, cut, row.largest_key(), shared);
  }
  sort_list(shared, static_cast<int>(size));
  for (auto i = static_cast<int>(threadIdx.x); i < static_cast<int>(count); i += kSelectThreads) {
    tokens[i] = list_id(shared, i);
    logprobs[i] = log_prob(logit_of(list_key(shared, i)));
  }
}

inline constexpr int kTokenLogprobsThreads = 128;

/// Leaves the largest logit and Σ e^(logit - largest) of each slice. Grid (slices, rows).
template <int kGroups>
__global__ void __launch_bounds__(SampleScanTraits<kGroups>::kThreads)
    token_logprobs_scan_kernel(MatrixView<const float> logits, const SamplerScratch scratch) {
  __shared__ SampleScanShared<kGroups> shared;
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.y, slice = blockIdx.x;
  float x[kGroups][4];
  load_slice<kGroups>(logits.at(row), slice * SampleScanTraits<kGroups>::kSlice, logits.extent(1),
                      x);
  const float largest = logit_of(find_largest<kGroups>(x, shared.keys[0], nullptr));
  const double sum = sum_exp<kGroups>(x, largest, shared);
  if (threadIdx.x != 0) return;
  SlicePart& part = scratch.parts[row * scratch.part_pitch + slice];
  part.original_largest = largest;
  part.original_sum = sum;
}

/// log_softmax of a row from its slices, by every warp for itself.
__device__ inline LogSoftmax merge_log_softmax(const SlicePart* parts, int num_parts) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t key = kMinusInfKey;
  for (int i = lane; i < num_parts; i += 32) key = max(key, key_of(parts[i].original_largest));
  LogSoftmax out{logit_of(__reduce_max_sync(kAllLanes, key)), 0};
  if (out.largest == -kInfinity) return out;
  double sum = 0;
  for (int i = lane; i < num_parts; i += 32) {
    const float largest = parts[i].original_largest;
    if (largest == out.largest)
      sum += parts[i].original_sum;
    else if (out.largest < kInfinity) {
      sum += parts[i].original_sum * mass_of(largest, out.largest, kLog2E);
    }
  }
  out.log_total = log(warp_sum(sum));
  return out;
}

/// A block for each row.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    token_logprobs_kernel(const TokenLogprobsArgs args, const SamplerScratch scratch,
                          int num_parts) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t r = blockIdx.x, vocab = args.logits.extent(1);
  const LogSoftmax log_prob = merge_log_softmax(scratch.parts + r * scratch.part_pitch, num_parts);
  const float* const logits = args.logits.at(r);
  const auto write = [&](TokenId token, float* out) {
    if (token >= 0 && token < vocab) *out = log_prob(clean(logits[token]));
  };
  if (threadIdx.x == 0) write(args.tokens.data[r], args.logprobs.data + r);
  const VectorView<const TokenId> chosen = args.chosen[r];
  float* const out = args.chosen_logprobs.data + args.chosen.starts.data[r];
  for (std::int64_t i = threadIdx.x; i < chosen.extent(0); i += kThreads) {
    write(chosen.data[i], out + i);
  }
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or into the
/// workspace, which calls of `sample` on the same stream may share.
void token_logprobs(const TokenLogprobsArgs& args, SamplerWorkspace& workspace,
                    const LaunchContext auto& context) {
  validate(args);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (rows == 0) return;
  check<ShapeError>(rows <= std::min<std::int64_t>(workspace.max_rows(), 65535) && vocab > 0 &&
                        vocab <= workspace.max_vocab(),
                    "token_logprobs: 'logits' must have at most ", workspace.max_rows(),
                    " rows (65535 at most) and 1 to ", workspace.max_vocab(),
                    " columns, the workspace's, got ", shape_string(args.logits));
  const SampleSlices slices = sample_slices(rows, vocab, context.num_sms);
  launch(slices.groups == kLongSliceGroups ? token_logprobs_scan_kernel<kLongSliceGroups>
                                           : token_logprobs_scan_kernel<kShortSliceGroups>,
         {.grid = dim3(static_cast<unsigned>(slices.num_parts), static_cast<unsigned>(rows)),
          .block = kSampleScanThreads},
         context, args.logits, workspace.scratch());
  launch(token_logprobs_kernel<kTokenLogprobsThreads>,
         {.grid = static_cast<unsigned>(rows), .block = kTokenLogprobsThreads}, context, args,
         workspace.scratch(), slices.num_parts);
}

template <class State>
void run_op(const TokenLogprobsArgs& args, State& state) {
  token_logprobs(args, *state.sampler, state.context);
}

}  // namespace nanovllm::cuda
