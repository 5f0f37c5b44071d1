#pragma once
/// Grammars as recursive transition networks: automata of which each stands for a rule, and which
/// call each other. What is regular in a rule is a terminal, read by an automaton over bytes.
/// Source: Woods, "Transition Network Grammars for Natural Language Analysis", 1970.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/grammar_terminal.hpp"

namespace nanovllm {

/// What a network may need at the most.
struct GrammarLimits {
  std::size_t max_nodes = 500'000;                         ///< of all rules
  std::size_t max_terminal_bytes = std::size_t{64} << 20;  ///< of all automata
  std::size_t max_wide_bytes = std::size_t{4} << 20;       ///< of those that are wide
  /// Steps that making all automata deterministic may take: about a quarter of a second.
  std::size_t max_terminal_steps = ByteDfa::kMaxSteps / 8;
  std::size_t max_rule_depth = 100;  ///< of rules within a terminal
};

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
  };

  struct Rule {
    NodeId start = -1;
    bool may_be_empty = false;  ///< whether it can read no byte
  };

  std::vector<Node> nodes;
  std::vector<Rule> rules;
  std::vector<GrammarTerminal> terminals;
  std::int32_t root = 0;

  [[nodiscard]] std::size_t size_bytes() const;
};

/// The network of a grammar in the notation of grammar/ebnf_parser.hpp. Throws RequestError where it
/// is not in that notation, beyond the limits, has no text, or has a rule that calls itself before it
/// reads anything.
/// @param depth bytes of the longest token.
[[nodiscard]] GrammarNetwork make_grammar_network(std::string_view ebnf, std::size_t depth,
                                                  const GrammarLimits& limits = {});

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/grammar_network.inc"
#endif
