#pragma once
/// What requests say of the form of an answer: OpenAI's response_format, vLLM's structured_outputs
/// and guided_*.

#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/serve/output_constraint.hpp"
#include "nanovllm/serve/request_fields.hpp"

namespace nanovllm::serve {

/// Answers that a choice may have.
inline constexpr std::size_t kMaxChoices = 1024;

/// The form that a request states, and where it does.
struct OutputFormat {
  OutputConstraint constraint{};
  std::string field{};  ///< path of the field that states it; empty for Kind::none
};

/// Reads response_format, structured_outputs, guided_json, guided_regex, guided_choice and
/// guided_grammar, of which one at the most may state a form. Schemas are checked to be JSON objects
/// and nothing more. Throws ApiError.
[[nodiscard]] OutputFormat parse_output_format(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/output_format.inc"
#endif
