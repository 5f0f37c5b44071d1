#pragma once
/// What the ops of one rank on CUDA need in addition to their operands.

#include <optional>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/plan_start.cuh"
#include "nanovllm/cuda/runtime/state_parts.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm::cuda {

/// The stream, the dense layers' plans and the scratch memory. An op `Args` is run by
/// `run_op(const Args&, State&)`, where `State` is this type: a template parameter in the headers
/// of the ops, which do not know each other's scratch memory.
struct OpState {
  /// Whose kernels its device may get.
  using Architectures = DeviceArchitectures;

  Context context;
  DenseEngine<Architectures> dense{};
  std::optional<DecodeWorkspace> decode{};
  std::optional<VarlenWorkspace> varlen{};
  std::optional<SamplerWorkspace> sampler{};
  PlanStart plan_start{};
  StateParts parts{};  ///< of ops that not every engine has

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
