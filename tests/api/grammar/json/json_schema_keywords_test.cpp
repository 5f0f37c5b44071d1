// Which texts the grammar of a JSON Schema takes, keyword by keyword, and which schemas are
// refused.

#include <string>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::schema_error;

namespace {

/// Whether JSON by the schema may be this text.
bool valid(const std::string& schema, const std::string& text) {
  static const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  return nanovllm_test::takes(*compiler.json_schema(schema), text);
}

}  // namespace

TEST_CASE("a schema's keywords are enforced") {
  struct Case {
    const char* schema;
    std::vector<const char*> yes, no;
  };
  const std::vector<Case> cases{
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("\n\"é")", R"("a\u0061")", R"("a\ud83d\uDE00b")", "\"😀é\""},
       {R"("a")", R"("abcd")", R"("\ud83d\uDE00")", R"("a\ud83d")", "\"a\nb\""}},
      {R"({"type": "string", "pattern": "^a[b\"]+$"})", {R"("ab\"")"}, {R"("a")", R"("ab"")"}},
      {R"({"type": "string", "pattern": "^x-"})", {R"("x-")", R"("x-é\\y")"}, {R"("y")"}},
      {R"({"type": "string", "pattern": "b$|^c"})", {R"("ab")", R"("cd")"}, {R"("bd")"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")"}, {R"("2023-02-29")"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})",
       {"-12", "-1", "0", "9", "99", "104"},
       {"-13", "105", "-0", "007", "1.0", "1000"}},
      {R"({"type": "integer", "exclusiveMinimum": 3.5})", {"4", "99999999"}, {"3", "-4"}},
      {R"({"type": "integer", "multipleOf": 7})", {"0", "-14", "700007"}, {"6", "13"}},
      {R"({"type": "number", "multipleOf": 3, "minimum": 1, "maximum": 10})",
       {"3", "9"},
       {"0", "4"}},
      {R"({"type": "number", "minimum": -1.25, "exclusiveMaximum": 0.5})",
       {"-1.25", "-1.2", "-1", "0", "0.49999", "0.0"},
       {"-1.26", "0.5", "0.50", "1", "-1.2500001"}},
      {R"({"type": "number", "minimum": 100})", {"100", "100.5", "12345"}, {"99.9", "-100", "1e3"}},
      {R"({"type": "object", "properties": {"a": true, "b": {"type": "null"}}, "required": ["b"]})",
       {R"({"a": 1, "b": null})", R"({"b":null})"},
       {R"({"a": 1})", R"({"b": null, "c": 1})", "{}"}},
      {R"({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {R"({"ab": 1, "c": 2})", R"({"a": null, "b": 1})", "{}"},
       {R"({"a": 1})", R"({"\u0061": 1})", R"({"b": null})"}},
      {R"({"type": "object", "required": ["x"]})", {R"({"x": 1, "y": 2})"}, {"{}", R"({"y": 1})"}},
      {R"({"properties": {"a": true, "b": true, "c": true}, "minProperties": 2, "maxProperties": 2})",
       {R"({"a": 1, "c": 2})"},
       {R"({"a": 1})", R"({"a": 1, "b": 1, "c": 1})", "{}"}},
      {R"({"type": "object", "additionalProperties": true, "maxProperties": 1})",
       {"{}", R"({"a": 1})"},
       {R"({"a": 1, "b": 1})"}},
      {R"({"patternProperties": {"^x-": {"type": "integer"}, "^y": {"type": "null"}}})",
       {R"({"x-a": 1, "y": null})"},
       {R"({"x-a": null})", R"({"z": 1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}})",
       {R"({"a": 1})"},
       {R"({"c": 1})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
       {"[1]", "[1, 2]"},
       {"[]", "[1,2,3]", "[null]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "string"}})",
       {"[]", "[1]", "[1,null]", R"([1, null, "a"])"},
       {"[null]", "[1,null,2]"}},
      {R"({"items": [{"type": "integer"}], "additionalItems": false})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"enum": [1, "1", null, {"a": [2]}], "type": ["string", "object"]})",
       {R"("1")", R"({"a": [2]})"},
       {"1", "null"}},
      {R"({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"})", {"2", "4"}, {"1", "5"}},
      {R"({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {"type": "null"}}}],
           "required": ["b"], "$defs": {"a": {"properties": {"a": {"type": "integer"}}}}})",
       {R"({"a": 1, "b": null})", R"({"b": null})"},
       {R"({"a": 1})", R"({"b": 1})"}},
      {R"({"properties": {"a": {"type": "integer"}}, "required": ["a"],
           "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]},
                     {"properties": {"a": {"minimum": 5}}}]})",
       {R"({"a": 1, "b": null})", R"({"a": 6})"},
       {R"({"a": 1})", R"({"b": null})"}},
      {R"({"oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
                      "required": ["kind"]},
                     {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}]})",
       {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"},
       {R"({"kind": "b", "x": 1})", "{}"}},
      {R"({"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}})",
       {R"({"next": {"next": {"v": 1}}})"},
       {R"({"next": 1})"}},
      {R"({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}})", {"null"}, {"1"}},
      {R"({"type": "object"})", {"{}", R"({"a": {"b": []}})"}, {"[]"}},
      {R"({"title": "t", "x-unknown": 1, "type": "boolean"})", {"true"}, {"1"}},
      // Integers of 64 bits and more; bounds of draft 4, and of two schemas.
      {R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 18446744073709551615})",
       {"-9223372036854775808", "18446744073709551615"},
       {"-9223372036854775809", "18446744073709551616"}},
      {R"({"type": "integer", "exclusiveMinimum": 123456789012345678901234})",
       {"123456789012345678901235"},
       {"123456789012345678901234", "5"}},
      {R"({"type": "number", "minimum": 0, "exclusiveMinimum": true, "exclusiveMaximum": false,
           "maximum": 2})",
       {"0.5", "2"},
       {"0", "0.0", "2.5"}},
      {R"({"allOf": [{"minimum": 9007199254740993}, {"minimum": 9007199254740992}],
           "type": "integer"})",
       {"9007199254740993"},
       {"9007199254740992"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 9223372036854775800})",
       {"9223372036854775807"},
       {"9223372036854775806"}},
      // Keywords that are null count as absent, but for const.
      {R"({"type": "object", "properties": {"a": {"const": null, "enum": null, "type": null}},
           "required": null, "$ref": null, "anyOf": null, "additionalProperties": null})",
       {R"({"a": null})", "{}"},
       {R"({"a": 1})", R"({"b": 1})"}},
      // Names that are listed are properties; any name is no restriction.
      {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "required": ["a"],
           "additionalProperties": {"type": "null"}})",
       {R"({"a": null})", R"({"a": null, "b": null})"},
       {"{}", R"({"a": 1})", R"({"a": null, "c": null})"}},
      {R"({"properties": {"a": {"type": "null"}, "c": {}}, "propertyNames": {"enum": ["a", "b"]},
           "additionalProperties": true})",
       {R"({"a": null, "b": 1})"},
       {R"({"a": 1})", R"({"c": 1})"}},
      {R"({"properties": {"a": {"type": "null"}}, "propertyNames": {"type": "string"},
           "required": ["a"]})",
       {R"({"a": null})"},
       {"{}"}},
      {R"({"$defs": {"n": {"const": "k"}}, "propertyNames": {"$ref": "#/$defs/n"},
           "required": ["k"], "type": "object"})",
       {R"({"k": [1]})"},
       {"{}", R"({"l": 1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["a", "B"], "pattern": "^[a-z]"}})",
       {R"({"a": 1})", "{}"},
       {R"({"B": 1})"}},
      // Several patterns.
      {R"({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 3}]})",
       {R"("abz")", R"("az")"},
       {R"("ab")", R"("abbz")", R"("bz")"}},
      // Branches that are unions themselves.
      {R"({"oneOf": [{"oneOf": [{"properties": {"k": {"const": 1}, "l": {"const": 1}},
                                 "required": ["k", "l"]},
                                {"properties": {"k": {"const": 1}, "l": {"const": 2}},
                                 "required": ["k", "l"]}]},
                     {"properties": {"k": {"const": 2}}, "required": ["k"]}]})",
       {R"({"k": 1, "l": 2})", R"({"k": 2})"},
       {R"({"k": 1})", R"({"k": 2, "l": 2})", R"({"k": 1, "l": 3})"}},
      {R"({"oneOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "integer"}]})",
       {"1", "null", R"("x")"},
       {"true"}},
      {R"({"enum": ["abc", "ab", "é", 5, 7.5, null], "maxLength": 2, "pattern": "^[a-zé]",
           "exclusiveMinimum": 5})",
       {R"("ab")", "\"é\"", "7.5", "null"},
       {R"("abc")", "5"}},
      {R"({"type": "string", "format": "uri-reference"})", {R"("/a/b?c")"}, {R"("a b")"}},
  };
  for (const Case& each : cases) {
    INFO(each.schema);
    for (const char* text : each.yes) {
      INFO(text);
      CHECK(valid(each.schema, text));
    }
    for (const char* text : each.no) {
      INFO(text);
      CHECK_FALSE(valid(each.schema, text));
    }
  }
}

TEST_CASE("what a schema's grammar cannot enforce is refused by name") {
  struct Case {
    const char *schema, *keyword, *place;
  };
  const std::vector<Case> cases{
      {R"({"properties": {"x": {"type": "array", "uniqueItems": true}}})", "'uniqueItems'",
       "/properties/x"},
      {R"({"items": {"type": "number"}, "uniqueItems": true})", "'uniqueItems'", "/items"},
      {R"({"not": {}})", "'not'", "root"},
      {R"({"if": {}, "then": {"minimum": 1}})", "'if'", "root"},
      {R"({"dependentRequired": {"a": ["b"]}})", "'dependentRequired'", "root"},
      {R"({"dependencies": {"a": ["b"]}})", "'dependencies'", "root"},
      {R"({"items": {"contains": {}}})", "'contains'", "/items"},
      {R"({"$dynamicRef": "#a"})", "'$dynamicRef'", "root"},
      {R"({"$ref": "http://example.com/a.json"})", "'http://example.com/a.json'", "root"},
      {R"({"$ref": "#/$defs/none"})", "leads nowhere", "root"},
      {R"({"$ref": "#"})", "back to itself", ""},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "back to itself", ""},
      {R"({"type": "number", "multipleOf": 0.1})", "'multipleOf'", "root"},
      {R"({"type": "string", "pattern": "(?<=a)b"})", "looks behind", "root"},
      {R"({"type": "string", "pattern": "a^b"})", "matches no text", "the pattern 'a^b'"},
      {R"({"type": "string", "format": "regex"})", "'regex'", "root"},
      {R"({"oneOf": [{"minimum": 1}, {"maximum": 3}]})", "'oneOf'", "root"},
      {R"({"enum": [["a"]], "maxItems": 3})", "'maxItems'", "root"},
      {R"({"propertyNames": {"enum": ["a", "B"], "maxLength": 1}, "required": ["a"]})",
       "the required property 'a'", "root"},
      {R"({"type": "strange"})", "strange", "root"},
      {R"({"type": "string", "minLength": -1})", "'minLength'", "root"},
      {R"({"patternProperties": {"a": true, "b": true}})", "two patterns", "/patternProperties/b"},
      {R"({"patternProperties": {"a": true}, "additionalProperties": {}})", "'patternProperties'",
       "root"},
      {R"({"anyOf": [{"unevaluatedProperties": false}], "type": "object"})",
       "'unevaluatedProperties'", "/anyOf/0"},
      {"false", "no value is valid", "root"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no value is valid", "root"},
      {R"({"enum": [1], "type": "string"})", "no value is valid", "root"},
      {"[]", "an object or a boolean", "root"},
      {"{", "not valid JSON", ""},
  };
  for (const Case& each : cases) {
    INFO(each.schema);
    const std::string message = schema_error(each.schema);
    using Catch::Matchers::Contains;
    CHECK_THAT(message, Contains("JSON Schema") && Contains(each.keyword) && Contains(each.place));
  }
}
