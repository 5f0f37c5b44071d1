#pragma once
/// How much one step may carry.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Run-time limits of a step.
struct BatchConfig {
  /// Sequences that run at the same time, ≥ 1.
  std::int32_t max_num_seqs = 256;
  /// Tokens that one step computes, prompts and decodes together, ≥ max_num_seqs, so that no
  /// sequence starves behind the others' decodes. More makes prompts faster and the gap between two
  /// tokens of a running sequence longer. Tokens from the prefix cache do not count.
  std::int32_t max_num_batched_tokens = 2048;
  /// A sequence is not admitted while one that goes before it computes at least so many tokens of
  /// their common prefix that the prefix cache does not have; 0: it always is. A small number saves
  /// computing, a large one saves the sequence a step.
  std::int32_t prefix_wait_tokens = 0;
  /// Rows of logits of a step, if more than max_num_seqs. Guesses take what sequences leave.
  std::optional<std::int32_t> max_num_logits{};

  [[nodiscard]] std::int32_t num_logits() const {
    return std::max(max_num_seqs, max_num_logits.value_or(0));
  }
};

/// Throws ConfigError naming the first field out of range.
inline void validate(const BatchConfig& config) {
  check<ConfigError>(config.max_num_seqs >= 1, "max_num_seqs must be >= 1, got ",
                     config.max_num_seqs);
  check<ConfigError>(config.max_num_batched_tokens >= config.max_num_seqs,
                     "max_num_batched_tokens must be >= max_num_seqs = ", config.max_num_seqs,
                     ", got ", config.max_num_batched_tokens);
  check<ConfigError>(config.prefix_wait_tokens >= 0, "prefix_wait_tokens must be >= 0, got ",
                     config.prefix_wait_tokens);
}

}  // namespace nanovllm
