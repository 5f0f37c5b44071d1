#pragma once
/// A pool of blocks in host memory, below the device's.

#include <cstdint>
#include <memory>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/step/step_kv.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/with/tiers/cpu/swap_blocks.hpp"
#include "nanovllm/with/tiers/host_kv_pool.hpp"
#include "nanovllm/with/tiers/options.hpp"
#include "nanovllm/with/tiers/swap_blocks.hpp"
#include "nanovllm/with/tiers/swapping.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

namespace nanovllm {

template <class Pool>
concept HasHostBlocks = requires(Pool& pool) {
  pool.host_layer(0);
};

/// No copies between a pool and host memory: the backend has no ops for them.
template <class Backend, HasHostBlocks Pool>
struct OutsideCopies<Backend, Pool> {
  static constexpr bool kAreAwaited = false;

  static void check(std::int32_t num_blocks) {
    nanovllm::check<ConfigError>(
        num_blocks == 0, "HostKv::size: ", num_blocks,
        " blocks in host memory were asked for, but the policy's Backend has no 'run' for "
        "'SwapBlocksArgs'; see with/tiers/swap_blocks.hpp");
  }
  static void begin(Backend&, Pool&, VectorView<const BlockCopy> /*down*/,
                    VectorView<const BlockCopy> /*up*/) {
    throw Error("swap_blocks: the policy's Backend has none");
  }
  static void await(Backend&, std::int64_t /*layer*/) {}
};

/// A step's copies between a pool and host memory, by the backend's ops.
template <class Backend, HasHostBlocks Pool>
requires(RunsOp<Backend, SwapBlocksArgs<KvElementOf<Pool>>>) struct OutsideCopies<Backend, Pool> {
  static void check(std::int32_t /*num_blocks*/) {}
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
    stats.extras.update(HostKvStats{.num_hit_tokens = blocks_.tier_stats().num_host_hit_tokens,
                                    .num_swapped_out = swaps.num_out,
                                    .num_swapped_in = swaps.num_in,
                                    .num_swap_drops = swaps.num_dropped,
                                    .num_swap_fallbacks = swaps.num_fallbacks,
                                    .num_blocks = blocks_.host().num_blocks(),
                                    .num_free_blocks = blocks_.num_free_host()});
  }

 private:
  const Blocks& blocks_;
};

/// With a `HostKv` in `EngineConfig::extras`, blocks that the prefix cache evicts are copied to
/// host memory and are found there, and with SwapPreemption preempted sequences are copied there.
/// See NoTiers for what a policy's `Tiers` has.
struct HostTier {
  template <int kBlockSize, class Cache>
  using Blocks = TieredBlockManager<kBlockSize, Cache>;
  using Pools = HostPools;

  static void validate(const EngineConfig& config);

  [[nodiscard]] static std::int32_t num_outside(const EngineConfig& config, const PoolPlan& pool);
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
};

static_assert(TiersLike<HostTier>);

}  // namespace nanovllm

#if NANOVLLM_BODIES

namespace nanovllm {

NANOVLLM_INLINE void HostTier::validate(const EngineConfig& config) {
  config.extras.of<HostKv>().validate();
}

NANOVLLM_INLINE std::int32_t HostTier::num_outside(const EngineConfig& config,
                                                   const PoolPlan& pool) {
  const KvSize size = config.extras.of<HostKv>().size;
  if (size.count() == 0) return 0;
  const std::int32_t num_blocks = num_kv_blocks(size, pool.shape, 0, 1, "HostKv::size");
  const std::int64_t block_bytes = pool.shape.block_bytes();
  // A device's memory is another, and only the host knows of its own.
  check<ConfigError>(
      pool.is_on_device || num_blocks <= pool.available_bytes / block_bytes - pool.num_blocks,
      "HostKv::size: ", num_blocks, " blocks of ", block_bytes,
      " bytes were asked for, and kv_size has ", pool.num_blocks, "; ", pool.available_bytes,
      " bytes are available for both");
  return num_blocks;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
