#pragma once
/// What the ops of one rank on CUDA work with beside their operands.

#include <optional>
#include <utility>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/elementwise/swap_blocks.cuh"
#include "nanovllm/cuda/linear/fused_engine.cuh"
#include "nanovllm/cuda/linear/linear.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm::cuda {

/// The stream, the dense layers' plans and the scratch memory. An op `Args` is run by
/// `run_op(const Args&, State&)`, where `State` is this type: a template parameter in the headers
/// of the ops, which do not know each other's scratch memory.
struct OpState {
  Context context;
  LinearEngine linear{};
  FusedEngine fused{};
  std::optional<DecodeWorkspace> decode{};
  std::optional<VarlenWorkspace> varlen{};
  std::optional<SamplerWorkspace> sampler{};
  SwapStreams swaps{};
  /// A norm behind the plan has let the next kernel start only once the plan was there, so that
  /// decode attention may read it before its own wait: a kernel starts once all blocks of the one
  /// before it have started at least, so none behind that norm starts sooner.
  bool plan_is_visible = false;
  /// The step's decodes see keys that it stores just before, beside their own: none may be read
  /// early.
  bool has_chunk_rows = false;

  /// For a norm, or a kernel that has one in it, that is to be enqueued: the first one behind the
  /// plan makes the plan visible, the others need not hold up the kernel behind them.
  [[nodiscard]] NextStart start_behind_norm() {
    return std::exchange(plan_is_visible, true) ? NextStart::at_once : NextStart::after_wait;
  }

  /// Allocates the scratch memory of attention and sampler.
  void reserve(const ReserveArgs& args) {
    const StepLimits& limits = args.limits;
    decode.emplace(limits.max_num_seqs, args.num_kv_heads, args.num_heads / args.num_kv_heads,
                   args.head_dim, context, limits.shares_prefixes);
    varlen.emplace(limits.max_num_seqs, limits.max_num_batched_tokens, context);
    sampler.emplace(limits.max_num_seqs, args.vocab_size, context);
  }
};

}  // namespace nanovllm::cuda
