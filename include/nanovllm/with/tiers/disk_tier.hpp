#pragma once
/// Files of blocks, below the pool in host memory.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/with/tiers/disk/disk_observer.hpp"
#include "nanovllm/with/tiers/disk/disk_store.hpp"
#include "nanovllm/with/tiers/host_tier.hpp"
#include "nanovllm/with/tiers/options.hpp"

namespace nanovllm {

/// HostTier, and with a `DiskKv` in `EngineConfig::extras` a directory of files below it. See
/// NoTiers for what a policy's `Tiers` has.
struct DiskTier : HostTier {
  static void validate(const EngineConfig& config);

  template <class Blocks, class Identity>
  [[nodiscard]] static ObserverMaker<Blocks> observer(const TierSetup& setup,
                                                      const Identity& identity) {
    if (!setup.config.extras.of<DiskKv>().path) return HostTier::observer<Blocks>(setup, identity);
    return [files = files_of(setup, identity()),
            host = HostTier::observer<Blocks>(setup, identity)](StepRunner& runner,
                                                                Blocks& blocks) {
      auto store = std::make_unique<DiskStore>(files.directory, files.max_bytes, files.identity);
      StepObservers observers = host(runner, blocks);
      observers.add(std::make_unique<DiskObserver<Blocks>>(std::move(store), runner, blocks,
                                                           files.min_tokens));
      return observers;
    };
  }

 private:
  struct Files {
    std::filesystem::path directory;
    std::uint64_t max_bytes = 0;
    std::string identity;  ///< of the model, and the layout of a block
    int min_tokens = 0;
  };
  /// Throws ConfigError where no block can be written.
  [[nodiscard]] static Files files_of(const TierSetup& setup, const KvIdentity& identity);
};

static_assert(TiersLike<DiskTier>);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/with/tiers/disk/block_files.hpp"

namespace nanovllm {

NANOVLLM_INLINE void DiskTier::validate(const EngineConfig& config) {
  HostTier::validate(config);
  const auto disk = config.extras.of<DiskKv>();
  if (!disk.path) return;
  check<ConfigError>(config.extras.of<HostKv>().size.count() > 0,
                     "DiskKv::path needs blocks in host memory, which files are read to and "
                     "written from; HostKv::size is 0");
  check<ConfigError>(!config.processes,
                     "DiskKv::path needs all ranks in one process; 'processes' is set");
  check<ConfigError>(disk.min_tokens >= 1, "DiskKv::min_tokens must be >= 1, got ",
                     disk.min_tokens);
}

NANOVLLM_INLINE DiskTier::Files DiskTier::files_of(const TierSetup& setup,
                                                   const KvIdentity& identity) {
  check<ConfigError>(setup.keeps_prefixes,
                     "DiskKv::path needs a prefix cache: the policy has none, or prefix_caching is "
                     "off");
  const KvShape shape = setup.runner.kv_shape();
  const std::int64_t num_ranks = setup.runner.num_ranks();
  std::string text;
  for (const auto& [name, value] : identity) text += concat(name, " = ", value, '\n');
  text += concat("block_size = ", shape.block_size, "\nranks = ", num_ranks, '\n');
  const std::uint64_t file_bytes =
      BlockFiles::file_bytes(text.size(), static_cast<std::size_t>(shape.block_size),
                             static_cast<std::size_t>(shape.num_layers * num_ranks),
                             static_cast<std::uint64_t>(shape.block_bytes() * num_ranks));
  const auto disk = setup.config.extras.of<DiskKv>();
  check<ConfigError>(disk.max_bytes >= file_bytes, "DiskKv::max_bytes: ", disk.max_bytes,
                     " bytes have no room for a block, whose file has ", file_bytes);
  return {.directory = *disk.path,
          .max_bytes = disk.max_bytes,
          .identity = std::move(text),
          .min_tokens = disk.min_tokens};
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
