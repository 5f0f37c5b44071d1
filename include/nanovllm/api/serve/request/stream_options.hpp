#pragma once
/// The fields of streaming: `stream` and `stream_options`.

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm::serve {

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;           ///< a last chunk with the usage
  bool continuous_usage_stats = false;  ///< usage in every chunk; only with include_usage
};

/// Throws RequestError, also for stream_options of a request that is not streamed.
[[nodiscard]] StreamOptions parse_stream_options(const RequestFields& body);

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE StreamOptions parse_stream_options(const RequestFields& body) {
  StreamOptions out{.stream = body.flag("stream")};
  const Json* value = body.find("stream_options");
  if (value == nullptr) return out;
  const RequestFields options(*value, "stream_options");
  if (!out.stream) refuse_field("stream_options", "can only be given with 'stream': true");
  out.include_usage = options.flag("include_usage");
  out.continuous_usage_stats = options.flag("continuous_usage_stats") && out.include_usage;
  return out;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
