#pragma once
/// The body of POST /v1/completions. As chat_request.hpp has it, but for what is asked.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/prompt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/output_constraint.hpp"

namespace nanovllm::serve {

/// Prompts of one request, and sequences that they all make together: prompts times samples.
inline constexpr std::size_t kMaxPrompts = 128;
inline constexpr std::size_t kMaxCompletionSequences = 1024;

/// A request to go on with one or more texts.
struct CompletionRequest {
  std::string model{};            ///< empty where the request names none
  std::vector<Prompt> prompts{};  ///< texts or token ids, none of them empty
  /// Its ranges are checked. `prompt_logprobs` is the request's own, or with `echo` its `logprobs`.
  SamplingParams sampling{};
  OutputConstraint constraint{};
  std::string constraint_field{};  ///< path of the field that states it; empty for Kind::none
  bool echo = false;               ///< the prompt comes before the completion
  /// `max_tokens` was 0, which goes with `echo`: `sampling.max_tokens` is 1, as the engine wants,
  /// and what it generates is to be left out.
  bool prompt_only = false;
  std::optional<std::int32_t> logprobs{};
  bool stream = false;                  ///< never of samples that are chosen from, nor of beams
  bool include_usage = false;           ///< a last chunk with the usage
  bool continuous_usage_stats = false;  ///< usage in every chunk; only with include_usage
  bool return_token_ids = false;

  /// Throws ApiError.
  [[nodiscard]] static CompletionRequest parse(const Json& body);
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/completion_request.inc"
#endif
