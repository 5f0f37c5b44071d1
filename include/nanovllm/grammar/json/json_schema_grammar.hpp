#pragma once
/// JSON Schemas as context-free grammars: a text of the grammar is JSON that is valid by the schema.
///
/// Enforced are: type, enum, const; properties, required, additionalProperties, patternProperties,
/// propertyNames, minProperties, maxProperties; items, prefixItems, minItems, maxItems; minLength,
/// maxLength, pattern, format; minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf of
/// integers; anyOf, allOf, oneOf whose branches exclude each other; $ref within the schema,
/// recursive ones too. A keyword that is not enforced is refused by name, and so is a combination
/// that cannot be: docs/structured_output.md has the list. Nothing is passed over.
///
/// The grammar has fewer texts than the schema has values, where that is what one wants or can write
/// down: properties come in the schema's order, a schema whose keywords speak of one type has that
/// type, numbers have no needless digits.

#include <cstddef>
#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// What JSON may look like where its schema does not say.
struct JsonStyle {
  /// White space between tokens: by default nothing, one blank, or one line feed with an indentation
  /// of up to 64 blanks or 16 tabs. With `any_whitespace` up to 8 characters of any white space in
  /// each place, which small models spend many tokens on.
  bool any_whitespace = false;
  /// No white space at all. It takes precedence over `any_whitespace`.
  bool compact = false;
  /// Neither properties nor items that the schema does not name, unless it says they may be there.
  bool strict = true;
};

/// What a schema may become at the most. Its own nesting is bounded by kMaxJsonDepth.
struct JsonSchemaLimits {
  std::size_t max_rules = 20'000;
  std::size_t max_grammar_bytes = std::size_t{4} << 20;
  /// Properties of one object, and its optional ones. Each optional one may begin or follow wherever
  /// another does, so what they cost grows with their square.
  std::size_t max_properties = 2'000, max_optional_properties = 300;
  std::size_t max_listed_values = 1'000;  ///< of one `enum`
  std::size_t max_branches = 128;         ///< of one `anyOf` or `oneOf`
  std::size_t max_parts = 64;             ///< of one `allOf`
  std::size_t max_name_patterns = 32;     ///< of one `patternProperties`
  /// Values that are looked at in all, each time that one is: what schemas that are combined or
  /// referred to again and again come to.
  std::size_t max_work = 200'000;
};

/// The grammar in the notation of grammar/ebnf/ebnf_parser.hpp. Throws RequestError for what is not a
/// schema, not supported (with the keyword and its place), beyond the limits, or valid for no value.
/// Linear in the schema, but for `anyOf` beside other keywords, whose branches are written out.
[[nodiscard]] std::string json_schema_grammar(const Json& schema, const JsonStyle& style = {},
                                              const JsonSchemaLimits& limits = {});

/// Rules for a part of a larger grammar. They need those of json_basic_rules() beside them.
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
                                              const JsonSchemaLimits& limits = {});

/// Rules that all parts share.
[[nodiscard]] std::string json_basic_rules(const JsonStyle& style = {});

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/json/json_schema_grammar.inc"
#endif
