#pragma once
/// The settings of a service of the OpenAI API.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/metrics.hpp"
#include "nanovllm/with/pooling/reranker.hpp"

namespace nanovllm::serve {

/// Every setting has a default.
struct ServiceConfig {
  /// Names by which requests may call the model; replies use the first. At least one.
  std::vector<std::string> model_names = {"nanovllm"};
  /// Sequences of a step: the engine's EngineConfig::max_num_seqs.
  int max_num_seqs = 256;
  /// Sequences that may wait in addition. Requests beyond that are refused with status 429.
  int max_queue = 1024;
  /// Compiles constraints (JSON Schema, patterns, forced tool calls); null: such requests are
  /// refused.
  std::shared_ptr<ConstraintCompiler> constraints{};
  /// The form in which the model writes tool calls; `none`: they stay in the content.
  ToolCallFormat tool_call_format = ToolCallFormat::hermes;
  bool parse_reasoning = true;  ///< off: thoughts stay in the content, with their tags
  /// How documents are scored. Requests may have their own instruction and limit.
  ScoreOptions score{};
  /// Responses that are kept for clients that continue them or ask for them again, and bytes of
  /// their texts: the most; those that were not used for the longest time are dropped. 0: none is.
  std::size_t max_stored_responses = 0;
  std::size_t max_stored_response_bytes = std::size_t{256} << 20;
  std::shared_ptr<const HttpCounters>
      http_counters{};  ///< of the transport, for /metrics; may be null
};

}  // namespace nanovllm::serve
