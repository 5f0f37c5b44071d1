#pragma once
/// How large a step may be: what everything that works on steps allocates for.

#include <cstdint>

namespace nanovllm {

/// CPU threads that an engine may be told to use: more than any machine has.
inline constexpr int kMaxThreads = 4096;

/// What the steps of one engine have at the most.
struct StepLimits {
  std::int64_t max_num_batched_tokens = 0;  ///< tokens that a step computes
  /// Sequences of a step; and rows whose logits are wanted, of which a sequence may have several.
  std::int64_t max_num_seqs = 0;
  std::int64_t max_model_len = 0;  ///< tokens of a sequence, with those of earlier steps
  bool shares_prefixes = true;     ///< some may say which sequences begin with the same keys
};

}  // namespace nanovllm
