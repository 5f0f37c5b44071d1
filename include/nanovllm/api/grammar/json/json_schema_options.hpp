#pragma once
/// Options of the grammar of a JSON Schema: the form of its texts, and limits of its size.

#include <cstddef>

namespace nanovllm {

/// The form of JSON where the schema leaves it open.
struct JsonStyle {
  /// White space between tokens: by default nothing, one blank, or one line feed with an
  /// indentation of up to 64 blanks or 16 tabs. With `any_whitespace` up to 8 characters of any
  /// white space in each place, which small models spend many tokens on.
  bool any_whitespace = false;
  /// No white space at all. It takes precedence over `any_whitespace`.
  bool compact = false;
  /// Neither properties nor items that the schema does not name, unless it says they may be there.
  bool strict = true;
};

/// Limits of a schema and its grammar. The nesting of the schema is bounded by kMaxJsonDepth.
struct JsonSchemaLimits {
  std::size_t max_rules = 20'000;
  std::size_t max_grammar_bytes = std::size_t{4} << 20;
  /// Properties of one object, and its optional ones. Each optional one may begin or follow
  /// wherever another does, so what they cost grows with their square.
  std::size_t max_properties = 2'000, max_optional_properties = 300;
  std::size_t max_listed_values = 1'000;  ///< of one `enum`
  std::size_t max_branches = 128;         ///< of one `anyOf` or `oneOf`
  std::size_t max_parts = 64;             ///< of one `allOf`
  std::size_t max_name_patterns = 32;     ///< of one `patternProperties`
  /// Values that are looked at in all, each time that one is: what schemas that are combined or
  /// referred to again and again come to.
  std::size_t max_work = 200'000;
};

}  // namespace nanovllm
