#pragma once
/// What a service of the OpenAI API is told when it is made.

#include <memory>
#include <string>
#include <vector>

#include "nanovllm/chat/tool_call_format.hpp"
#include "nanovllm/serve/constraint/output_constraint.hpp"
#include "nanovllm/serve/metrics.hpp"

namespace nanovllm::serve {

/// Everything has a sensible default.
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

}  // namespace nanovllm::serve
