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

#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/json/json_array_writer.hpp"
#include "nanovllm/api/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/api/grammar/json/json_object_writer.hpp"
#include "nanovllm/api/grammar/json/json_scalar_writer.hpp"
#include "nanovllm/api/grammar/json/json_schema_exclusion.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_reader.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::detail {

/// Writes the grammar of one schema. An expression is empty where no value is valid.
class JsonSchemaWriter {
 public:
  JsonSchemaWriter(const Json& root, const JsonStyle& style, const JsonSchemaLimits& limits,
                   const CompileBudget& budget, std::string prefix)
      : reader_(root, style, limits, budget), rules_(style, limits, budget, std::move(prefix)) {}

  /// An expression for the values of a schema, by the rules that take_rules() gives.
  [[nodiscard]] std::string write(const Json& schema, const std::string& path) {
    return value(schema, path);
  }
  [[nodiscard]] std::string take_rules() { return rules_.take(); }

 private:
  using Texts = SchemaReader::Texts;

  /// The value of a member or an item. Inside brackets a schema may refer back to itself.
  [[nodiscard]] std::string inner_value(const Json& schema, const std::string& path) {
    std::set<std::string> outside;
    outside.swap(unguarded_);
    std::string out = value(schema, path);
    unguarded_.swap(outside);
    return rules_.rule(out);
  }

  [[nodiscard]] std::string value(const Json& schema, const std::string& path) {
    if (schema.is_boolean()) return schema.boolean() ? "any" : "";
    reader_.check_keywords(schema, path);
    reader_.check_sizes(schema, path);
    reader_.work(1, path);
    if (depth_ > 3 * kMaxJsonDepth) json_schema::refuse("it is nested too deeply", path);
    struct Level {
      int& depth;
      explicit Level(int& d) : depth(++d) {}
      ~Level() { --depth; }
    } level(depth_);
    if (schema.contains("$ref")) {
      const Json rest = without(schema, "$ref");
      if (has_assertions(rest)) return value(reader_.without_ref(schema, path), path);
      return reference(schema["$ref"].string(), path);
    }
    if (const Json* parts = schema.find("allOf")) {
      const Json rest = without(schema, "allOf");
      if (parts->size() == 1 && !has_assertions(rest)) return value((*parts)[0], path + "/allOf/0");
      Json all = rest;
      for (const Json& part : *parts)
        all = reader_.merged(all, reader_.without_ref(part, path), path);
      return value(all, path);
    }
    for (const char* key : {"anyOf", "oneOf"})
      if (schema.contains(key)) return branches(schema, key, path);
    if (const Json values = json_schema::listed_values(schema, path); !values.is_null())
      return scalars_.listed(schema, values, path);
    Texts options;
    const Texts all = reader_.types(schema, path);
    for (const std::string& type : all) {
      if (type == "integer" && contains(all, "number")) continue;
      if (std::string option = typed(schema, type, path); !option.empty())
        options.push_back(std::move(option));
    }
    return ebnf::either(options);
  }

  /// `anyOf` or `oneOf`, merged with the other keywords of the schema.
  [[nodiscard]] std::string branches(const Json& schema, const std::string& key,
                                     const std::string& path) {
    const Json& parts = schema[key];
    const Json rest = without(schema, key);
    const bool is_plain = !has_assertions(rest);
    const auto place = [&](std::size_t i) { return concat(path, "/", key, "/", i); };
    std::vector<Json> whole;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!is_plain || key == "oneOf")
        whole.push_back(reader_.merged(rest, reader_.without_ref(parts[i], place(i)), place(i)));
    }
    Texts options;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::vector<Json> alone =
          key == "oneOf" ? only_of(whole, i, path) : std::vector<Json>{};
      const bool is_as_it_is = key == "anyOf" || (alone.size() == 1 && alone.front() == whole[i]);
      const auto add = [&](const Json& part) {
        std::string option = value(part, place(i));
        if (!option.empty()) options.push_back(rules_.rule(option));
      };
      if (is_as_it_is) {
        add(is_plain ? parts[i] : whole[i]);
      } else {
        for (const Json& part : alone) add(part);
      }
    }
    return ebnf::either(options);
  }

  /// Schemas for the values of one branch of a `oneOf` that no other branch has.
  [[nodiscard]] std::vector<Json> only_of(const std::vector<Json>& branches, std::size_t number,
                                          const std::string& path) {
    constexpr std::size_t kMaxParts = 32;
    SchemaExclusion exclusion(reader_);
    std::vector<Json> parts{branches[number]};
    for (std::size_t other = 0; other < branches.size(); ++other) {
      if (other == number) continue;
      std::vector<Json> next;
      for (const Json& part : parts) {
        if (exclusion.excludes(part, branches[other], path, 0)) {
          next.push_back(part);
        } else {
          for (Json& each : exclusion.apart(part, branches[other], path))
            next.push_back(std::move(each));
        }
      }
      if (next.empty() || next.size() > kMaxParts)
        json_schema::refuse(
            concat("'oneOf' is supported where a 'const', an 'enum' or 'required' tells its "
                   "branches apart, and ",
                   number, " and ", other, " may share a value (use 'anyOf'),"),
            path);
      parts = std::move(next);
    }
    return parts;
  }

  [[nodiscard]] std::string typed(const Json& schema, std::string_view type,
                                  const std::string& path) {
    if (type == "null") return "\"null\"";
    if (type == "boolean") return "boolean";
    if (type == "string") return scalars_.string(schema, path);
    if (type == "array") return arrays_.array(schema, path);
    if (type == "object") return objects_.object(schema, path);
    return scalars_.number(schema, type == "integer", path);
  }

  [[nodiscard]] std::string reference(const std::string& pointer, const std::string& path) {
    const auto fail = [&] {
      json_schema::refuse(concat("'$ref' to '", pointer, "' leads back to itself"), path);
    };
    if (unguarded_.contains(pointer)) fail();
    const auto [found, is_new] =
        references_.try_emplace(pointer, concat(rules_.prefix(), "ref", references_.size()));
    if (!is_new) {
      if (open_.contains(pointer)) used_while_open_.insert(pointer);
      return found->second;
    }
    const std::string name = found->second;
    Json schema = Json::object();
    schema["$ref"] = pointer;
    open_.insert(pointer);
    unguarded_.insert(pointer);
    const std::string body = value(reader_.target(schema, path), pointer.substr(1));
    unguarded_.erase(pointer);
    open_.erase(pointer);
    if (body.empty()) {
      if (used_while_open_.contains(pointer)) fail();
      return references_[pointer] = "";
    }
    rules_.add_rule(name, body);
    return name;
  }

  SchemaReader reader_;
  GrammarRules rules_;
  ScalarWriter scalars_{reader_};
  ObjectWriter objects_{
      reader_, rules_, scalars_,
      [this](const Json& schema, const std::string& path) { return inner_value(schema, path); }};
  ArrayWriter arrays_{
      reader_, rules_, scalars_,
      [this](const Json& schema, const std::string& path) { return inner_value(schema, path); }};
  std::map<std::string, std::string> references_;  // by pointer: the rule, empty for none
  std::set<std::string> unguarded_;  // pointers that are being written, with no bracket in between
  std::set<std::string> open_;       // all that are being written
  std::set<std::string> used_while_open_;
  int depth_ = 0;
};

}  // namespace nanovllm::detail

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
