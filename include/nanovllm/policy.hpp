#pragma once
/// Policies: what an engine is made of, chosen at compile time.
///
/// A policy is a type at namespace scope that derives from `DefaultPolicy` and replaces whole
/// slots:
///
/// ```cpp
/// struct MyPolicy : nanovllm::DefaultPolicy {
///   using Scheduling = nanovllm::PrefillFirst;
///   static constexpr nanovllm::KvConfig kv{.block_size = 32};
/// };
/// ```
///
/// An engine checks its policy first (engine/check_policy.hpp): a type that does not fit its slot,
/// or a name that is almost that of one, is a compile error of one sentence. docs/policies.md shows
/// how to write each slot's type.

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/engine/core/no_guesses.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/sampling/standard_processors.hpp"
#include "nanovllm/sched/policy/continuous_batching.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/policy/prefill_first.hpp"
#include "nanovllm/sched/policy/priority.hpp"
#if __has_include("nanovllm/with/eight_bits.hpp")
#include "nanovllm/with/eight_bits/checkpoint/stored_forms.hpp"
#endif

namespace nanovllm {

/// bfloat16 on the CPU: one rank, and all blocks in its pool. full_policy.hpp has a policy with all
/// that an engine can do.
struct DefaultPolicy {
  /// Of weights, activations and the KV cache; a slot `Weight`, `Activation` or `KvElement` takes
  /// precedence.
  using Element = bf16;
  using Backend = CpuBackend;  ///< where memory lives and ops run
  /// Where tensor-parallel ranks run. A slot `Communicator` replaces the one they have on the host.
  using Ranks = OneRank;
  using Scheduling = ContinuousBatching;   ///< what a step computes
  using Preemption = RecomputePreemption;  ///< which sequence gives way when the pool is full
  /// Rules for what may be drawn.
  using LogitsProcessors = StandardLogitsProcessors<>;
  using LogitsFunctor = NoLogitsFunctor;  ///< what is done to every logit of requests that ask
  using Draws = WholeRows;                ///< from what ranks draw: rows, or shards of them
  using Guesses = NoGuesses;              ///< what guesses tokens that steps check
  template <int kBlockSize>
  using PrefixCache = HashPrefixCache<kBlockSize>;  ///< what is kept for equal prefixes
  /// Where blocks are kept that the device's pool has no room for.
  using Tiers = NoTiers;
  static constexpr KvConfig kv{};  ///< block size, prefix caching
  /// What engines read of checkpoints besides rows of 16 and 32 bits: FP8.
#if __has_include("nanovllm/with/eight_bits.hpp")
  static void add_readers() { detail::read_eight_bits(); }
#endif
};

/// The same in float32: for tests, and where the last digit counts.
struct Float32Policy : DefaultPolicy {
  using Element = float;
};

}  // namespace nanovllm

// What an engine with a policy of one's own is compiled from.
#include "nanovllm/engine/check_policy.hpp"
#include "nanovllm/engine/engine_body.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#if !defined(NANOVLLM_SEPARATE)
#include "nanovllm/cpu.hpp"
#endif

#if defined(NANOVLLM_SEPARATE) && !defined(NANOVLLM_COMPILED_CORE)
namespace nanovllm {

// The library has the core of every engine that plans and caches as `DefaultPolicy` does.
extern template class EngineCore<DefaultPolicy::Scheduling, BlocksOf<DefaultPolicy>,
                                 DefaultPolicy::Preemption>;
extern template class EngineInsideOf<
    EngineCore<DefaultPolicy::Scheduling, BlocksOf<DefaultPolicy>, DefaultPolicy::Preemption>>;

}  // namespace nanovllm
#endif
