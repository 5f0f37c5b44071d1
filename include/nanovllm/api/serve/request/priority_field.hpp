#pragma once
/// The field `priority` of requests for vectors and scores.

#include <cstdint>
#include <limits>

#include "nanovllm/api/serve/request/request_fields.hpp"

namespace nanovllm::serve {

/// As SamplingParams has it; 0 if the field is absent. Throws RequestError.
[[nodiscard]] inline std::int32_t parse_priority(const RequestFields& body) {
  using Limits = std::numeric_limits<std::int32_t>;
  return static_cast<std::int32_t>(
      body.integer("priority", Limits::min(), Limits::max()).value_or(0));
}

}  // namespace nanovllm::serve
