#pragma once
/// `mark_tokens` and `mark_drawn` on CUDA: which tokens sequences have. Contracts:
/// ops/logit_edits.hpp.
///
/// What heads and rows ask for is read on the device, so that a captured graph decides again in
/// each replay, and is not checked: tokens and slots that do not exist are passed over.
/// `TokenMarks` begins as zeros, words and num_seen; the memory of `seen` may hold anything. Of a
/// sequence with more distinct tokens than `seen` has columns, those that found no room are not
/// listed.
///
/// - mark_tokens: a block a head takes back what the slot's list names, then marks by atomics. The
///   order of `seen` differs from run to run; nothing depends on it.
/// - mark_drawn: a thread a row.
///
/// Bytes that must be moved, and in brackets what that is in sectors of 32: mark_tokens 8 (36) for
/// each token that is taken back and 16 (72) for each that is marked; mark_drawn 24 (under 200) a
/// row.
/// Measured: logit_edits_bench, cuda_logit_edits.json, needed: 33.5 us to mark 1,000 tokens of each
/// of 256 rows in place of 1,000 others, 19% of the floor; mark_drawn 1.4 us.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/logit_edits.hpp"

namespace nanovllm::cuda {

inline constexpr int kMarkTokensThreads = 512;
inline constexpr int kMarkDrawnThreads = 128;

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

/// Makes the slot that of a sequence without tokens, except num_seen.
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
  grid_dependency_launch();
  grid_dependency_wait();
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
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows.extent(0) || !has_slot(args.marks, args.rows.data[i].marks)) return;
  const MarkSlot slot(args.marks, args.rows.data[i].marks);
  const TokenId token = args.tokens.data[i];
  if (!slot.has_token(token)) return;
  if (slot.words[token]++ != 0) return;
  const std::int32_t at = (*slot.num_seen)++;
  if (at < slot.capacity) slot.seen[at] = token;
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
void mark_tokens(const MarkTokensArgs& args, const LaunchContext auto& context) {
  validate(args);
  if (args.heads.empty()) return;
  launch(mark_tokens_kernel<kMarkTokensThreads>,
         {.grid = static_cast<unsigned>(args.heads.extent(0)), .block = kMarkTokensThreads},
         context, args);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
void mark_drawn(const MarkDrawnArgs& args, const LaunchContext auto& context) {
  validate(args);
  if (args.rows.empty()) return;
  const std::int64_t blocks = ceil_div(args.rows.extent(0), kMarkDrawnThreads);
  launch(mark_drawn_kernel<kMarkDrawnThreads>,
         {.grid = static_cast<unsigned>(blocks), .block = kMarkDrawnThreads}, context, args);
}

template <class State>
void run_op(const MarkTokensArgs& args, State& state) {
  mark_tokens(args, state.context);
}
template <class State>
void run_op(const MarkDrawnArgs& args, State& state) {
  mark_drawn(args, state.context);
}

}  // namespace nanovllm::cuda
