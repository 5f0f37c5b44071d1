#pragma once
/// What a block manager counts.

#include <cstdint>

namespace nanovllm {

/// Counters since the block manager was made.
struct BlockStats {
  std::int64_t num_queried_tokens = 0;   ///< tokens of the sequences that were admitted
  std::int64_t num_hit_tokens = 0;       ///< of them, found in the prefix cache, both tiers
  std::int64_t num_host_hit_tokens = 0;  ///< of these, in host memory
  std::int64_t num_disk_hit_tokens = 0;  ///< and of these, read from a file for the sequence
  std::int64_t num_evictions = 0;        ///< cached blocks that were reused for other tokens
  std::int64_t num_saved = 0;            ///< of them, copied to host memory
};

}  // namespace nanovllm
