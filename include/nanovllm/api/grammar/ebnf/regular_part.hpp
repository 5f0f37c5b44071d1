#pragma once
/// Regular parts of grammars as regular expressions.

#include <cstddef>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/ebnf/ebnf_parser.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

/// A part of `grammar` with the rules that it names, at most `depth_left` within each other. Throws
/// RequestError for deeper ones, for parts that are not regular, and beyond the budget.
[[nodiscard]] RegexNode regular_part(const EbnfGrammar& grammar, const EbnfNode& node,
                                     std::size_t depth_left, const CompileBudget& budget);

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

namespace nanovllm {

NANOVLLM_GRAMMAR_INLINE RegexNode regular_part(const EbnfGrammar& grammar, const EbnfNode& node,
                                               std::size_t depth_left,
                                               const CompileBudget& budget) {
  using Regex = RegexNode::Kind;
  constexpr std::size_t kNodeCost = 10;  // of the budget's steps
  budget.spend(kNodeCost + node.text.size());
  RegexNode out;
  switch (node.kind) {
    case EbnfNode::Kind::literal:
      for (std::size_t i = 0; i < node.text.size();) {
        const utf8::Char c = utf8::decode(node.text, i);
        i += c.size;
        out.parts.push_back({.kind = Regex::characters, .characters = CodePointSet(c.code_point)});
      }
      return out;
    case EbnfNode::Kind::characters:
      return {.kind = Regex::characters, .characters = node.characters};
    case EbnfNode::Kind::reference:
      check<RequestError>(depth_left > 0, "a regular part of the grammar leads back to itself");
      return regular_part(grammar, grammar.rules[static_cast<std::size_t>(node.rule)],
                          depth_left - 1, budget);
    case EbnfNode::Kind::terminal:
      check<RequestError>(node.parts.size() == 1, "a part of an automaton is to have no '&'");
      return regular_part(grammar, node.parts.front(), depth_left, budget);
    case EbnfNode::Kind::string:
    case EbnfNode::Kind::until:
    case EbnfNode::Kind::key:
    case EbnfNode::Kind::multiple:
    case EbnfNode::Kind::pattern:
    case EbnfNode::Kind::unused:
      throw RequestError("a regular part of the grammar is to have no part such as $string");
    case EbnfNode::Kind::sequence: break;
    case EbnfNode::Kind::choice: out.kind = Regex::choice; break;
    case EbnfNode::Kind::repeat:
      out.kind = Regex::repeat;
      out.min = node.min;
      out.max = node.max;
      break;
  }
  for (const EbnfNode& part : node.parts)
    out.parts.push_back(regular_part(grammar, part, depth_left, budget));
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
