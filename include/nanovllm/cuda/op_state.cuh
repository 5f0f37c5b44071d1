#pragma once
/// What the ops of one rank on CUDA need in addition to their operands, and the op that plans the
/// attention of a step in it.

#include <cstdint>
#include <optional>
#include <utility>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/linear/dispatch/engine.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/state_parts.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm::cuda {

/// Whether what decode attention reads was written by kernels that have ended before any kernel
/// after them starts: the plan of attention, and all keys but the newest. The ops of a step share
/// one and tell it what they enqueue.
///
/// A kernel starts once all blocks of the one before it have started at least. So if a norm after
/// the plan lets the next kernel start only after its own wait (`NextStart::after_wait`), no kernel
/// after that norm starts before the plan is there.
class PlanStart {
 public:
  /// A plan was enqueued. With `has_new_keys` the step's decodes see keys that it stores just
  /// before, beside their own: none may be read early.
  void planned(bool has_new_keys) {
    is_visible_ = false;
    has_new_keys_ = has_new_keys;
  }
  /// Blocks were copied, which decodes may read: not early, until a norm has waited.
  void copied() { is_visible_ = false; }

  /// For a norm that is to be enqueued: the first one after the plan makes it visible, the others
  /// need not hold up the kernel after them.
  [[nodiscard]] NextStart behind_norm() {
    return std::exchange(is_visible_, true) ? NextStart::at_once : NextStart::after_wait;
  }
  /// A kernel was enqueued that lets the next one start after its own wait.
  void waited() { is_visible_ = true; }

  [[nodiscard]] bool is_visible() const { return is_visible_; }
  /// Whether decode attention may read before its own wait.
  [[nodiscard]] bool lets_decodes_start_early() const { return is_visible_ && !has_new_keys_; }

 private:
  bool is_visible_ = false;
  bool has_new_keys_ = false;
};

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

/// Divides the keys of the decodes among the blocks of their kernel, and lists the tiles of the
/// prompt chunks.
template <class State>
void run_op(const PlanAttentionArgs& args, State& state) {
  state.plan_start.planned(args.has_chunk_rows);
  const std::int64_t num_decodes = args.num_decodes;
  if (num_decodes > 0) {
    plan_decode(args.kv_lens.slice(0, num_decodes), args.num_kv_heads, *state.decode, state.context,
                args.shared);
  }
  if (args.num_tokens > num_decodes) {
    plan_varlen(args.query_starts, args.kv_lens.slice(num_decodes, args.kv_lens.extent(0)),
                args.num_tokens - num_decodes, *state.varlen, state.context);
  }
}

}  // namespace nanovllm::cuda
