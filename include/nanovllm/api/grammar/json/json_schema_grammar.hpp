#pragma once
/// JSON Schemas as context-free grammars: a text of the grammar is JSON that is valid by the
/// schema.
///
/// Enforced are: type, enum, const; properties, required, additionalProperties, patternProperties,
/// propertyNames, minProperties, maxProperties; items, prefixItems, minItems, maxItems, uniqueItems
/// of scalars; minLength, maxLength, pattern, format; minimum, maximum, exclusiveMinimum,
/// exclusiveMaximum, multipleOf of integers; anyOf, allOf, oneOf whose branches are told apart by
/// type, const, enum or required; $ref within the schema,
/// recursive ones too. A keyword that is not enforced is refused by name, and so is an
/// impossible combination: docs/structured_output.md has the list. No keyword is ignored.
///
/// The grammar has fewer texts than the schema has values, where that is useful or necessary:
/// properties come in the schema's order, a schema whose keywords belong to one type has that type,
/// numbers have no needless digits.

#include <string>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/json/json_schema_options.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// The grammar in the notation of api/grammar/ebnf/ebnf_parser.hpp. Throws RequestError for what is
/// not a schema, not supported (with the keyword and its place), beyond the limits or the budget,
/// or valid for no value. Linear in the schema, except for `anyOf` together with other keywords,
/// whose branches are written out.
[[nodiscard]] std::string json_schema_grammar(const Json& schema, const JsonStyle& style = {},
                                              const JsonSchemaLimits& limits = {},
                                              const CompileBudget& budget = CompileBudget());

/// Rules for a part of a larger grammar. They also need those of json_basic_rules().
struct JsonSchemaPart {
  std::string expression;  ///< stands for the value, anywhere in a rule; empty where none is valid
  std::string rules;
};

/// The same for one part of a schema, whose `$ref`s are of the whole schema.
/// @param path    of the part, for messages.
/// @param prefix  what the names of the rules begin with: letters, digits, '_'.
[[nodiscard]] JsonSchemaPart json_schema_part(const Json& root, const Json& part,
                                              const std::string& path, const std::string& prefix,
                                              const JsonStyle& style = {},
                                              const JsonSchemaLimits& limits = {},
                                              const CompileBudget& budget = CompileBudget());

/// Rules that all parts share.
[[nodiscard]] std::string json_basic_rules(const JsonStyle& style = {});

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <utility>

#include "nanovllm/api/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_writer.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_GRAMMAR_INLINE std::string json_schema_grammar(const Json& schema, const JsonStyle& style,
                                                        const JsonSchemaLimits& limits,
                                                        const CompileBudget& budget) {
  const Json tidy = json_schema::without_nulls(schema);
  const JsonSchemaPart part = json_schema_part(tidy, tidy, "", "", style, limits, budget);
  if (part.expression.empty()) json_schema::refuse("no value is valid by it,", "");
  return concat("root ::= ", part.expression, "\n", json_basic_rules(style), part.rules);
}

NANOVLLM_GRAMMAR_INLINE JsonSchemaPart json_schema_part(
    const Json& root, const Json& part, const std::string& path, const std::string& prefix,
    const JsonStyle& style, const JsonSchemaLimits& limits, const CompileBudget& budget) {
  detail::JsonSchemaWriter writer(root, style, limits, budget, prefix);
  std::string expression = writer.write(part, path);
  return {std::move(expression), writer.take_rules()};
}

NANOVLLM_GRAMMAR_INLINE std::string json_basic_rules(const JsonStyle& style) {
  return detail::GrammarRules(style, {}, CompileBudget(), "").basic_rules();
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
