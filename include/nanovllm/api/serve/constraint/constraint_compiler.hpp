#pragma once
/// The compiler of the constraints that requests state.
///
///     auto compiler = std::make_shared<nvllm::serve::CachedConstraintCompiler>(
///         std::make_shared<nvllm::serve::OutputConstraintCompiler>(vocabulary));

#include <cstddef>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/source/cpu_budget_source.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm::serve {

/// The grammar of one call of one of `tools`, from after "<tool_call>" to "</tool_call>", in
/// the notation of api/grammar/ebnf/ebnf_parser.hpp.
///
/// In the hermes form the arguments are JSON by the tool's `parameters`. In the qwen3_coder form
/// each parameter is a part of its own, in the schema's order; one whose schema is of type string
/// and says no more is raw text up to "\n</parameter>", and every other is JSON. JSON has no white
/// space.
///
/// @param tools as in OutputConstraint::tools.
/// Throws RequestError if there is no tool, and for `parameters` that json_schema_grammar
/// refuses or that are no object; the message names the tool.
[[nodiscard]] std::string tool_call_grammar(const Json& tools, ToolCallFormat format,
                                            const CompileBudget& budget = CompileBudget());

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

#include <algorithm>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/json/json_schema_grammar.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/api/grammar/source/either_source.hpp"
#include "nanovllm/api/grammar/source/marker_source.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::serve {

namespace detail {

/// One value and the end of its parameter.
NANOVLLM_SERVE_INLINE std::string parameter_value(const Json& parameters, const Json& schema,
                                                  const std::string& path,
                                                  const std::string& prefix, const JsonStyle& style,
                                                  const CompileBudget& budget, std::string& rules) {
  const Json* type = schema.find("type");
  if (type && *type == Json("string")) {
    const Json values = json_schema::listed_values(schema, path);
    for (const auto& [key, keyword] : schema.items())
      if (!json_schema::is_annotation(key) && key != "type" && key != "enum" && key != "const")
        json_schema::refuse(concat("'", key,
                                   "' of a string is not supported in this form of tool "
                                   "calls, which writes strings as raw text,"),
                            path);
    if (values.is_null()) return concat("$until ", ebnf::literal("\n</parameter>"));
    std::vector<std::string> options;
    for (const Json& value : values)
      if (value.is_string()) options.push_back(ebnf::literal(value.string() + "\n</parameter>"));
    return ebnf::either(options);
  }
  JsonSchemaPart part = json_schema_part(parameters, schema, path, prefix, style, {}, budget);
  rules += part.rules;
  if (part.expression.empty()) return {};
  return ebnf::sequence({part.expression, ebnf::literal("\n</parameter>")});
}

/// The parameters of a call in the qwen3_coder form, and the end of the call.
NANOVLLM_SERVE_INLINE std::string coder_parameters(const Json& parameters,
                                                   const std::string& prefix,
                                                   const JsonStyle& style,
                                                   const CompileBudget& budget,
                                                   std::string& rules) {
  for (const auto& [key, keyword] : parameters.items())
    if (!json_schema::is_annotation(key) && key != "type" && key != "properties" &&
        key != "required" && key != "additionalProperties")
      json_schema::refuse(concat("'", key, "' is not supported in this form of tool calls"), "");
  static const Json kNone = Json::object(), kNoNames = Json::array();
  const Json* properties = parameters.find("properties");
  const Json* required = parameters.find("required");
  const Json& names = required ? *required : kNoNames;
  if (!names.is_array()) json_schema::refuse("'required' is to be an array", "");
  const Json& all = properties ? *properties : kNone;
  for (const Json& name : names)
    if (!name.is_string() || !all.contains(name.string()))
      json_schema::refuse(
          concat("'required' has ", name.dump(), ", which is not one of 'properties',"), "");
  std::string out;
  std::size_t i = 0;
  for (const auto& [name, schema] : all.items()) {
    const std::string path = "/properties/" + name;
    if (name.empty() || name.find_first_of("<>\n") != name.npos)
      json_schema::refuse(
          "a name with '<', '>' or a line feed, or none, is not supported in this "
          "form of tool calls",
          path);
    const std::string value = parameter_value(parameters, schema, path,
                                              concat(prefix, "p", i++, "_"), style, budget, rules);
    const bool is_required = std::find(names.begin(), names.end(), Json(name)) != names.end();
    if (value.empty()) {
      if (is_required) json_schema::refuse("a required parameter has no valid value", path);
      continue;
    }
    const std::string text =
        ebnf::sequence({ebnf::literal(concat("<parameter=", name, ">\n")), value, "\"\\n\""});
    out = ebnf::sequence({out, is_required ? text : ebnf::repeat(text, 0, 1)});
  }
  return ebnf::sequence({out, ebnf::literal("</function>\n</tool_call>")});
}

}  // namespace detail

NANOVLLM_SERVE_INLINE std::string tool_call_grammar(const Json& tools, ToolCallFormat format,
                                                    const CompileBudget& budget) {
  check<RequestError>(tools.is_array() && !tools.empty(),
                      "a call of tools needs at least one tool");
  check<RequestError>(tools.size() <= 1024, "there are ", tools.size(),
                      " tools, more than the 1024 that are taken");
  const JsonStyle style{.compact = true};
  std::string rules = json_basic_rules(style);
  std::vector<std::string> calls;
  for (const Json& tool : tools) {
    const Json* function = tool.find("function");
    const Json* name_of = function ? function->find("name") : nullptr;
    check<RequestError>(name_of && name_of->is_string(), "a tool has no function with a name");
    const std::string& name = name_of->string();
    try {
      Json parameters = Json::object();
      const Json* given = function->find("parameters");
      if (given && !given->is_null()) {
        check<RequestError>(given->is_object(), "its parameters are to be an object, not ",
                            given->type_name());
        parameters = json_schema::without_nulls(*given);
      } else {
        parameters["properties"] = Json::object();
      }
      const Json* type = parameters.find("type");
      check<RequestError>(!type || *type == Json("object"),
                          "its parameters are to be of type object, not ",
                          type ? type->dump() : "");
      parameters["type"] = "object";
      const std::string prefix = concat("tool", calls.size(), "_");
      std::string call;
      if (format == ToolCallFormat::hermes) {
        const JsonSchemaPart part =
            json_schema_part(parameters, parameters, "", prefix, style, {}, budget);
        check<RequestError>(!part.expression.empty(), "its parameters have no valid value");
        rules += part.rules;
        call = ebnf::sequence(
            {ebnf::literal(concat("\n{\"name\": ", name_of->dump(), ", \"arguments\": ")),
             part.expression, ebnf::literal("}\n</tool_call>")});
      } else {
        const std::string rest = detail::coder_parameters(parameters, prefix, style, budget, rules);
        call = ebnf::sequence({ebnf::literal(concat("\n<function=", name, ">\n")), rest});
      }
      calls.push_back(prefix + "call");
      rules += concat(calls.back(), " ::= ", call, "\n");
    } catch (const RequestError& error) {
      throw RequestError(concat("the tool '", name, "': ", error.what()));
    }
  }
  return concat("root ::= ", ebnf::either(calls), "\n", rules);
}

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
