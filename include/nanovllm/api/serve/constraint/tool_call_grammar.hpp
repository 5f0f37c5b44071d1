#pragma once
/// Calls of tools as a grammar.

#include <string>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

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

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/json/json_schema_grammar.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
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

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
