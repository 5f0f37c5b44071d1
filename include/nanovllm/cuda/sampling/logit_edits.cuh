#pragma once
/// `mark_tokens`, `edit_logits`, `mark_drawn` and `token_logprobs` on CUDA. Contracts:
/// ops/logit_edits.hpp.
///
/// What rows ask for is read on the device, so that a captured graph decides anew in each replay,
/// and is not checked: tokens, slots and masks that do not exist are passed over. `TokenMarks`
/// begins as zeros, words and num_seen; the memory of `seen` may hold anything. A sequence with
/// more distinct tokens than `seen` has columns is penalised for the listed ones alone.
///
/// - mark_tokens: a block a head takes back what the slot's list names, then marks by atomics. The
///   order of `seen` differs from run to run, logits do not.
/// - edit_logits: grid (parts of the vocabulary, rows). Blocks of rows without edits end at once.
///   Where a row has a mask or its logits are copied, a block goes over its part of the row;
///   otherwise nothing looks at the vocabulary, and penalties cost as much as the sequence has
///   distinct tokens. A token's mask, bias and penalties are applied by one block, in this order.
/// - mark_drawn: a thread a row.
/// - token_logprobs: a block for each slice of a row, then a block a row, in the workspace of
///   `sample`, whose log-probabilities it gives.
///
/// Bytes (what must be moved; scattered accesses move sectors of 32):
///   mark_tokens     12 a token that is taken back, 16 a token that is marked (68 and 100)
///   edit_logits     4 · vocab written and 4 · vocab read for each row that is copied;
///                   vocab / 8 read and 4 for each token written that a mask leaves out;
///                   16 for each bias (72); 16 for each distinct token with penalties (100)
///   mark_drawn      under 200 a row
///   token_logprobs  4 · rows · vocab read

#include <algorithm>
#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/logprobs.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/scan.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/logit_edits.hpp"

namespace nanovllm::cuda {

inline constexpr int kMarkTokensThreads = 512;
inline constexpr int kEditThreads = kSampleScanThreads;
inline constexpr int kMarkDrawnThreads = 128;
inline constexpr int kTokenLogprobsThreads = 128;

// ---- Marks.

/// The slot `index` of the marks, as kernels see it.
struct MarkSlot {
  std::uint32_t* words;
  TokenId* seen;
  std::int32_t* num_seen;
  std::int64_t vocab, capacity;

  __device__ MarkSlot(const TokenMarks& marks, std::int32_t index)
      : words(marks.words.at(index)),
        seen(marks.seen.at(index)),
        num_seen(marks.num_seen.data + index),
        vocab(marks.words.extent(1)),
        capacity(marks.seen.extent(1)) {}

  [[nodiscard]] __device__ bool has_token(TokenId token) const {
    return token >= 0 && token < vocab;
  }
  /// Tokens that are listed; num_seen counts those, too, that found no room.
  [[nodiscard]] __device__ std::int32_t num_listed() const {
    return static_cast<std::int32_t>(min(std::int64_t{*num_seen}, capacity));
  }
};

[[nodiscard]] __device__ inline bool has_slot(const TokenMarks& marks, std::int32_t slot) {
  return slot >= 0 && slot < marks.words.extent(0);
}

/// Makes the slot that of a sequence without tokens, but for num_seen.
__device__ inline void clear_marks(const MarkSlot& slot) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  if (*slot.num_seen <= slot.capacity) {
    const std::int32_t count = *slot.num_seen;
    for (std::int32_t i = thread; i < count; i += kMarkTokensThreads) slot.words[slot.seen[i]] = 0;
  } else {
    for (std::int64_t i = thread; i < slot.vocab; i += kMarkTokensThreads) slot.words[i] = 0;
  }
}

/// A block for each head.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) mark_tokens_kernel(const MarkTokensArgs args) {
  static_assert(kThreads == kMarkTokensThreads);
  __shared__ std::int32_t num_seen;
  grid_dependency_wait();
  grid_dependency_launch();
  const MarkHead head = args.heads.data[blockIdx.x];
  if (!has_slot(args.marks, head.slot)) return;
  const MarkSlot slot(args.marks, head.slot);
  const VectorView<const TokenId> list = args.lists[blockIdx.x];
  if (threadIdx.x == 0) num_seen = 0;
  clear_marks(slot);
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < list.extent(0); i += kThreads) {
    const TokenId token = list.data[i];
    if (!slot.has_token(token)) continue;
    std::uint32_t* const word = slot.words + token;
    const std::uint32_t before =
        i < head.num_prompt_tokens ? atomicOr(word, kPromptMark) : atomicAdd(word, 1u);
    if (before != 0) continue;
    const std::int32_t at = atomicAdd(&num_seen, 1);
    if (at < slot.capacity) slot.seen[at] = token;
  }
  __syncthreads();
  if (threadIdx.x == 0) *slot.num_seen = num_seen;
}

/// A thread for each row.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) mark_drawn_kernel(const MarkDrawnArgs args) {
  grid_dependency_wait();
  grid_dependency_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows.extent(0) || !has_slot(args.marks, args.rows.data[i].marks)) return;
  const MarkSlot slot(args.marks, args.rows.data[i].marks);
  const TokenId token = args.tokens.data[i];
  if (!slot.has_token(token)) return;
  if (slot.words[token]++ != 0) return;
  const std::int32_t at = (*slot.num_seen)++;
  if (at < slot.capacity) slot.seen[at] = token;
}

// ---- Edits.

/// Tokens of a row that are one block's.
struct TokenRange {
  std::int64_t begin, end;

  [[nodiscard]] __device__ bool has(TokenId token) const { return token >= begin && token < end; }
};

/// Copies the block's part of a row to `copy`, unless that is null, and makes the tokens whose bit
/// of `mask` is 0 -inf, unless that is null. Group j of a thread is tokens
/// begin + 4 · (j · threads + thread) and the three behind it. Without a copy no logit is read.
template <int kGroups>
__device__ __forceinline__ void copy_and_mask(float* logits, float* copy, const std::uint32_t* mask,
                                              TokenRange range) {
  const auto first = [&](int j) {
    return range.begin + 4 * (j * kEditThreads + static_cast<std::int64_t>(threadIdx.x));
  };
  const auto count = [&](int j) {  // of the tokens in the range; not above 0: none
    return static_cast<int>(max(std::int64_t{-1}, min(std::int64_t{4}, range.end - first(j))));
  };
  const bool aligned = is_vector_aligned(logits) && is_vector_aligned(copy);  // null is
  if (copy != nullptr) {
    uint4 x[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float* const from = logits + first(j);
      x[j] = aligned && count(j) == 4 ? load_vector(from) : load_first<false>(from, count(j));
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      float* const to = copy + first(j);
      if (aligned && count(j) == 4)
        store_vector(to, x[j]);
      else
        store_first<false>(to, count(j), x[j]);
    }
  }
  if (mask == nullptr) return;
  std::uint32_t bans[kGroups];  // the lowest bits: of the group's tokens, the masked ones
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    bans[j] = count(j) > 0 ? ~(mask[first(j) / 32] >> static_cast<unsigned>(first(j) % 32)) : 0;
  }
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const std::uint32_t word = __float_as_uint(minus_infinity);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    float* const to = logits + first(j);
    if (aligned && count(j) == 4 && (bans[j] & 15) == 15) {
      store_vector(to, {word, word, word, word});
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count(j) && (bans[j] >> i & 1) != 0) to[i] = minus_infinity;
    }
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
/// time: a token costs two loads, one behind the other.
__device__ __forceinline__ void penalise(float* logits, const EditRow& row, const MarkSlot& slot,
                                         TokenRange range, std::int32_t begin, std::int32_t step) {
  constexpr int kAhead = 4;
  const std::int32_t count = slot.num_listed();
  for (; begin < count; begin += kAhead * step) {
    TokenId tokens[kAhead];
    std::uint32_t words[kAhead];
    float x[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      tokens[j] = begin + j * step < count ? slot.seen[begin + j * step] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (!range.has(tokens[j])) continue;
      words[j] = slot.words[tokens[j]];
      x[j] = logits[tokens[j]];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (range.has(tokens[j])) logits[tokens[j]] = penalised(x[j], row, words[j]);
    }
  }
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
  grid_dependency_wait();
  grid_dependency_launch();
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

// ---- Log-probabilities.

/// Leaves the largest logit and Σ e^(logit - largest) of each slice. Grid (slices, rows).
template <int kGroups>
__global__ void __launch_bounds__(SampleScanTraits<kGroups>::kThreads)
    token_logprobs_scan_kernel(MatrixView<const float> logits, const SamplerScratch scratch) {
  __shared__ SampleScanShared<kGroups> shared;
  grid_dependency_wait();
  grid_dependency_launch();
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
  grid_dependency_wait();
  grid_dependency_launch();
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

// ---- On the host.

namespace detail {

inline void check_marks(const char* op, const TokenMarks& marks) {
  const std::int64_t slots = marks.words.extent(0);
  check_shape(op, "marks.seen", marks.seen, {slots, -1});
  check_shape(op, "marks.num_seen", marks.num_seen, {slots});
}

inline void check_num_rows(const char* op, std::int64_t rows, std::int64_t most) {
  nanovllm::check<ShapeError>(rows <= most, op, ": 'logits' must have at most ", most,
                              " rows, got ", rows);
}

}  // namespace detail

/// See the head of this file. Throws ShapeError when the operands do not fit together.
inline void mark_tokens(const MarkTokensArgs& args, const Context& context) {
  validate(args);
  if (args.heads.empty()) return;
  launch(mark_tokens_kernel<kMarkTokensThreads>,
         {.grid = static_cast<unsigned>(args.heads.extent(0)), .block = kMarkTokensThreads},
         context, args);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or there are
/// more than 65,535 rows.
inline void edit_logits(const EditLogitsArgs& args, const Context& context) {
  validate(args);
  detail::check_marks("edit_logits", args.marks);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (args.logits.empty()) return;
  detail::check_num_rows("edit_logits", rows, 65535);
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

/// See the head of this file. Throws ShapeError when the operands do not fit together.
inline void mark_drawn(const MarkDrawnArgs& args, const Context& context) {
  validate(args);
  detail::check_marks("mark_drawn", args.marks);
  if (args.rows.empty()) return;
  const std::int64_t blocks = ceil_div(args.rows.extent(0), kMarkDrawnThreads);
  launch(mark_drawn_kernel<kMarkDrawnThreads>,
         {.grid = static_cast<unsigned>(blocks), .block = kMarkDrawnThreads}, context, args);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or into the
/// workspace, which calls of `sample` on the same stream may share.
inline void token_logprobs(const TokenLogprobsArgs& args, SamplerWorkspace& workspace,
                           const Context& context) {
  validate(args);
  const std::int64_t rows = args.logits.extent(0), vocab = args.logits.extent(1);
  if (rows == 0) return;
  detail::check_num_rows("token_logprobs", rows,
                         std::min<std::int64_t>(workspace.max_rows(), 65535));
  nanovllm::check<ShapeError>(vocab > 0 && vocab <= workspace.max_vocab(),
                              "token_logprobs: 'logits' must have 1 to ", workspace.max_vocab(),
                              " columns, the workspace's, got ", vocab);
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
void run_op(const MarkTokensArgs& args, State& state) {
  mark_tokens(args, state.context);
}
template <class State>
void run_op(const EditLogitsArgs& args, State& state) {
  edit_logits(args, state.context);
}
template <class State>
void run_op(const MarkDrawnArgs& args, State& state) {
  mark_drawn(args, state.context);
}
template <class State>
void run_op(const TokenLogprobsArgs& args, State& state) {
  token_logprobs(args, *state.sampler, state.context);
}

}  // namespace nanovllm::cuda
