#pragma once
/// The policy slot `Tiers`, and its simplest type: the device's pool has all blocks.

#include <concepts>
#include <cstdint>

#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm {

/// The pool that steps compute in, before it is made.
struct PoolPlan {
  KvShape shape{};
  std::int32_t num_blocks = 0;
  std::int64_t available_bytes = 0;  ///< to it, and in host memory to what is outside as well
  bool is_on_device = false;
};

/// An engine that is being made, as its tiers see it. References are valid during the call.
struct TierSetup {
  const EngineConfig& config;
  const StepRunner& runner;     ///< has its KV pools
  bool keeps_prefixes = false;  ///< whether there is a prefix cache
};

/// The pools of ranks without blocks outside.
struct PlainPools {
  template <KvFormat F, class Backend>
  using Pool = KvPool<F, typename Backend::template Buffer<KvStored<F>>>;
};

/// A policy's `Tiers`: where blocks are kept that the device's pool has no room for.
///
/// - `Blocks<block_size, Cache>`: the block manager, with the members of BlockManager.
/// - `Pools`: its `Pool<format, backend>` is a rank's pool, a KvPool and what is outside of it.
/// - `validate(config)`: reads the settings that these tiers have, of `config.extras`. Throws
///   ConfigError for what is out of range.
/// - `num_outside(config, pool)`: blocks of each rank outside of `pool`, a PoolPlan. Throws
///   ConfigError for more than there is memory for.
/// - `make_blocks<Blocks>(num_blocks, num_outside, enable_prefix_caching)`: the block manager.
/// - `observer<Blocks>(setup, identity)`: makes what observes the engine's steps. `identity()`
///   is the KvIdentity of the keys and values. Throws ConfigError.
struct NoTiers {
  template <int kBlockSize, class Cache>
  using Blocks = BlockManager<kBlockSize, Cache>;
  using Pools = PlainPools;

  static void validate(const EngineConfig&) {}
  [[nodiscard]] static std::int32_t num_outside(const EngineConfig&, const PoolPlan&) { return 0; }
  template <class Blocks>
  [[nodiscard]] static Blocks make_blocks(std::int32_t num_blocks, std::int32_t,
                                          bool enable_prefix_caching) {
    return Blocks(num_blocks, enable_prefix_caching);
  }
  template <class Blocks, class Identity>
  [[nodiscard]] static ObserverMaker<Blocks> observer(const TierSetup&, const Identity&) {
    return [](StepRunner&, Blocks&) { return StepObservers(); };
  }
};

/// See NoTiers.
template <class Tiers>
concept TiersLike = requires(const EngineConfig& config, const PoolPlan& pool) {
  typename Tiers::Pools;
  Tiers::validate(config);
  { Tiers::num_outside(config, pool) } -> std::convertible_to<std::int32_t>;
};

/// The block manager of the policy's tiers and prefix cache.
template <class Policy>
using BlocksOf = typename Policy::Tiers::template Blocks<
    Policy::kv.block_size, typename Policy::template PrefixCache<Policy::kv.block_size>>;

}  // namespace nanovllm
