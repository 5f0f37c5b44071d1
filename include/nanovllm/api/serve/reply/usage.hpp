#pragma once
/// The field `usage` of replies: numbers of tokens.

#include <cstdint>
#include <optional>

#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// Sums over all prompts and choices of a request.
struct Usage {
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_completion_tokens = 0;
  std::optional<std::int64_t> num_cached_tokens{};     ///< of the prompt; known at the end
  std::optional<std::int64_t> num_reasoning_tokens{};  ///< of completions that may have thoughts

  [[nodiscard]] Json to_json() const {
    Json out = Json::object({{"prompt_tokens", num_prompt_tokens},
                             {"total_tokens", num_prompt_tokens + num_completion_tokens},
                             {"completion_tokens", num_completion_tokens},
                             {"prompt_tokens_details", nullptr}});
    if (num_cached_tokens)
      out["prompt_tokens_details"] = Json::object({{"cached_tokens", *num_cached_tokens}});
    if (num_reasoning_tokens) {
      out["completion_tokens_details"] =
          Json::object({{"reasoning_tokens", *num_reasoning_tokens}});
    }
    return out;
  }
};

}  // namespace nanovllm::serve
