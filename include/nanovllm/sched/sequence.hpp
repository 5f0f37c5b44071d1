#pragma once
/// A sequence: the tokens of one request and where their keys and values are.

#include <cstdint>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// Why a request ended.
enum class FinishReason : std::uint8_t {
  none,    ///< it has not
  stop,    ///< an end token, a stop token or a stop string
  length,  ///< max_tokens, the model's context or the KV pool
  abort,   ///< the user took it back
  error,   ///< it could not be served
};

/// "stop", "length", "abort", "error", or "" while running.
[[nodiscard]] constexpr std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::abort: return "abort";
    case FinishReason::error: return "error";
  }
  return "?";
}

/// Stands for a token that sample `sample` of a step under way will draw.
[[nodiscard]] constexpr TokenId pending_token(std::int32_t sample) { return ~sample; }
[[nodiscard]] constexpr bool is_pending(TokenId token) { return token < 0; }
[[nodiscard]] constexpr std::int32_t pending_sample(TokenId token) { return ~token; }

/// Where the scheduler keeps a sequence.
enum class SequenceStatus : std::uint8_t { waiting, running, finished };

/// The scheduler's view of a request. Owned by the engine; the scheduler holds pointers, so a
/// sequence must stay where it is from `add` until it is finished.
struct Sequence {
  RequestId id = 0;
  std::vector<TokenId> tokens;  ///< the prompt, what was generated, and what is still to be drawn
  std::int32_t num_prompt_tokens = 0;  ///< ≥ 1
  std::int32_t max_total_tokens = 0;   ///< prompt and generated tokens at the most

  std::uint64_t arrival = 0;  ///< rank in the order of arrival, from 1; set by the scheduler
  SequenceStatus status = SequenceStatus::waiting;
  FinishReason finish_reason = FinishReason::none;
  std::int32_t num_computed_tokens = 0;  ///< K and V of tokens[0, n) are in the cache, or will be
                                         ///< when the steps under way are done
  std::int32_t num_cached_tokens = 0;  ///< of them, taken from the prefix cache on first admission
  std::int32_t num_preemptions = 0;
  std::vector<BlockId> block_table;  ///< block_table[i] holds tokens [i · B, (i + 1) · B)

  [[nodiscard]] std::int32_t num_tokens() const { return static_cast<std::int32_t>(tokens.size()); }
  [[nodiscard]] std::int32_t num_generated_tokens() const {
    return num_tokens() - num_prompt_tokens;
  }
  /// Whether the last token is one that a step under way draws.
  [[nodiscard]] bool has_pending_token() const {
    return !tokens.empty() && is_pending(tokens.back());
  }
  /// Whether it has all the tokens it may have, pending ones included: nothing is left to compute.
  [[nodiscard]] bool is_complete() const { return num_tokens() >= max_total_tokens; }
};

}  // namespace nanovllm
