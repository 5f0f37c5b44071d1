#pragma once
/// The setting of an engine for its sessions, and what they add to its statistics.

#include <cstdint>
#include <optional>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// One of `EngineConfig::extras`.
struct SessionOptions {
  /// Blocks of the KV pool that sessions may hold, all together; unset: half of them. They are
  /// taken back for requests that could not run otherwise.
  std::optional<std::int32_t> max_blocks{};

  /// See Extras.
  void validate() const {
    check<ConfigError>(max_blocks.value_or(0) >= 0, "SessionOptions::max_blocks must be >= 0, got ",
                       max_blocks.value_or(0));
  }
};

/// One of `EngineStats::extras`.
struct SessionStats {
  std::int64_t num_blocks = 0;  ///< of the KV pool, not free, held by sessions
};

}  // namespace nanovllm
