#pragma once
/// How a request ends.

#include <cstdint>
#include <string_view>

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

}  // namespace nanovllm
