#pragma once
/// How large a step may be. Everything that works on steps allocates memory for this size.

#include <cstdint>

namespace nanovllm {

/// Most CPU threads that an engine may be told to use.
inline constexpr int kMaxThreads = 4096;

/// The limits of the steps of one engine.
struct StepLimits {
  std::int64_t max_num_batched_tokens = 0;  ///< tokens that a step computes
  /// Sequences of a step; also rows that need logits, of which a sequence may have several.
  std::int64_t max_num_seqs = 0;
  std::int64_t max_model_len = 0;  ///< tokens of a sequence, including those of earlier steps
  bool shares_prefixes = true;     ///< steps may state which sequences begin with the same keys
};

}  // namespace nanovllm
