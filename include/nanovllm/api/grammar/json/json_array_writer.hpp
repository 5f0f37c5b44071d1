#pragma once
/// Arrays of JSON Schemas as pieces of a grammar.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/api/grammar/json/json_scalar_writer.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_reader.hpp"

namespace nanovllm::detail {

/// Writes arrays.
class ArrayWriter {
 public:
  /// Writes an item: an expression for a schema and its place.
  using Value = std::function<std::string(const Json& schema, const std::string& path)>;

  ArrayWriter(SchemaReader& reader, GrammarRules& rules, ScalarWriter& scalars, Value value)
      : reader_(reader), rules_(rules), scalars_(scalars), inner_value_(std::move(value)) {}

  [[nodiscard]] std::string array(const Json& schema, const std::string& path) {
    const Json* items = schema.find("items");
    const Json* prefix = schema.find("prefixItems");
    if (items && items->is_array()) {  // the form of drafts before 2020-12
      if (prefix)
        json_schema::refuse("'prefixItems' beside a list of 'items' is not supported", path);
      prefix = std::exchange(items, schema.find("additionalItems"));
    }
    if (!items) items = schema.find("unevaluatedItems");
    if (const Json* unique = schema.find("uniqueItems"); unique && !unique->is_boolean())
      json_schema::refuse(concat("'uniqueItems' is to be true or false, not ", unique->dump()),
                          path);
    const std::size_t min = small_count_of(schema, "minItems", path).value_or(0);
    std::optional<std::size_t> max = small_count_of(schema, "maxItems", path);

    Texts first;
    bool is_open = true;
    for (std::size_t i = 0; prefix && i < prefix->size() && (!max || i < *max); ++i) {
      std::string text = inner_value_((*prefix)[i], concat(path, "/prefixItems/", i));
      if (!(is_open = !text.empty())) break;  // the array ends before it
      first.push_back(std::move(text));
    }
    const std::size_t n = first.size();
    std::string item;
    if (is_open && (!max || *max > n) && (items || !prefix || !reader_.style().strict))
      item = items ? inner_value_(*items, path + "/items") : "any";
    const bool is_unique = schema.find("uniqueItems") && schema["uniqueItems"].boolean() &&
                           max.value_or(2) > 1 && n + (item.empty() ? 0 : 2) > 1;
    if (is_unique) {
      if (n > 0) json_schema::refuse("'uniqueItems' beside 'prefixItems' is not supported", path);
      item = unique_item(items ? *items : Json(true), path + "/items", max);
    }
    if (item.empty()) max = std::min(max.value_or(n), n);
    if (max && *max < min) return {};

    const auto repeated = [&](std::size_t written) -> std::string {
      const auto least = static_cast<long long>(min > written ? min - written : 0);
      if (item.empty()) return least > 0 ? "" : "\"\"";
      const long long most = max ? static_cast<long long>(*max - written) : -1;
      return ebnf::repeat(rules_.rule(ebnf::sequence({rules_.comma(), item})), least, most);
    };
    std::string content;
    if (n == 0) {
      if (!item.empty()) content = ebnf::sequence({item, repeated(1)});
    } else {
      std::string follows = repeated(n);
      for (std::size_t i = n; i-- > 1;) {
        Texts options;
        if (!follows.empty())
          options.push_back(ebnf::sequence({rules_.comma(), first[i], follows}));
        if (min <= i) options.emplace_back("\"\"");
        follows = rules_.rule(ebnf::either(options));
      }
      content = follows.empty() ? "" : ebnf::sequence({first[0], follows});
    }
    const std::string all = rules_.bracketed("[", content, min == 0, "]");
    return all.empty() || !is_unique ? rules_.rule(all) : rules_.rule("$scope " + all);
  }

 private:
  using Texts = SchemaReader::Texts;

  /// An item that the scope has not had. There are at most as many items as texts: `max` says so.
  [[nodiscard]] std::string unique_item(const Json& items, const std::string& path,
                                        std::optional<std::size_t>& max) {
    Texts options;
    std::optional<std::size_t> most = 0;
    for (const std::string& text : unique_items(items, path)) {
      const std::optional<std::size_t> count = rules_.num_texts(text);
      most = most && count ? std::optional(*most + *count) : std::nullopt;
      options.push_back(GrammarRules::unused({}, text));
    }
    if (most) max = std::min(max.value_or(*most), *most);
    return ebnf::either(options);
  }

  /// Terminals for the items, which have no text in common and one text for each value. Items then
  /// differ if and only if their texts differ.
  [[nodiscard]] Texts unique_items(const Json& schema, const std::string& path) {
    const auto refuse = [&] {
      json_schema::refuse(
          "'uniqueItems' is supported for items that are strings, integers or listed values,",
          path);
    };
    Texts out;
    const auto add = [&](std::string text) {
      if (text == "integer") text = "$multiple{1}";
      if (!text.empty()) out.push_back(std::move(text));
    };
    const Json all = reader_.conjunction(schema, path);
    if (all == Json(false)) return out;
    if (all.is_boolean() || all.contains("anyOf") || all.contains("oneOf")) refuse();
    if (const Json values = json_schema::listed_values(all, path); !values.is_null()) {
      add(scalars_.listed(all, distinct(values), path));
      return out;
    }
    const Texts types = reader_.types(all, path);
    for (const std::string& type : types) {
      if (type == "integer" && contains(types, "number")) continue;
      if (type == "array" || type == "object" || (type == "number" && !all.contains("multipleOf")))
        refuse();
      if (type == "null") add("<\"null\">");
      if (type == "boolean") add("<\"true\" | \"false\">");
      if (type == "string") add(scalars_.string(all, path, true));
      if (type == "integer" || type == "number") add(scalars_.number(all, true, path));
    }
    return out;
  }

  /// The values without repetitions; 1.0 repeats 1.
  [[nodiscard]] static Json distinct(const Json& values) {
    Json out = Json::array();
    for (const Json& value : values)
      if (std::none_of(out.begin(), out.end(),
                       [&](const Json& other) { return is_same_value(value, other); }))
        out.push_back(value);
    return out;
  }

  [[nodiscard]] static bool is_same_value(const Json& a, const Json& b) {
    if (a.type_name() != b.type_name()) return false;
    if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same_value);
    if (!a.is_object()) return a == b;
    return a.size() == b.size() &&
           std::all_of(a.items().begin(), a.items().end(), [&](const Json::Member& member) {
             const Json* other = b.find(member.key);
             return other && is_same_value(member.value, *other);
           });
  }

  SchemaReader& reader_;
  GrammarRules& rules_;
  ScalarWriter& scalars_;
  Value inner_value_;
};

}  // namespace nanovllm::detail
