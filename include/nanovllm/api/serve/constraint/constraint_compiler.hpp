#pragma once
/// The compiler of the constraints that requests state.
///
///     auto compiler = std::make_shared<nvllm::serve::CachedConstraintCompiler>(
///         std::make_shared<nvllm::serve::OutputConstraintCompiler>(vocabulary));

#include <cstddef>
#include <memory>
#include <stop_token>
#include <utility>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/source/cpu_budget_source.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm::serve {

/// Limits of a constraint. A larger one is refused before any work is done.
struct ConstraintLimits {
  std::size_t max_text_bytes = std::size_t{256}
                               << 10;  ///< of a schema, pattern, grammar, all tools
  std::size_t max_choices = 1024;
  std::size_t max_choice_bytes = std::size_t{64} << 10;  ///< of all choices together
  /// Whether grammars are taken (Kind::grammar). One with many readings of a text can hold up a
  /// step for as long as it takes to read a token, so those who write them must be trusted.
  bool allow_grammars = false;
  /// Work that one constraint may take, in CompileBudget's steps: about 0.2 s.
  std::size_t max_steps = CompileBudget::kMaxSteps;
  /// Memory for the masks of one regular expression.
  std::size_t max_mask_bytes = std::size_t{4} << 20;
};

/// A source and what it needs.
struct CompiledConstraint {
  std::shared_ptr<const TokenMaskSource> source;
  std::size_t size_bytes = 0;  ///< of memory, about, when all its masks were asked for
};

/// A compiler that says how large its sources are.
class SizedConstraintCompiler : public ConstraintCompiler {
 public:
  /// As compile(). Not for Kind::none.
  [[nodiscard]] virtual CompiledConstraint compile_sized(const OutputConstraint& constraint,
                                                         std::stop_token stop = {}) = 0;

  [[nodiscard]] std::shared_ptr<const TokenMaskSource> compile(const OutputConstraint& constraint,
                                                               std::stop_token stop = {}) override {
    if (constraint.kind == OutputConstraint::Kind::none) return nullptr;
    return compile_sized(constraint, std::move(stop)).source;
  }
};

/// Compiles every kind of constraint for one vocabulary. Thread-safe. Sources of JSON, grammars and
/// tool calls have a CpuBudget. What costs more than ConstraintLimits::max_steps is refused, the
/// same on every machine.
class OutputConstraintCompiler final : public SizedConstraintCompiler {
 public:
  /// Looks at all tokens once: some 10 ms for 150,000 of them.
  explicit OutputConstraintCompiler(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                    ConstraintLimits limits = {}, CpuBudget budget = {});

  /// Throws RequestError for what is beyond the limits or cannot be compiled, with the place.
  [[nodiscard]] CompiledConstraint compile_sized(const OutputConstraint& constraint,
                                                 std::stop_token stop = {}) override;

 private:
  [[nodiscard]] CompiledConstraint compile_form(const OutputConstraint& constraint,
                                                const CompileBudget& budget) const;
  [[nodiscard]] CompiledConstraint pattern(const std::string& regex,
                                           const CompileBudget& budget) const;
  [[nodiscard]] CompiledConstraint tool_calls(const OutputConstraint& constraint,
                                              const CompileBudget& budget) const;
  [[nodiscard]] CompiledConstraint within_budget(std::shared_ptr<const GrammarSource> source) const;

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  JsonSchemaCompiler json_;
  ConstraintLimits limits_;
  CpuBudget budget_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <string>
#include <string_view>

#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/api/grammar/source/either_source.hpp"
#include "nanovllm/api/grammar/source/marker_source.hpp"
#include "nanovllm/api/grammar/source/text_choices.hpp"
#include "nanovllm/api/serve/constraint/tool_call_grammar.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::serve {

namespace detail {

NANOVLLM_SERVE_INLINE std::string_view name_of(OutputConstraint::Kind kind) {
  using Kind = OutputConstraint::Kind;
  switch (kind) {
    case Kind::none: return "no constraint";
    case Kind::json_object: return "a JSON object";
    case Kind::json_schema: return "JSON by a schema";
    case Kind::regex: return "a regular expression";
    case Kind::choice: return "a choice";
    case Kind::grammar: return "a grammar";
    case Kind::tool_calls: return "calls of tools that must come";
    case Kind::free_tool_calls: return "strict calls of tools";
  }
  return "an unknown constraint";
}

NANOVLLM_SERVE_INLINE void check_limits(const OutputConstraint& constraint,
                                        const ConstraintLimits& limits) {
  const auto check_bytes = [](std::string_view what, std::size_t size, std::size_t max) {
    check<RequestError>(size <= max, what, " has ", size, " bytes, more than the ", max,
                        " that are taken");
  };
  check_bytes(name_of(constraint.kind), constraint.text.size(), limits.max_text_bytes);
  if (!constraint.tools.is_null())
    check_bytes("the list of tools", constraint.tools.dump().size(), limits.max_text_bytes);
  check<RequestError>(constraint.choices.size() <= limits.max_choices, "a choice has ",
                      constraint.choices.size(), " texts, more than the ", limits.max_choices,
                      " that are taken");
  std::size_t choice_bytes = 0;
  for (const std::string& choice : constraint.choices) choice_bytes += choice.size();
  check_bytes("a choice", choice_bytes, limits.max_choice_bytes);
}

}  // namespace detail

NANOVLLM_SERVE_INLINE OutputConstraintCompiler::OutputConstraintCompiler(
    std::shared_ptr<const GrammarVocabulary> vocabulary, ConstraintLimits limits, CpuBudget budget)
    : vocabulary_(std::move(vocabulary)), json_(vocabulary_), limits_(limits), budget_(budget) {}

NANOVLLM_SERVE_INLINE CompiledConstraint
OutputConstraintCompiler::compile_sized(const OutputConstraint& constraint, std::stop_token stop) {
  detail::check_limits(constraint, limits_);
  const CompileBudget budget(limits_.max_steps, std::move(stop));
  CompiledConstraint form = compile_form(constraint, budget);
  if (constraint.or_tool_calls) {
    const CompiledConstraint calls = tool_calls(constraint, budget);
    form = {std::make_shared<const EitherSource>(form.source, calls.source),
            form.size_bytes + calls.size_bytes};
  }
  if (!constraint.after_reasoning) return form;
  auto source = after_reasoning(vocabulary_, std::move(form.source));
  const std::size_t size = form.size_bytes + source->size_bytes();
  return {std::move(source), size};
}

/// The form without a thought before it.
NANOVLLM_SERVE_INLINE CompiledConstraint OutputConstraintCompiler::compile_form(
    const OutputConstraint& constraint, const CompileBudget& budget) const {
  using Kind = OutputConstraint::Kind;
  const JsonStyle style{.any_whitespace = constraint.json_space == JsonSpace::any,
                        .compact = constraint.json_space == JsonSpace::none};
  switch (constraint.kind) {
    case Kind::none: break;
    case Kind::json_object:
      return within_budget(json_.json_schema(R"({"type": "object"})", style, budget));
    case Kind::json_schema: return within_budget(json_.json_schema(constraint.text, style, budget));
    case Kind::regex: return pattern(constraint.text, budget);
    case Kind::choice: return pattern(text_choices_pattern(constraint.choices), budget);
    case Kind::grammar:
      check<RequestError>(limits_.allow_grammars,
                          "grammars are not taken here; a JSON Schema, a regular expression or a "
                          "choice is");
      return within_budget(json_.grammar(constraint.text, "the grammar is refused", budget));
    case Kind::tool_calls:
    case Kind::free_tool_calls: return tool_calls(constraint, budget);
  }
  throw RequestError("there is no constraint to compile");
}

NANOVLLM_SERVE_INLINE CompiledConstraint
OutputConstraintCompiler::pattern(const std::string& regex, const CompileBudget& budget) const {
  auto source =
      std::make_shared<const RegexSource>(vocabulary_, regex, limits_.max_mask_bytes, budget);
  const std::size_t size = source->max_size_bytes();
  return {std::move(source), size};
}

NANOVLLM_SERVE_INLINE CompiledConstraint
OutputConstraintCompiler::within_budget(std::shared_ptr<const GrammarSource> source) const {
  const std::size_t size = source->size_bytes();
  return {std::make_shared<const CpuBudgetSource>(std::move(source), budget_), size};
}

/// Calls between their markers, which are the same for both forms. Where `constraint.kind` is not
/// free_tool_calls there is nothing but calls.
NANOVLLM_SERVE_INLINE CompiledConstraint OutputConstraintCompiler::tool_calls(
    const OutputConstraint& constraint, const CompileBudget& budget) const {
  const CompiledConstraint call = within_budget(
      json_.grammar(tool_call_grammar(constraint.tools, constraint.tool_call_format, budget),
                    "the grammar is refused", budget));
  const bool is_free = constraint.kind == OutputConstraint::Kind::free_tool_calls;
  MarkerRules rules{.first = {.marker = "<tool_call>", .any_text = is_free},
                    .may_end_before = is_free};
  if (is_free) {
    rules.again = rules.first;
  } else if (constraint.parallel_tool_calls) {
    rules.again = MarkerLead{.marker = "\n<tool_call>", .any_text = false};
  }
  auto source = std::make_shared<const MarkerSource>(vocabulary_, std::move(rules), call.source);
  const std::size_t size = call.size_bytes + source->size_bytes();
  return {std::move(source), size};
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
