#pragma once
/// The settings of an engine for blocks outside of the device's pool, and what they add to its
/// statistics.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

/// One of `EngineConfig::extras`: blocks in host memory, page-locked if there is a device. Blocks
/// that the prefix cache evicts are copied there, and found there. A policy with `SwapPreemption`
/// copies preempted sequences there instead of computing them again; they take precedence over
/// cached blocks. Needs `Tiers = HostTier` or `DiskTier` in the policy.
struct HostKv {
  KvSize size = KvSize::blocks(0);  ///< a number of blocks, or of bytes of each rank

  // See Extras.
  [[nodiscard]] std::string unread(const std::string& tiers) const;
  void validate() const;
  [[nodiscard]] std::string sizes() const { return "HostKv::size = " + to_text(size); }
};

/// One of `EngineConfig::extras`: blocks of the prefix cache in files, one each, which later
/// engines of the same model, policy and settings find, also in other processes: a tier below
/// `HostKv`, whose size must not be 0. Needs `Tiers = DiskTier` in the policy.
struct DiskKv {
  /// The directory; unset: there is no such tier. It is created if needed, and may be shared. A
  /// user who can write to it can change what is generated.
  std::optional<std::filesystem::path> path{};
  std::uint64_t max_bytes = std::uint64_t{16} << 30;  ///< of all its files
  /// A request waits for blocks on disk if they hold at least this many tokens more of its prompt
  /// than memory does. That many tokens should take longer to compute than to read.
  int min_tokens = 256;

  /// See Extras.
  [[nodiscard]] std::string unread(const std::string& tiers) const;
};

/// One of `EngineStats::extras`, of policies with `Tiers = HostTier` or `DiskTier`.
struct HostKvStats {
  std::int64_t num_hit_tokens = 0;      ///< of EngineStats::num_hit_tokens, in host memory
  std::int64_t num_swapped_out = 0;     ///< of EngineStats::num_preemptions, copied to host memory
  std::int64_t num_swapped_in = 0;      ///< copied back, and not computed again
  std::int64_t num_swap_drops = 0;      ///< not copied back: ended, or of no use
  std::int64_t num_swap_fallbacks = 0;  ///< not copied: no room, or the step was undone
  std::int64_t num_blocks = 0;          ///< of the pool in host memory
  std::int64_t num_free_blocks = 0;
};

/// One of `EngineStats::extras`, where `DiskKv::path` is set.
struct DiskKvStats {
  std::int64_t num_hit_tokens = 0;  ///< of HostKvStats::num_hit_tokens, read for the request
  std::int64_t num_blocks = 0;      ///< files in DiskKv::path
  std::int64_t num_writes = 0;      ///< blocks that were written
  std::int64_t num_failures = 0;    ///< files not written, or not as they should be
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::string HostKv::unread(const std::string& tiers) const {
  if (size.kind() != KvSize::Kind::memory_share && size.count() == 0) return {};
  return concat("HostKv::size is set, but the policy's Tiers, ", tiers,
                ", has all blocks in the device's pool; write 'using Tiers = nanovllm::HostTier;' "
                "in the policy, or take one that has it, as FullPolicy of "
                "nanovllm/full_policy.hpp");
}

NANOVLLM_INLINE void HostKv::validate() const {
  const bool is_share = size.kind() == KvSize::Kind::memory_share;
  check<ConfigError>(
      !is_share && size.count() >= 0,
      "HostKv::size must be a number of blocks or of bytes, 0 for none; got ",
      is_share ? concat("a share of the memory, ", size.share()) : concat(size.count()));
}

NANOVLLM_INLINE std::string DiskKv::unread(const std::string& tiers) const {
  const DiskKv defaults;
  const char* field = nullptr;
  if (min_tokens != defaults.min_tokens) field = "min_tokens";
  if (max_bytes != defaults.max_bytes) field = "max_bytes";
  if (path) field = "path";
  if (field == nullptr) return {};
  return concat("DiskKv::", field, " is set, but the policy's Tiers, ", tiers,
                ", has no blocks on disk; write 'using Tiers = nanovllm::DiskTier;' in the policy, "
                "or take one that has it, as FullPolicy of nanovllm/full_policy.hpp");
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
