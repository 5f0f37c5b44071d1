#pragma once
/// Grammars as recursive transition networks: automata of which each stands for a rule, and which
/// call each other. What is regular in a rule is a terminal, read by an automaton over bytes.
/// Source: Woods, "Transition Network Grammars for Natural Language Analysis", 1970.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/api/grammar/ebnf/ebnf_parser.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_terminal.hpp"
#include "nanovllm/api/grammar/ebnf/json_strings.hpp"
#include "nanovllm/api/grammar/ebnf/used_texts.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Every node that is `is_open` has a way to the end of its rule. Immutable.
struct GrammarNetwork {
  using NodeId = std::int32_t;

  struct Node {
    enum class Kind : std::uint8_t {
      end,       ///< of the rule
      split,     ///< to `next` and to `what`, by nothing
      terminal,  ///< to `next` by what the terminal `what` reads
      call,      ///< to `next` by what the rule `what` reads
    };
    Kind kind = Kind::end;
    bool is_open = true;
    std::int32_t what = -1;
    NodeId next = -1;
    std::optional<std::int32_t> unused{};  ///< of a terminal: index in GrammarNetwork::unused
  };

  struct Rule {
    NodeId start = -1;
    bool is_scope = false;      ///< whether its unused texts must differ since its begin
    bool may_be_empty = false;  ///< whether it can read no byte
  };

  std::vector<Node> nodes;
  std::vector<Rule> rules;
  std::vector<GrammarTerminal> terminals;
  std::vector<UnusedText> unused;
  std::int32_t root = 0;

  [[nodiscard]] std::size_t size_bytes() const {
    std::size_t size = nodes.size() * sizeof(Node) + rules.size() * sizeof(Rule);
    for (const GrammarTerminal& terminal : terminals) size += terminal.size_bytes();
    return size;
  }
};

namespace detail {

/// Builds rules from their ends, so that a node comes after those that it leads to, except in
/// loops.
class NetworkBuilder {
 public:
  NetworkBuilder(std::string_view ebnf, std::size_t depth, const GrammarLimits& limits,
                 CompileBudget budget)
      : depth_(depth), limits_(limits), budget_(std::move(budget)) {
    budget_.spend(kByteCost * ebnf.size());
    grammar_ = parse_ebnf(ebnf);
  }

  [[nodiscard]] GrammarNetwork build() {
    out_.root = grammar_.root;
    check<RequestError>(!grammar_.is_scope[index(grammar_.root)], "the rule 'root' has a $scope");
    for (std::size_t i = 0; i < grammar_.rules.size(); ++i)
      out_.rules.push_back(
          {build(grammar_.rules[i], add({.kind = Kind::end})), grammar_.is_scope[i]});
    close_dead_ends();
    check<RequestError>(out_.nodes[index(out_.rules[index(out_.root)].start)].is_open,
                        "the grammar has no text");
    find_empty();
    refuse_left_recursion();
    return std::move(out_);
  }

 private:
  using NodeId = GrammarNetwork::NodeId;
  using Node = GrammarNetwork::Node;
  using Kind = Node::Kind;

  static constexpr std::size_t kByteCost = 2, kNodeCost = 10;  // of the budget's steps

  [[nodiscard]] static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

  NodeId add(Node node) {
    check<RequestError>(out_.nodes.size() < limits_.max_nodes, "the grammar needs more than ",
                        limits_.max_nodes, " states");
    budget_.spend(kNodeCost);
    out_.nodes.push_back(node);
    return static_cast<NodeId>(out_.nodes.size() - 1);
  }

  /// The node that `node` begins with where `next` comes after it.
  NodeId build(const EbnfNode& node, NodeId next) {
    switch (node.kind) {
      case EbnfNode::Kind::sequence:
        for (std::size_t i = node.parts.size(); i-- > 0;) next = build(node.parts[i], next);
        return next;
      case EbnfNode::Kind::choice: {
        NodeId first = build(node.parts.back(), next);
        for (std::size_t i = node.parts.size() - 1; i-- > 0;) {
          const NodeId option = build(node.parts[i], next);
          first = add({.kind = Kind::split, .what = first, .next = option});
        }
        return first;
      }
      case EbnfNode::Kind::repeat: return repeat(node, next);
      case EbnfNode::Kind::reference: {
        const EbnfNode& rule = grammar_.rules[index(node.rule)];
        if (is_terminal(rule) && !grammar_.is_scope[index(node.rule)]) return build(rule, next);
        return add({.kind = Kind::call, .what = node.rule, .next = next});
      }
      case EbnfNode::Kind::unused: return unused(node, next);
      default:
        if (node.kind == EbnfNode::Kind::literal && node.text.empty()) return next;
        return add({.kind = Kind::terminal, .what = terminal(node), .next = next});
    }
  }

  NodeId unused(const EbnfNode& node, NodeId next) {
    const EbnfNode* part = &node.parts.front();
    for (std::size_t depth = 0; part->kind == EbnfNode::Kind::reference; ++depth) {
      check<RequestError>(depth < limits_.max_rule_depth, "a rule leads back to itself");
      part = &grammar_.rules[index(part->rule)];
    }
    check<RequestError>(is_terminal(*part) && part->kind != EbnfNode::Kind::string,
                        "what stands after $unused(…) is to be one automaton");
    const std::int32_t what = terminal(*part, false);
    const auto [found, is_new] =
        unused_.try_emplace(node.source, static_cast<std::int32_t>(out_.unused.size()));
    if (is_new) {
      std::vector<std::string> taken;
      for (std::size_t i = 1; i < node.parts.size(); ++i) taken.push_back(node.parts[i].text);
      out_.unused.push_back(make_unused(out_.terminals[index(what)].dfa(), std::move(taken)));
    }
    return add({.kind = Kind::terminal, .what = what, .next = next, .unused = found->second});
  }

  NodeId repeat(const EbnfNode& node, NodeId next) {
    const EbnfNode& part = node.parts.front();
    NodeId first = next;
    if (node.max == EbnfNode::kUnlimited) {
      first = add({.kind = Kind::split, .what = next, .next = next});
      const NodeId again = build(part, first);
      out_.nodes[index(first)].what = again;
    } else {
      for (int i = node.min; i < node.max; ++i)
        first = add({.kind = Kind::split, .what = build(part, first), .next = next});
    }
    for (int i = 0; i < node.min; ++i) {
      const NodeId again = build(part, first);
      if (again == first) break;  // the part is the empty text
      first = again;
    }
    return first;
  }

  [[nodiscard]] static bool is_terminal(const EbnfNode& node) {
    using enum EbnfNode::Kind;
    return node.kind == literal || node.kind == characters || node.kind == terminal ||
           node.kind == string || node.kind == until || node.kind == key || node.kind == multiple ||
           node.kind == pattern;
  }

  /// The number of the terminal; what is written alike is one. Without `may_count` lengths of
  /// strings are states of the automaton.
  std::int32_t terminal(const EbnfNode& node, bool may_count = true) {
    const bool counts = may_count && has_length(node);
    const auto [found, is_new] =
        (counts ? counting_ : terminals_)
            .try_emplace(node.source, static_cast<std::int32_t>(out_.terminals.size()));
    if (!is_new) return found->second;
    GrammarTerminal made = make(node, counts);
    num_bytes_ += made.size_bytes();
    check<RequestError>(num_bytes_ <= limits_.max_terminal_bytes,
                        "the automata of the grammar's strings and numbers need more than ",
                        limits_.max_terminal_bytes, " bytes");
    out_.terminals.push_back(std::move(made));
    return found->second;
  }

  [[nodiscard]] static bool has_length(const EbnfNode& node) {
    return node.kind == EbnfNode::Kind::terminal && node.parts.size() > 1 &&
           node.parts.back().kind == EbnfNode::Kind::string;
  }

  [[nodiscard]] GrammarTerminal make(const EbnfNode& node, bool counts) try {
    if (node.kind == EbnfNode::Kind::string)
      return GrammarTerminal::json_string(node.min, node.max);
    if (node.kind == EbnfNode::Kind::until) return GrammarTerminal::text_until(node.text);
    if (node.kind == EbnfNode::Kind::key) return GrammarTerminal::json_key();
    ByteDfa dfa = automaton(node, counts);
    if (GrammarTerminal::is_wide(dfa)) {
      num_wide_bytes_ += dfa.size_bytes();
      check<RequestError>(num_wide_bytes_ <= limits_.max_wide_bytes,
                          "with those before it, it needs more than the ", limits_.max_wide_bytes,
                          " bytes that automata of strings may have");
    }
    if (!counts) return {std::move(dfa), depth_, budget_};
    const EbnfNode& length = node.parts.back();
    return GrammarTerminal::json_string(std::move(dfa), length.min, length.max, depth_, budget_);
  } catch (const RequestError& error) {
    constexpr std::size_t kShown = 80;
    const bool has_name = node.kind == EbnfNode::Kind::terminal && !node.text.empty();
    if (has_name) throw RequestError(concat(node.text, ": ", error.what()));
    throw RequestError(concat("the part ", node.source.substr(0, kShown),
                              node.source.size() > kShown ? "…" : "",
                              " of the grammar: ", error.what()));
  }

  [[nodiscard]] ByteDfa regular(const EbnfNode& node) const {
    const RegexNode regex = regular_part(grammar_, node, limits_.max_rule_depth, budget_);
    return ByteDfa(make_nfa(regex, budget_), budget_);
  }

  /// What all parts of a terminal read; with `counts` but the last one, which is a length.
  [[nodiscard]] ByteDfa automaton(const EbnfNode& node, bool counts = false) {
    if (node.kind == EbnfNode::Kind::multiple) return multiples_of(node.min, budget_);
    if (node.kind == EbnfNode::Kind::pattern) return json_strings_of_pattern(node.text, budget_);
    if (node.kind != EbnfNode::Kind::terminal) return regular(node);
    const EbnfNode& first = node.parts.front();
    ByteDfa out = first.kind == EbnfNode::Kind::pattern ? automaton(first) : regular(first);
    for (std::size_t i = 1; i < node.parts.size() - (counts ? 1 : 0); ++i) {
      const EbnfNode& part = node.parts[i];
      out = part.kind == EbnfNode::Kind::string
                ? strings_of_length(out, part.min, part.max, budget_)
                : common_texts(out, automaton(part), budget_);
    }
    return out;
  }

  /// Whether each node can come to the end of its rule, by terminals or without reading anything.
  [[nodiscard]] std::vector<bool> can_end(bool by_terminals) const {
    std::vector<bool> can(out_.nodes.size(), false);
    for (bool changes = true; changes;) {
      changes = false;
      budget_.spend(can.size());
      for (std::size_t i = 0; i < can.size(); ++i) {
        if (can[i]) continue;
        const Node& node = out_.nodes[i];
        bool now = node.kind == Kind::end || can[index(node.next)];
        if (node.kind == Kind::split) now = now || can[index(node.what)];
        if (node.kind == Kind::call) now = now && can[index(out_.rules[index(node.what)].start)];
        if (node.kind == Kind::terminal && !by_terminals)
          now = now && out_.terminals[index(node.what)].accepts({});
        if (now) changes = can[i] = true;
      }
    }
    return can;
  }

  void close_dead_ends() {
    const std::vector<bool> can = can_end(true);
    for (std::size_t i = 0; i < can.size(); ++i) out_.nodes[i].is_open = can[i];
  }

  void find_empty() {
    const std::vector<bool> can = can_end(false);
    for (auto& rule : out_.rules) rule.may_be_empty = can[index(rule.start)];
  }

  /// The rules that a rule may call before it has read anything.
  [[nodiscard]] std::vector<std::int32_t> first_calls(const GrammarNetwork::Rule& rule) {
    std::vector<std::int32_t> calls;
    std::vector<NodeId> todo{rule.start};
    while (!todo.empty()) {
      const NodeId at = todo.back();
      todo.pop_back();
      if (is_seen_[index(at)]) continue;  // a node is of one rule
      is_seen_[index(at)] = true;
      const Node& node = out_.nodes[index(at)];
      if (node.kind == Kind::end) continue;
      bool goes_on = true;
      if (node.kind == Kind::split) todo.push_back(node.what);
      if (node.kind == Kind::terminal) goes_on = out_.terminals[index(node.what)].accepts({});
      if (node.kind == Kind::call) {
        calls.push_back(node.what);
        goes_on = out_.rules[index(node.what)].may_be_empty;
      }
      if (goes_on) todo.push_back(node.next);
    }
    return calls;
  }

  /// Frames of one place would have each other as callers. Rules are taken away that no other calls
  /// at its beginning, until none is left.
  void refuse_left_recursion() {
    is_seen_.assign(out_.nodes.size(), false);
    std::vector<std::vector<std::int32_t>> calls;
    std::vector<std::size_t> num_callers(out_.rules.size(), 0);
    for (const GrammarNetwork::Rule& rule : out_.rules) {
      calls.push_back(first_calls(rule));
      for (std::int32_t called : calls.back()) ++num_callers[index(called)];
    }
    std::vector<std::size_t> todo;
    for (std::size_t i = 0; i < calls.size(); ++i)
      if (num_callers[i] == 0) todo.push_back(i);
    std::size_t num_taken = 0;
    for (; !todo.empty(); ++num_taken) {
      const std::size_t rule = todo.back();
      todo.pop_back();
      for (std::int32_t called : calls[rule])
        if (--num_callers[index(called)] == 0) todo.push_back(index(called));
    }
    if (num_taken == calls.size()) return;
    // Each rule that is left has a caller that is left, so the way back leads into a circle.
    std::vector<std::size_t> callers(calls.size());
    std::size_t rule = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (num_callers[i] == 0) continue;
      rule = i;
      for (std::int32_t called : calls[i]) callers[index(called)] = i;
    }
    for (std::size_t i = 0; i < calls.size(); ++i) rule = callers[rule];
    throw RequestError(concat("the rule '", grammar_.names[rule],
                              "' calls itself before it reads anything, which is not supported"));
  }

  EbnfGrammar grammar_;
  std::size_t depth_;
  GrammarLimits limits_;
  CompileBudget budget_;
  GrammarNetwork out_;
  std::unordered_map<std::string_view, std::int32_t> terminals_, counting_,
      unused_;                 // by how they are written
  std::vector<bool> is_seen_;  // [node]
  std::size_t num_bytes_ = 0, num_wide_bytes_ = 0;
};

}  // namespace detail

/// The network of a grammar in the notation of api/grammar/ebnf/ebnf_parser.hpp. Throws
/// RequestError where it is not in that notation, beyond the limits or the budget, has no text, or
/// has a rule that calls itself before it reads anything.
/// @param depth bytes of the longest token.
[[nodiscard]] inline GrammarNetwork make_grammar_network(
    std::string_view ebnf, std::size_t depth, const GrammarLimits& limits = {},
    const CompileBudget& budget = CompileBudget()) {
  return detail::NetworkBuilder(ebnf, depth, limits, budget).build();
}

}  // namespace nanovllm
