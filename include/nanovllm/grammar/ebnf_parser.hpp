#pragma once
/// Reads the notation that grammars of our own are written in (grammar/ebnf_text.hpp).
///
///   rule       a line: name ::= expression; `root` is what a text is
///   text       "…" with \n, \r, \t, \uHHHH, \UHHHHHHHH and \ before punctuation
///   class      […] and [^…], with ranges and the same escapes
///   structure  sequences, |, (…), and * + ? {m} {m,} {m,n} behind a part
///   <…>        the same as (…), to be read by one deterministic automaton; it may name only rules
///              that do not come back to themselves; <@"…" …> is named so in messages
///   $string    a JSON string, $string{m,n} one of m to n characters, $string{m,} of m at the least
///   $until "…" text up to where this one first occurs, and that

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/code_point_set.hpp"

namespace nanovllm {

/// One part of a rule, with its parts.
struct EbnfNode {
  enum class Kind : std::uint8_t {
    literal,     ///< `text`
    characters,  ///< one character out of `characters`
    sequence,    ///< all parts, one after the other
    choice,      ///< one of the parts
    repeat,      ///< the only part, min to max times
    reference,   ///< the rule of the number `rule`
    terminal,    ///< the only part, as one automaton, which has the name `text`
    string,      ///< a JSON string of min to max characters
    until,       ///< what comes before `text`, and that
  };
  static constexpr int kUnlimited = -1;

  Kind kind = Kind::sequence;
  std::string text{};
  CodePointSet characters{};
  std::vector<EbnfNode> parts{};
  int rule = -1;
  int min = 0, max = kUnlimited;
  std::string_view source{};  ///< how it is written, within what was parsed
};

struct EbnfGrammar {
  std::vector<EbnfNode> rules;
  int root = 0;
};

/// The rules of `text`, which must outlive them. Throws RequestError, which names the byte, for what
/// is not in the notation, a rule that is missing or there twice, and counts above 2^30.
[[nodiscard]] EbnfGrammar parse_ebnf(std::string_view text);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/ebnf_parser.inc"
#endif
