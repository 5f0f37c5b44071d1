#pragma once
/// A pool of blocks in host memory, below the device's.

#include <cstdint>
#include <memory>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/step/executor_steps.hpp"
#include "nanovllm/engine/step/step_kv.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/with/tiers/cpu/swap_blocks.hpp"
#include "nanovllm/with/tiers/swap_blocks.hpp"
#include "nanovllm/with/tiers/swapping.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

namespace nanovllm {

/// A step's copies between a pool and host memory, by the backend's ops, if it has them.
template <class Backend, class Pool>
requires(Pool::kHasHostBlocks&& RunsOp<
         Backend, SwapBlocksArgs<KvElementOf<Pool>>>) struct OutsideCopies<Backend, Pool> {
  static constexpr bool kAreMade = true;
  static constexpr bool kAreAwaited = RunsOp<Backend, AwaitSwapArgs>;

  static void begin(Backend& backend, Pool& pool, VectorView<const BlockCopy> down,
                    VectorView<const BlockCopy> up) {
    backend.run(
        SwapBlocksArgs<KvElementOf<Pool>>{.device = pool.layer(0),
                                          .device_stride = layer_stride(pool, &Pool::layer),
                                          .host = pool.host_layer(0),
                                          .host_stride = layer_stride(pool, &Pool::host_layer),
                                          .num_layers = pool.num_layers(),
                                          .down = down,
                                          .up = up});
  }
  static void await(Backend& backend, std::int64_t layer) {
    if constexpr (kAreAwaited) backend.run(AwaitSwapArgs{layer});
  }
};

/// Fills in the statistics of the host's pool.
template <class Blocks>
class HostObserver final : public StepObserver {
 public:
  /// `blocks` must outlive this.
  explicit HostObserver(const Blocks& blocks) : blocks_(blocks) {}

  void fill(EngineStats& stats) const override {
    const SwapStats& swaps = blocks_.swap_stats();
    stats.num_swapped_out = swaps.num_out;
    stats.num_swapped_in = swaps.num_in;
    stats.num_swap_drops = swaps.num_dropped;
    stats.num_swap_fallbacks = swaps.num_fallbacks;
    stats.num_host_hit_tokens = blocks_.tier_stats().num_host_hit_tokens;
    stats.num_host_kv_blocks = blocks_.host().num_blocks();
    stats.num_free_host_kv_blocks = blocks_.num_free_host();
  }

 private:
  const Blocks& blocks_;
};

/// With `EngineConfig::host_kv_size`, blocks that the prefix cache evicts are copied to host memory
/// and are found there, and with SwapPreemption preempted sequences are copied there. See NoTiers
/// for what a policy's `Tiers` has.
struct HostTier {
  template <int kBlockSize, class Cache>
  using Blocks = TieredBlockManager<kBlockSize, Cache>;
  static constexpr bool kHasHostPool = true;

  static void validate(const EngineConfig& config);

  [[nodiscard]] static std::int32_t num_host_blocks(const EngineConfig& config,
                                                    const KvShape& shape);
  template <class Blocks>
  [[nodiscard]] static Blocks make_blocks(std::int32_t num_blocks, std::int32_t num_host_blocks,
                                          bool enable_prefix_caching) {
    Blocks blocks(num_blocks, enable_prefix_caching);
    blocks.add_host_pool(num_host_blocks);
    return blocks;
  }
  template <class Blocks, class Identity>
  [[nodiscard]] static ObserverMaker<Blocks> observer(const TierSetup&, const Identity&) {
    return [](StepRunner&, Blocks& blocks) {
      StepObservers observers;
      observers.add(std::make_unique<HostObserver<Blocks>>(blocks));
      return observers;
    };
  }

  /// Throws ConfigError unless `host_kv_size` is a number of blocks or bytes.
  static void check_host_size(const EngineConfig& config);
};

static_assert(TiersLike<HostTier>);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <string>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE void HostTier::validate(const EngineConfig& config) {
  check_host_size(config);
  NoTiers::check_no_disk(config, "HostTier");
}

NANOVLLM_INLINE std::int32_t HostTier::num_host_blocks(const EngineConfig& config,
                                                       const KvShape& shape) {
  const KvSize& host = config.host_kv_size;
  return host.count() == 0 ? 0 : num_kv_blocks(host, shape, 0, 1, "host_kv_size");
}

NANOVLLM_INLINE void HostTier::check_host_size(const EngineConfig& config) {
  const KvSize& host = config.host_kv_size;
  const bool is_share = host.kind() == KvSize::Kind::memory_share;
  check<ConfigError>(
      !is_share && host.count() >= 0,
      "host_kv_size must be a number of blocks or of bytes, 0 for none; got ",
      is_share ? concat("a share of the memory, ", host.share()) : concat(host.count()));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
