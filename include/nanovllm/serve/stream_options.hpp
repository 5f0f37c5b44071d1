#pragma once
/// What requests say of streaming: `stream` and `stream_options`.

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/serve/request_fields.hpp"

namespace nanovllm::serve {

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;           ///< a last chunk with the usage
  bool continuous_usage_stats = false;  ///< usage in every chunk; only with include_usage
};

/// Throws ApiError, also for stream_options of a request that is not streamed.
[[nodiscard]] StreamOptions parse_stream_options(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/stream_options.inc"
#endif
