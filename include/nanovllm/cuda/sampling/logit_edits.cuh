#pragma once
/// `edit_logits` on CUDA: masks, biases and penalties. Contract: ops/logit_edits.hpp. And
/// `apply_functor`: a user's function on every logit. Contract: ops/logits_functor.hpp.
///
/// Grid (parts of the vocabulary, rows). Blocks of rows without edits end at once. Where a row has
/// a mask or its logits are copied, a block goes over its part of the row; otherwise nothing looks
/// at the vocabulary, and penalties cost as much as the sequence has distinct tokens. A token's
/// mask, bias and penalties are applied by one block, in this order.
///
/// What rows ask for is read on the device, so that a captured graph decides again in each replay,
/// and is not checked: tokens, slots and masks that do not exist are passed over. Tokens that are
/// not in `TokenMarks::seen` are not penalised.
///
/// Operands: logits and originals of any row stride and alignment (16 bytes at a time where the
/// rows of both are aligned).
/// Bytes that must be moved, and in brackets what that is in sectors of 32: 4 · vocab read and
/// written for each row that is copied; vocab / 8 read for each row with a mask, and 4 written for
/// each token that it leaves out (32 for a sector that it leaves out, 64 for one with tokens of
/// both kinds); 16 (72) for each bias; 16 (100) for each distinct token of a row with penalties.
/// `apply_functor`: a thread for each logit; blocks of rows that did not ask end at once. Bytes
/// moved: 8 · vocab a row that asked.
/// Measured: logit_edits_bench, cuda_logit_edits.json, needed: 80 us for 256 rows with masks of
/// half, 92% of the floor; a step of 64 rows takes 1 to 3% more (engine_bench, cuda_edits.json).
/// `apply_functor` not at all: no benchmark has a functor.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/token_marks.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/logit_edits.hpp"
#include "nanovllm/ops/logits_functor.hpp"

namespace nanovllm::cuda {

inline constexpr int kEditThreads = kSampleScanThreads;

/// Tokens of a row that are one block's.
struct TokenRange {
  std::int64_t begin, end;

  [[nodiscard]] __device__ bool has(TokenId token) const { return token >= begin && token < end; }
};

/// Copies the block's part of a row to `copy`, unless that is null, and makes the tokens whose bit
/// of `mask` is 0 -inf, unless that is null. Without a copy, logits are read only where a vector of
/// four has tokens of both kinds: writing less than a sector costs reading it anyway.
///
/// A warp has kGroups · 128 tokens, one after the other; lane l, of each 128, four from 4 · l on.
template <int kGroups>
__device__ __forceinline__ void copy_and_mask(float* logits, float* copy, const std::uint32_t* mask,
                                              TokenRange range) {
  constexpr int kWords = 4 * kGroups, kTokens = 32 * kWords;  // a warp's
  static_assert(kWords <= 32);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t begin = range.begin + warp * kTokens;
  const auto size =
      static_cast<int>(max(std::int64_t{0}, min(std::int64_t{kTokens}, range.end - begin)));
  std::uint32_t bans = 0;  // of tokens 32 · lane … of the warp's
  if (mask != nullptr && lane < kWords && 32 * lane < size) {
    bans = ~mask[begin / 32 + lane];
    if (size - 32 * lane < 32) bans &= (1u << (size - 32 * lane)) - 1;
  }
  if (copy == nullptr && !__any_sync(kAllLanes, bans != 0)) return;
  const bool aligned = is_vector_aligned(logits) && is_vector_aligned(copy);  // null is
  float* const from = logits + begin + 4 * lane;
  const auto count = [&](int j) { return min(4, size - 128 * j - 4 * lane); };
  uint4 x[kGroups];
  std::uint32_t mine[kGroups];  // bits of the four tokens that become -inf
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    mine[j] = __shfl_sync(kAllLanes, bans, 4 * j + lane / 8) >> (lane % 8 * 4) & 15;
    x[j] = {};
    if (count(j) <= 0 || (copy == nullptr && (mine[j] == 0 || mine[j] == 15))) continue;
    x[j] = aligned && count(j) == 4 ? load_vector(from + 128 * j)
                                    : load_first<false>(from + 128 * j, count(j));
  }
  const auto store = [&](float* to, int j) {
    if (aligned && count(j) == 4) {
      store_vector(to + 128 * j, x[j]);
    } else {
      store_first<false>(to + 128 * j, count(j), x[j]);
    }
  };
  const std::uint32_t minus_infinity = __float_as_uint(-std::numeric_limits<float>::infinity());
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    if (copy != nullptr) store(copy + begin + 4 * lane, j);
    if (mine[j] == 0) continue;
    if ((mine[j] & 1) != 0) x[j].x = minus_infinity;
    if ((mine[j] & 2) != 0) x[j].y = minus_infinity;
    if ((mine[j] & 4) != 0) x[j].z = minus_infinity;
    if ((mine[j] & 8) != 0) x[j].w = minus_infinity;
    store(from, j);
  }
}

/// A logit of a token that the sequence has, `word` of its marks, after the row's penalties. Each
/// operation is rounded by itself, whatever the compiler's flags.
__device__ __forceinline__ float penalised(float logit, const EditRow& row, std::uint32_t word) {
  logit = logit > 0 ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
  const std::uint32_t count = word & ~kPromptMark;
  if (count == 0) return logit;
  logit = __fsub_rn(logit, __fmul_rn(__uint2float_rn(count), row.frequency));
  return __fsub_rn(logit, row.presence);
}

/// Penalties of the tokens in `range` among every `step`-th of the list from `begin` on. A few at a
/// time, and the list before it is known how long it is: what a token costs is the time of loads
/// that wait for each other.
__device__ __forceinline__ void penalise(float* logits, const EditRow& row, const MarkSlot& slot,
                                         TokenRange range, std::int32_t begin, std::int32_t step) {
  constexpr int kAhead = 4;
  const std::int32_t count = slot.num_listed();
  do {
    TokenId tokens[kAhead];
    std::uint32_t words[kAhead];
    float x[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const std::int32_t at = begin + j * step;
      tokens[j] = at < slot.capacity ? slot.seen[at] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j * step >= count || !range.has(tokens[j])) tokens[j] = -1;
      if (tokens[j] < 0) continue;
      words[j] = slot.words[tokens[j]];
      x[j] = logits[tokens[j]];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (tokens[j] >= 0) logits[tokens[j]] = penalised(x[j], row, words[j]);
    }
    begin += kAhead * step;
  } while (begin < count);
}

[[nodiscard]] __device__ inline bool has_penalties(const EditRow& row, const TokenMarks& marks) {
  return has_slot(marks, row.marks) &&
         (row.repetition != 1 || row.frequency != 0 || row.presence != 0);
}

/// Grid (parts of `part` tokens, rows). kGroups: part / (4 · threads) where rows may be copied or
/// masked, 0 where none is.
template <int kGroups>
__global__ void __launch_bounds__(kEditThreads)
    edit_logits_kernel(const EditLogitsArgs args, std::int64_t part) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t r = blockIdx.y, vocab = args.logits.extent(1);
  const EditRow row = args.batch.rows.data[r];
  const VectorView<const TokenBias> biases = args.batch.biases[r];
  float* const logits = args.logits.at(r);
  const TokenRange range{blockIdx.x * part, min(vocab, (blockIdx.x + 1) * part)};
  const bool penalises = has_penalties(row, args.marks), has_biases = biases.extent(0) > 0;
  bool has_mask = false;
  if constexpr (kGroups > 0) {
    has_mask = row.mask >= 0 && (row.mask + 1) * mask_words(vocab) <= args.batch.masks.extent(0);
    copy_and_mask<kGroups>(
        logits, args.originals.data == nullptr ? nullptr : args.originals.at(r),
        has_mask ? args.batch.masks.data + row.mask * mask_words(vocab) : nullptr, range);
    // A copy is made before others change what is copied; a mask, before they add to it.
    if (has_biases || penalises) __syncthreads();
  }
  if (has_biases) {
    for (std::int64_t i = threadIdx.x; i < biases.extent(0); i += kEditThreads) {
      const TokenBias bias = biases.data[i];
      if (range.has(bias.token)) logits[bias.token] += bias.bias;
    }
    if (penalises) __syncthreads();
  }
  if (!penalises) return;
  const MarkSlot slot(args.marks, row.marks);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const bool alone = !has_mask && !has_biases && args.originals.data == nullptr;
  if (alone) {  // nothing comes before: the row's blocks share the list, whatever tokens it has
    penalise(logits, row, slot, {0, vocab},
             static_cast<std::int32_t>(blockIdx.x) * kEditThreads + thread,
             static_cast<std::int32_t>(gridDim.x) * kEditThreads);
  } else {
    penalise(logits, row, slot, range, thread, kEditThreads);
  }
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or there are
/// more than 65,535 rows.
void edit_logits(const EditLogitsArgs& args, const LaunchContext auto& context) {
  validate(args);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (args.logits.empty()) return;
  check<ShapeError>(rows <= 65535, "edit_logits: 'logits' must have at most 65535 rows, got ",
                    rows);
  EditLogitsArgs passed = args;
  if (args.originals.empty()) passed.originals = {};
  const auto start = [&](auto* kernel, std::int64_t part) {
    const LaunchConfig config{
        .grid = dim3(static_cast<unsigned>(ceil_div(vocab, part)), static_cast<unsigned>(rows)),
        .block = kEditThreads};
    launch(kernel, config, context, passed, part);
  };
  if (args.originals.empty() && args.batch.masks.empty()) {
    // As many parts as fill the device, four at least: a thousand tokens a step.
    const std::int64_t parts = std::clamp<std::int64_t>(8 * context.num_sms / rows, 4, 32);
    start(edit_logits_kernel<0>, ceil_div(vocab, parts));
    return;
  }
  const int groups = sample_slices(rows, vocab, context.num_sms).groups;
  start(groups == kLongSliceGroups ? edit_logits_kernel<kLongSliceGroups>
                                   : edit_logits_kernel<kShortSliceGroups>,
        sample_slice(groups));
}

template <class State>
void run_op(const EditLogitsArgs& args, State& state) {
  edit_logits(args, state.context);
}

inline constexpr int kApplyFunctorThreads = 256;

/// Grid (parts of the vocabulary, rows).
template <class F>
__global__ void __launch_bounds__(kApplyFunctorThreads)
    apply_functor_kernel(const ApplyFunctorArgs<F> args) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.y;
  if (args.arguments.data[row] == 0) return;
  const std::int64_t token = std::int64_t{blockIdx.x} * kApplyFunctorThreads + threadIdx.x;
  if (token >= args.logits.extent(1)) return;
  float* const logit = args.logits.at(row, token);
  *logit = args.functor(*logit, static_cast<TokenId>(token), args.context(row));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <LogitsFunctorLike F>
void apply_functor(const ApplyFunctorArgs<F>& args, const Context& context) {
  validate(args);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (args.logits.empty()) return;
  check<ShapeError>(rows <= 65535, "apply_functor: at most 65535 rows, got ", rows);
  launch(apply_functor_kernel<F>,
         {.grid = dim3(static_cast<unsigned>(ceil_div(vocab, std::int64_t{kApplyFunctorThreads})),
                       static_cast<unsigned>(rows)),
          .block = dim3(kApplyFunctorThreads)},
         context, args);
}

template <LogitsFunctorLike F, class State>
void run_op(const ApplyFunctorArgs<F>& args, State& state) {
  apply_functor(args, state.context);
}

}  // namespace nanovllm::cuda
