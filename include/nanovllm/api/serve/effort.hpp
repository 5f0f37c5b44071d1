#pragma once
/// How long a request may be worked on before it is submitted.

#include <cstddef>
#include <stop_token>

#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/text/check_stop.hpp"

namespace nanovllm::serve {

/// Bytes of a body, and of texts to make tokens of, that take a few milliseconds at the most.
inline constexpr std::size_t kShortBytes = std::size_t{16} << 10;

/// What may be done for a request on the thread that prepares it.
struct Effort {
  /// Only what takes some milliseconds: no body and no texts above kShortBytes, no constraint that
  /// has to be compiled.
  bool is_short = false;
  std::stop_token stop{};  ///< gives long work up

  /// Throws Cancelled if it is to be given up. The service answers with `given_up()` then.
  void check_stop() const { nanovllm::check_stop(stop); }

  [[nodiscard]] static ApiError given_up() {
    return {503, "the server gave the request up before it was started; try again later"};
  }
};

}  // namespace nanovllm::serve
