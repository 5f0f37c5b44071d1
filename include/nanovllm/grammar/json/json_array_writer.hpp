#pragma once
/// Arrays of JSON Schemas as pieces of a grammar.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/grammar/json/json_grammar_rules.hpp"
#include "nanovllm/grammar/json/json_schema_merge.hpp"
#include "nanovllm/grammar/json/json_schema_reader.hpp"

namespace nanovllm::detail {

/// Writes arrays.
class ArrayWriter {
 public:
  /// Writes an item: an expression for a schema and its place.
  using Value = std::function<std::string(const Json& schema, const std::string& path)>;

  ArrayWriter(SchemaReader& reader, GrammarRules& rules, Value value)
      : reader_(reader), rules_(rules), inner_value_(std::move(value)) {}

  [[nodiscard]] std::string array(const Json& schema, const std::string& path) {
    const Json* items = schema.find("items");
    const Json* prefix = schema.find("prefixItems");
    if (items && items->is_array()) {  // as drafts before 2020-12 have it
      if (prefix)
        json_schema::refuse("'prefixItems' beside a list of 'items' is not supported", path);
      prefix = std::exchange(items, schema.find("additionalItems"));
    }
    if (!items) items = schema.find("unevaluatedItems");
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
    return rules_.rule(rules_.bracketed("[", content, min == 0, "]"));
  }

 private:
  using Texts = SchemaReader::Texts;

  SchemaReader& reader_;
  GrammarRules& rules_;
  Value inner_value_;
};

}  // namespace nanovllm::detail
