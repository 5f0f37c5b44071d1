#pragma once
/// vLLM's field `truncate_prompt_tokens`: of a long prompt the last tokens are kept.

#include <cstdint>
#include <limits>
#include <optional>

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm::serve {

/// A request's prompts are cut at their beginning where they are too long.
struct PromptTruncation {
  /// Tokens that are kept, 1 or more. Unset: as many as leave room for `max_tokens` in the model's
  /// context.
  std::optional<std::int32_t> num_tokens{};
};

/// Nothing where the field is absent: prompts are not cut then. Throws RequestError unless it is
/// -1, for as many tokens as fit, or 1 or more.
[[nodiscard]] std::optional<PromptTruncation> parse_truncation(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE std::optional<PromptTruncation> parse_truncation(const RequestFields& body) {
  constexpr const char* kField = "truncate_prompt_tokens";
  const auto value = body.integer(kField, -1, std::numeric_limits<std::int32_t>::max());
  if (!value) return {};
  if (*value == 0) refuse_field(body.path(kField), "must be -1 or >= 1, got 0");
  PromptTruncation out;
  if (*value != -1) out.num_tokens = static_cast<std::int32_t>(*value);
  return out;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
