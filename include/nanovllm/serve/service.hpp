#pragma once
/// The OpenAI API on an engine: requests in, answers out, whatever carries them.
///
///     nv::serve::OpenAiService service(engine, {.model_names = {"Qwen3-0.6B"}});
///     nv::serve::HttpReply reply = service.answer(
///         {.method = "POST", .target = "/v1/chat/completions", .body = R"({"messages": …})"});
///
/// docs/serving.md has the paths, what they take, and where this differs from others.

#include <cstdint>
#include <memory>
#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/serve/exchange.hpp"
#include "nanovllm/serve/http.hpp"
#include "nanovllm/serve/service_config.hpp"

namespace nanovllm::serve {

/// A whole reply.
struct HttpReply {
  HttpHead head{};
  std::string body{};
};

/// Answers requests of the OpenAI API, and those of vLLM that are about a model. Every member may
/// be called from any thread. The engine must outlive the service, and the service its exchanges.
class OpenAiService {
 public:
  /// Throws ConfigError for a config that makes no sense.
  explicit OpenAiService(AnyEngine& engine, ServiceConfig config = {});
  ~OpenAiService();

  OpenAiService(const OpenAiService&) = delete;
  OpenAiService& operator=(const OpenAiService&) = delete;

  /// Begins to answer `request`: reads it, makes tokens of its text and what holds its answer to a
  /// form, and submits it, all on this thread, which takes milliseconds, and of a new grammar
  /// perhaps seconds. What cannot be answered is an exchange with an error's status and body; the
  /// only exception is one for want of memory. Never null.
  [[nodiscard]] std::shared_ptr<Exchange> handle(const HttpRequest& request);

  /// The whole answer, a stream's chunks one behind the other. Waits for it, so another thread must
  /// be in `engine.run`.
  [[nodiscard]] HttpReply answer(const HttpRequest& request);

  /// From now on requests for tokens are refused with status 503, and /health says so. What is
  /// under way goes on.
  void drain() noexcept;

  /// Sequences that were submitted and have not ended.
  [[nodiscard]] std::int64_t num_unfinished() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/service.inc"
#endif
