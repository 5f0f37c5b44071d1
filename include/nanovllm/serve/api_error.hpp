#pragma once
/// Errors as OpenAI's API words them.

#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// A request that is answered with an error: an HTTP status and
/// {"error": {"message", "type", "param", "code"}}.
struct ApiError : RequestError {
  /// `type` follows from the status: "authentication_error" of 401, "rate_limit_error" of 429,
  /// "server_error" from 500 on, else "invalid_request_error".
  ApiError(int http_status, const std::string& message,
           std::optional<std::string> field = std::nullopt, std::string error_code = {});

  /// 404 for a model that is not served.
  [[nodiscard]] static ApiError model_not_found(std::string_view model);

  [[nodiscard]] Json to_json() const;
  /// The text of `to_json`, which is UTF-8 whatever the message is.
  [[nodiscard]] std::string body() const { return to_json().dump(); }

  int status;
  std::string type;
  std::optional<std::string> param;  ///< the field at fault: "messages[2].content"
  std::string code;                  ///< "context_length_exceeded", …; empty is written as null
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/api_error.inc"
#endif
