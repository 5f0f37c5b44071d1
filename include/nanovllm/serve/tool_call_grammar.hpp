#pragma once
/// Calls of tools as a grammar.

#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/json_schema_grammar.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/output_constraint.hpp"

namespace nanovllm::serve {

/// The grammar of one call of one of `tools`, from behind "<tool_call>" to "</tool_call>", in
/// the notation of grammar/ebnf_parser.hpp.
///
/// In the hermes form the arguments are JSON by the tool's `parameters`. In the qwen3_coder form each
/// parameter is a part of its own, in the schema's order; one whose schema is of type string and
/// says no more is raw text up to "\n</parameter>", and every other is JSON.
///
/// @param tools as in OutputConstraint::tools.
/// Throws RequestError where there is no tool, and for `parameters` that json_schema_grammar refuses
/// or that are no object; the message names the tool.
[[nodiscard]] std::string tool_call_grammar(const Json& tools, ToolCallFormat format,
                                            const JsonStyle& style = {});

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/tool_call_grammar.inc"
#endif
