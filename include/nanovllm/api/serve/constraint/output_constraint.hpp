#pragma once
/// What form an answer must have, as a request states it, and what makes a TokenMaskSource of that.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm::serve {

/// White space between the tokens of JSON.
enum class JsonSpace : std::uint8_t {
  tidy,  ///< nothing, one blank, or one line feed with an indentation
  none,
  any,  ///< up to 8 characters in each place
};

/// The form of a text. A value; compiled by a ConstraintCompiler.
struct OutputConstraint {
  enum class Kind : std::uint8_t {
    none,
    json_object,     ///< any JSON object
    json_schema,     ///< JSON by the schema in `text`
    regex,           ///< the regular expression in `text`
    choice,          ///< one of `choices`
    grammar,         ///< the grammar in `text`, in the notation of api/grammar/ebnf/ebnf_parser.hpp
    tool_calls,      ///< one or more calls of `tools` and nothing else
    free_tool_calls  ///< any text; calls of `tools` in it are well-formed
  };
  Kind kind = Kind::none;
  std::string text{};
  std::vector<std::string> choices{};
  JsonSpace json_space = JsonSpace::tidy;  ///< of JSON; calls of tools have none in their arguments
  /// Of tool calls: [{"type": "function", "function": {"name", "parameters": schema}}, …], those
  /// that may be called.
  Json tools = nullptr;
  bool parallel_tool_calls = true;  ///< more than one call may come
  bool or_tool_calls = false;       ///< calls of `tools` may come instead of the form
  ToolCallFormat tool_call_format = ToolCallFormat::hermes;
  /// The form begins after the end of a thought, "</think>" and white space; before it anything
  /// goes.
  bool after_reasoning = false;

  [[nodiscard]] friend bool operator==(const OutputConstraint&, const OutputConstraint&) = default;
};

/// Makes sources of constraints. Thread-safe; a call may take 0.2 s and more, so not on the
/// engine's thread.
class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;

  /// Null for Kind::none. Throws RequestError with a reason for what it cannot take.
  /// @param stop requested, by any thread, when the request has been cancelled: the call then ends
  ///             within milliseconds, by CompileCancelled if it was not ready.
  [[nodiscard]] virtual std::shared_ptr<const TokenMaskSource> compile(
      const OutputConstraint& constraint, std::stop_token stop = {}) = 0;

  /// Whether `compile` would return, or throw, at once, because it has done the work before.
  [[nodiscard]] virtual bool is_known(const OutputConstraint& constraint) const {
    return constraint.kind == OutputConstraint::Kind::none;
  }
};

}  // namespace nanovllm::serve
