#pragma once
/// Errors as OpenAI's API words them, and Anthropic's.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// Whose words an error has.
enum class ErrorForm : std::uint8_t { openai, anthropic };

/// The form of errors that answer requests for `path`.
[[nodiscard]] inline ErrorForm error_form_of(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool is_below = path.starts_with(kMessages) &&
                        (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  return is_below ? ErrorForm::anthropic : ErrorForm::openai;
}

namespace detail {

[[nodiscard]] inline const char* anthropic_error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

[[nodiscard]] inline std::string error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace detail

/// The error that answers a request: an HTTP status and
/// {"error": {"message", "type", "param", "code"}}.
struct ApiError : RequestError {
  /// `type` follows from the status: "authentication_error" of 401, "rate_limit_error" of 429,
  /// "server_error" from 500 on, else "invalid_request_error".
  ApiError(int http_status, const std::string& message,
           std::optional<std::string> field = std::nullopt, std::string error_code = {})
      : RequestError(message),
        status(http_status),
        type(detail::error_type(http_status)),
        param(std::move(field)),
        code(std::move(error_code)) {}

  /// The answer to an error of a request: itself if it is one, else 400, with the field at fault.
  [[nodiscard]] static ApiError of(const RequestError& error) {
    if (const auto* answer = dynamic_cast<const ApiError*>(&error)) return *answer;
    const auto* field = dynamic_cast<const FieldError*>(&error);
    return {400, error.what(), field != nullptr ? std::optional(field->field) : std::nullopt};
  }

  /// 404 for a model that is not served.
  [[nodiscard]] static ApiError model_not_found(std::string_view model) {
    constexpr std::size_t kMost = 256;  // bytes of a name that an error repeats
    const std::string_view shown = model.substr(0, kMost);
    return {404, concat("The model `", shown, model.size() > kMost ? "…" : "", "` does not exist."),
            "model", "model_not_found"};
  }

  /// {"type": "error", "error": {"type", "message"}} in Anthropic's form, which has no `param`.
  [[nodiscard]] Json to_json(ErrorForm form = ErrorForm::openai) const {
    std::string message;
    utf8::append_lossy(message, what());
    Json error;
    if (form == ErrorForm::anthropic) {
      error["type"] = detail::anthropic_error_type(status);
      error["message"] = std::move(message);
      return Json::object({{"type", "error"}, {"error", std::move(error)}});
    }
    error["message"] = std::move(message);
    error["type"] = type;
    error["param"] = param ? Json(*param) : Json();
    error["code"] = code.empty() ? Json() : Json(code);
    return Json::object({{"error", std::move(error)}});
  }

  /// The text of `to_json`. It is valid UTF-8 even if the message is not.
  [[nodiscard]] std::string body(ErrorForm form = ErrorForm::openai) const {
    return to_json(form).dump();
  }

  int status;
  std::string type;
  std::optional<std::string> param;  ///< the field at fault: "messages[2].content"
  std::string code;                  ///< "context_length_exceeded", …; empty is written as null
};

/// `message` with `name`, the engine's for a field, replaced by `own`, the request's, wherever it
/// is a word.
[[nodiscard]] inline std::string in_own_name(std::string message, std::string_view name,
                                             std::string_view own) {
  const auto is_letter = [&](std::size_t i) {
    return i < message.size() && (message[i] == '_' || (message[i] >= 'a' && message[i] <= 'z'));
  };
  for (std::size_t i = message.find(name); i != std::string::npos; i = message.find(name, i)) {
    const bool is_word = !is_letter(i - 1) && !is_letter(i + name.size());
    if (is_word) message.replace(i, name.size(), own);
    i += is_word ? own.size() : name.size();
  }
  return message;
}

}  // namespace nanovllm::serve
