#pragma once
/// The rules of a grammar for JSON.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/api/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_network.hpp"
#include "nanovllm/api/grammar/json/json_schema_merge.hpp"
#include "nanovllm/api/grammar/json/json_schema_options.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// Collects the rules of one grammar. An expression is an empty string where no text is possible,
/// and "\"\"" for the empty text.
class GrammarRules {
 public:
  /// @param prefix what the names of the rules begin with.
  GrammarRules(const JsonStyle& style, const JsonSchemaLimits& limits, CompileBudget budget,
               std::string prefix)
      : style_(style), limits_(limits), budget_(std::move(budget)), prefix_(std::move(prefix)) {}

  [[nodiscard]] const std::string& prefix() const { return prefix_; }

  /// All rules so far, which are gone then.
  [[nodiscard]] std::string take() { return std::move(rules_); }

  [[nodiscard]] std::string basic_rules() {
    if (!style_.compact) {
      add_rule("ws", style_.any_whitespace ? "<[ \\n\\r\\t]{0,8}>"
                                           : "<(\" \" | \"\\n\" (\" \"{0,64} | \"\\t\"{1,16}))?>");
    }
    add_rule("string", "$string");
    add_rule("integer", "<\"0\" | \"-\"? [1-9] [0-9]*>");
    add_rule("number", "<\"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [+\\-]? [0-9]+)?>");
    add_rule("boolean", "<\"true\" | \"false\">");
    add_rule("any", "string | number | boolean | \"null\" | array | object");
    const std::string any_member = member(unused({}, "$key"), "any");
    add_rule("array", bracketed("[", "any " + ebnf::repeat(comma() + " any", 0, -1), true, "]"));
    add_rule("object",
             "$scope " +
                 bracketed("{", any_member + " " + ebnf::repeat(comma() + " " + any_member, 0, -1),
                           true, "}"));
    return std::move(rules_);
  }

  void add_rule(const std::string& name, const std::string& body) {
    budget_.spend(body.size());
    rules_ += concat(name, " ::= ", body, "\n");
    if (++num_rules_ > limits_.max_rules || rules_.size() > limits_.max_grammar_bytes)
      json_schema::refuse(concat("its grammar is larger than ", limits_.max_rules, " rules or ",
                                 limits_.max_grammar_bytes, " bytes,"),
                          "");
  }

  /// The name of a rule with this body. A short body is returned as it is.
  [[nodiscard]] std::string rule(const std::string& body) {
    if (body.size() < 16) return body;
    const auto [found, is_new] = names_.try_emplace(body, concat(prefix_, "r", names_.size()));
    if (is_new) add_rule(found->second, body);
    return found->second;
  }

  /// The expression as one automaton, unless it is empty.
  [[nodiscard]] static std::string terminal(const std::string& expression) {
    return expression.empty() ? "" : "<" + expression + ">";
  }

  [[nodiscard]] std::string comma() const {
    return terminal(ebnf::sequence({space(), "\",\"", space()}));
  }

  /// A text of `terminal` that is not the JSON of one of `values` and that its scope has not had.
  [[nodiscard]] static std::string unused(const std::vector<std::string>& values,
                                          const std::string& terminal) {
    std::string out = "$unused(";
    for (const std::string& value : values) out += ebnf::literal(Json(value).dump()) + " ";
    return out + ") " + terminal;
  }

  /// The number of texts that a terminal reads; unset above 100,000.
  [[nodiscard]] std::optional<std::size_t> num_texts(const std::string& terminal) {
    if (terminal == "$key") return std::nullopt;
    const GrammarNetwork network =
        make_grammar_network("root ::= " + unused({}, terminal), 1, {}, budget_);
    const ByteDfa& dfa = network.terminals.front().dfa();
    budget_.spend(4 * dfa.num_states() * dfa.num_kinds());
    const std::uint32_t count = completions(dfa).num_texts.front();
    constexpr std::uint32_t kMany = 100'000;  // more keys than a context has room for
    if (count > kMany) return std::nullopt;
    return count;
  }

  /// `content` between brackets, or an empty pair where `may_be_empty`.
  [[nodiscard]] std::string bracketed(std::string_view open, const std::string& content,
                                      bool may_be_empty, std::string_view close) {
    const std::string begin = terminal(ebnf::sequence({ebnf::literal(open), space()}));
    const std::string end = terminal(ebnf::sequence({space(), ebnf::literal(close)}));
    if (content.empty())
      return may_be_empty ? ebnf::sequence({begin, ebnf::literal(close)}) : std::string();
    if (!may_be_empty) return ebnf::sequence({begin, content, end});
    return ebnf::sequence(
        {begin, ebnf::either({ebnf::sequence({content, end}), ebnf::literal(close)})});
  }

  [[nodiscard]] std::string member(const std::string& key, const std::string& value) {
    return ebnf::sequence({key, terminal(ebnf::sequence({space(), "\":\"", space()})), value});
  }

 private:
  [[nodiscard]] std::string space() const { return style_.compact ? "" : "ws"; }

  JsonStyle style_;
  JsonSchemaLimits limits_;
  CompileBudget budget_;
  std::string prefix_;
  std::string rules_;
  std::unordered_map<std::string, std::string> names_;  // by body
  std::size_t num_rules_ = 0;
};

}  // namespace nanovllm::detail
