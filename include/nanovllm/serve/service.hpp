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
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/serve/exchange.hpp"
#include "nanovllm/serve/http.hpp"
#include "nanovllm/serve/metrics.hpp"
#include "nanovllm/serve/output_constraint.hpp"

namespace nanovllm::serve {

/// What a service is told when it is made.
struct ServiceConfig {
  /// What requests may call the model; the first is what replies call it. At least one.
  std::vector<std::string> model_names = {"nanovllm"};
  /// Sequences that the engine computes at one time, its EngineConfig::max_num_seqs.
  int max_num_seqs = 256;
  /// Sequences that may wait beyond them. Requests that come then are refused with status 429.
  int max_queue = 1024;
  /// Makes what holds answers to a form; null: requests that ask for one are refused.
  std::shared_ptr<ConstraintCompiler> constraints{};
  /// In which form the model writes tool calls; `none`: they are left in the content.
  ToolCallFormat tool_call_format = ToolCallFormat::hermes;
  bool parse_reasoning = true;  ///< else thoughts are left in the content, with their tags
  std::shared_ptr<const HttpCounters> http_counters{};  ///< of the transport, for /metrics, if any
};

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
