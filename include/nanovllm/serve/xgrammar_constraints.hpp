#pragma once
/// The compiler of all constraints that a request can state: grammars through XGrammar, JSON and tool
/// calls by JsonSchemaCompiler, the others as RegexConstraintCompiler does. Needs the CMake target nanovllm::xgrammar,
/// as grammar/xgrammar_source.hpp does, and so nanovllm.hpp does not include it.
///
///   auto compiler = std::make_shared<nv::serve::CachedConstraintCompiler>(
///       std::make_shared<nv::serve::XGrammarConstraintCompiler>(vocabulary));

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/grammar/source/cpu_budget_source.hpp"
#include "nanovllm/grammar/source/marker_source.hpp"
#include "nanovllm/grammar/xgrammar_source.hpp"
#include "nanovllm/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/serve/constraint/tool_call_grammar.hpp"

namespace nanovllm::serve {

/// Thread-safe. Every source of it has a CpuBudget.
class XGrammarConstraintCompiler final : public RegexConstraintCompiler {
 public:
  /// @param max_threads for one compilation.
  explicit XGrammarConstraintCompiler(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                      ConstraintLimits limits = {}, JsonStyle style = {},
                                      int max_threads = 2, CpuBudget budget = {})
      : RegexConstraintCompiler(std::move(vocabulary), limits),
        // What CachedConstraintCompiler remembers need not be remembered twice.
        compiler_(this->vocabulary(), max_threads, std::int64_t{64} << 20),
        json_(this->vocabulary()),
        style_(style),
        budget_(budget) {}

 protected:
  [[nodiscard]] CompiledConstraint compile_form(const OutputConstraint& constraint) override {
    using Kind = OutputConstraint::Kind;
    switch (constraint.kind) {
      case Kind::json_object: return sized(json_.json_schema(R"({"type": "object"})", style_));
      case Kind::json_schema: return sized(json_.json_schema(constraint.text, style_));
      case Kind::grammar:
        check<RequestError>(limits().allow_grammars,
                            "grammars are not taken here; a JSON Schema, a regular expression or a "
                            "choice is");
        return sized(compiler_.ebnf(constraint.text));
      case Kind::tool_calls:
      case Kind::free_tool_calls: return tool_calls(constraint);
      default: return RegexConstraintCompiler::compile_form(constraint);
    }
  }

 private:
  template <class Source>
  [[nodiscard]] CompiledConstraint sized(std::shared_ptr<const Source> source) const {
    const std::size_t size = source->size_bytes();
    return {std::make_shared<const CpuBudgetSource>(std::move(source), budget_), size};
  }

  /// Calls between their markers, which are the same for both forms.
  [[nodiscard]] CompiledConstraint tool_calls(const OutputConstraint& constraint) const {
    const CompiledConstraint call = sized(
        json_.grammar(tool_call_grammar(constraint.tools, constraint.tool_call_format, style_)));
    const bool is_free = constraint.kind == OutputConstraint::Kind::free_tool_calls;
    MarkerRules rules{.first = {.marker = "<tool_call>", .any_text = is_free},
                      .may_end_before = is_free};
    if (is_free) {
      rules.again = rules.first;
    } else if (constraint.parallel_tool_calls) {
      rules.again = MarkerLead{.marker = "\n<tool_call>", .any_text = false};
    }
    auto source = std::make_shared<const MarkerSource>(vocabulary(), std::move(rules), call.source);
    const std::size_t size = call.size_bytes + source->size_bytes();
    return {std::move(source), size};
  }

  XGrammarCompiler compiler_;
  JsonSchemaCompiler json_;
  JsonStyle style_;
  CpuBudget budget_;
};

}  // namespace nanovllm::serve
