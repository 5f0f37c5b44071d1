#pragma once
/// The policy slot `Tiers`, and its simplest type: the device's pool has all blocks.

#include <concepts>
#include <cstdint>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

/// An engine that is being made, as its tiers see it. References are valid during the call.
struct TierSetup {
  const EngineConfig& config;
  const StepRunner& runner;     ///< has its KV pools
  bool keeps_prefixes = false;  ///< whether there is a prefix cache
};

/// A policy's `Tiers`: where blocks are kept that the device's pool has no room for.
///
/// - `Blocks<block_size, Cache>`: the block manager, with the members of BlockManager.
/// - `kHasHostPool`: whether the ranks have a pool in host memory.
/// - `validate(config)`: throws ConfigError for settings of tiers that these are not.
/// - `num_host_blocks(config, shape)`: of each rank's pool in host memory. Throws ConfigError when
///   the setting is out of range.
/// - `make_blocks<Blocks>(num_blocks, num_host_blocks, enable_prefix_caching)`: the block manager.
/// - `observer<Blocks>(setup, identity)`: makes what observes the engine's steps. `identity()`
///   is the KvIdentity of the keys and values. Throws ConfigError.
struct NoTiers {
  template <int kBlockSize, class Cache>
  using Blocks = BlockManager<kBlockSize, Cache>;
  static constexpr bool kHasHostPool = false;

  static void validate(const EngineConfig& config);

  [[nodiscard]] static std::int32_t num_host_blocks(const EngineConfig&, const KvShape&) {
    return 0;
  }
  template <class Blocks>
  [[nodiscard]] static Blocks make_blocks(std::int32_t num_blocks, std::int32_t,
                                          bool enable_prefix_caching) {
    return Blocks(num_blocks, enable_prefix_caching);
  }
  template <class Blocks, class Identity>
  [[nodiscard]] static ObserverMaker<Blocks> observer(const TierSetup&, const Identity&) {
    return [](StepRunner&, Blocks&) { return StepObservers(); };
  }

  /// Throws ConfigError where a setting of the tier on disk is not the default.
  /// @param tiers  the policy's, which have no such tier.
  static void check_no_disk(const EngineConfig& config, const char* tiers);
};

/// See NoTiers.
template <class Tiers>
concept TiersLike = requires(const EngineConfig& config, const KvShape& shape) {
  { Tiers::kHasHostPool } -> std::convertible_to<bool>;
  Tiers::validate(config);
  { Tiers::num_host_blocks(config, shape) } -> std::convertible_to<std::int32_t>;
};

/// The block manager of the policy's tiers and prefix cache.
template <class Policy>
using BlocksOf = typename Policy::Tiers::template Blocks<
    Policy::kv.block_size, typename Policy::template PrefixCache<Policy::kv.block_size>>;

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE void NoTiers::validate(const EngineConfig& config) {
  const KvSize& host = config.host_kv_size;
  check<ConfigError>(host.kind() != KvSize::Kind::memory_share && host.count() == 0,
                     "host_kv_size is set, but the policy's Tiers, NoTiers, has all blocks in the "
                     "device's pool; write 'using Tiers = nanovllm::HostTier;' in the policy, or "
                     "take one that has it, as FullPolicy of nanovllm/full_policy.hpp");
  check_no_disk(config, "NoTiers");
}

NANOVLLM_INLINE void NoTiers::check_no_disk(const EngineConfig& config, const char* tiers) {
  const EngineConfig defaults;
  const char* field = nullptr;
  if (config.disk_kv_min_tokens != defaults.disk_kv_min_tokens) field = "disk_kv_min_tokens";
  if (config.disk_kv_bytes != defaults.disk_kv_bytes) field = "disk_kv_bytes";
  if (config.disk_kv_path) field = "disk_kv_path";
  if (field == nullptr) return;
  throw ConfigError(concat(field, " is set, but the policy's Tiers, ", tiers,
                           ", has no blocks on disk; write 'using Tiers = nanovllm::DiskTier;' in "
                           "the policy, or take one that has it, as FullPolicy of "
                           "nanovllm/full_policy.hpp"));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
