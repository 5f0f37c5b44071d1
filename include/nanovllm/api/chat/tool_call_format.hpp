#pragma once
/// How an assistant's text writes its tool calls.

#include <cstdint>

namespace nanovllm {

enum class ToolCallFormat : std::uint8_t {
  none,    ///< there are none in it
  hermes,  ///< <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
  /// <tool_call>\n<function=…>\n<parameter=…>\n…\n</parameter>\n</function>\n</tool_call>
  qwen3_coder,
};

}  // namespace nanovllm
