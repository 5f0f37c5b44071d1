#pragma once
/// vLLM's field `cache_salt`: whose part of the prefix cache a request uses.

#include <string>

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm::serve {

/// Empty where the field is absent. Throws FieldError unless it is a text of 1 to
/// kMaxCacheSaltBytes bytes: a client that asks for its own part of the cache must not get another.
[[nodiscard]] std::string parse_cache_salt(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <optional>

#include "nanovllm/engine/request/prompt.hpp"

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE std::string parse_cache_salt(const RequestFields& body) {
  constexpr const char* kField = "cache_salt";
  const std::optional<std::string> salt = body.string(kField);
  if (!salt) return {};
  if (salt->empty()) refuse_field(body.path(kField), "must not be empty");
  if (salt->size() > kMaxCacheSaltBytes)
    refuse_field(body.path(kField),
                 concat("must have at most ", kMaxCacheSaltBytes, " bytes, got ", salt->size()));
  return *salt;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
