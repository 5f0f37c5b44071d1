#pragma once
/// Regular expressions as trees.
///
/// The dialect is what ECMAScript (and so JSON Schema) and PCRE2 agree on, as far as it describes a
/// regular language:
///
///   characters      literals, `.` (all but \n), \n \r \t \f \v \a \e \0 \xHH \x{H…} \uHHHH \u{H…}
///                   and escaped punctuation
///   classes         [a-z], [^a-z], \d \D \w \W \s \S (ASCII; the capital ones are all the rest of
///                   Unicode), also within brackets
///   structure       | and (…), (?:…), (?<name>…), (?P<name>…): all groups are alike here
///   repetition      * + ? {m} {m,} {m,n}, and each with a ? behind it, which changes which match is
///                   preferred and not what matches
///   anchors         ^ and $, the begin and the end of the whole text
///
/// Refused with the position: lookaround, back-references, word boundaries, possessive and atomic
/// parts, inline options, Unicode properties, POSIX classes, and spellings that the two dialects
/// read differently. A brace that begins no repetition is a literal.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/code_point_set.hpp"

namespace nanovllm {

/// One part of a pattern, with its parts.
struct RegexNode {
  enum class Kind : std::uint8_t {
    characters,  ///< one character out of `characters`
    sequence,    ///< all parts, one after the other; without parts the empty text
    choice,      ///< one of the parts
    repeat,      ///< the only part, min to max times
    text_begin,  ///< nothing, at the begin of the text alone
    text_end,    ///< nothing, at the end of the text alone
  };
  static constexpr int kUnlimited = -1;

  Kind kind = Kind::sequence;
  CodePointSet characters{};
  std::vector<RegexNode> parts{};
  int min = 0;
  int max = kUnlimited;
};

/// How deep groups may be nested.
inline constexpr int kMaxRegexDepth = 200;
/// The largest m and n of {m,n}.
inline constexpr int kMaxRegexRepeat = 100'000;

/// Throws RequestError, which names the position in bytes and what is wrong or not supported there.
/// @param unicode_space \S leaves out all of Unicode's white space, as in ECMAScript, not ASCII's.
[[nodiscard]] RegexNode parse_regex(std::string_view pattern, bool unicode_space = false);

/// A pattern that matches `text` and nothing else.
[[nodiscard]] std::string escape_regex(std::string_view text);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/regex_parser.inc"
#endif
