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
///   repetition      * + ? {m} {m,} {m,n}, and each with a ? after it, which changes which match
///                   is preferred and not what matches
///   anchors         ^ and $, the begin and the end of the whole text
///   look-ahead      (?=…) and (?!…), but not within a repetition without an end
///
/// Refused with the position: look-behind, back-references, word boundaries, possessive and atomic
/// parts, inline options, Unicode properties, POSIX classes, and spellings that the two dialects
/// read differently. A brace that begins no repetition is a literal.
/// Longer than 400 lines: the rules of one recursive descent call each other.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/code_point_set.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

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
    look_ahead,  ///< nothing, where the only part matches all of the text that follows
  };
  static constexpr int kUnlimited = -1;

  Kind kind = Kind::sequence;
  CodePointSet characters{};
  std::vector<RegexNode> parts{};
  int min = 0;
  int max = kUnlimited;
  bool is_negative = false;  ///< of a look-ahead: where it is not

  /// Any text.
  [[nodiscard]] static RegexNode any_text() {
    RegexNode any{.kind = Kind::repeat};
    any.parts.push_back({.kind = Kind::characters, .characters = CodePointSet::all()});
    return any;
  }
};

/// How deep groups may be nested.
inline constexpr int kMaxRegexDepth = 200;
/// The largest m and n of {m,n}.
inline constexpr int kMaxRegexRepeat = 100'000;

namespace detail {

/// Recursive descent: a choice of sequences of repeated atoms.
class RegexParser {
 public:
  RegexParser(std::string_view pattern, bool ecmascript) : in_(pattern), ecmascript_(ecmascript) {}

  [[nodiscard]] RegexNode run() {
    const std::size_t valid = utf8::valid_prefix(in_);
    if (valid < in_.size()) fail(valid, "is not valid UTF-8");
    RegexNode root = choice(0);
    if (!at_end()) fail(pos_, "has a ) that closes nothing; a literal one is written \\)");
    return root;
  }

 private:
  using Kind = RegexNode::Kind;

  RegexNode choice(int depth) {
    if (depth > kMaxRegexDepth)
      fail(pos_, concat("nests groups deeper than ", kMaxRegexDepth, " levels"));
    RegexNode first = sequence(depth);
    if (at_end() || peek() != '|') return first;
    RegexNode node{.kind = Kind::choice};
    node.parts.push_back(std::move(first));
    while (skip('|')) node.parts.push_back(sequence(depth));
    return node;
  }

  RegexNode sequence(int depth) {
    RegexNode node{.kind = Kind::sequence};
    while (!at_end() && peek() != '|' && peek() != ')') {
      const std::size_t begin = pos_, num_looks_before = num_look_aheads_;
      RegexNode part = atom(depth);
      const bool is_anchor = part.kind == Kind::text_begin || part.kind == Kind::text_end ||
                             part.kind == Kind::look_ahead;
      node.parts.push_back(repeated(std::move(part), is_anchor, begin, num_looks_before));
    }
    return node;
  }

  /// `part` with the quantifier after it, if any.
  RegexNode repeated(RegexNode part, bool is_anchor, std::size_t begin,
                     std::size_t num_looks_before) {
    const std::optional<std::pair<int, int>> bounds = quantifier();
    if (!bounds) return part;
    if (is_anchor) fail(begin, "repeats an anchor or a look-ahead");
    if (!skip('?') && !at_end() && peek() == '+')
      fail(pos_, "has a possessive quantifier, which is not supported");
    const std::size_t behind = pos_;
    if (quantifier()) fail(behind, "repeats a repetition; put the inner one in a group");
    RegexNode node{.kind = Kind::repeat};
    node.min = bounds->first;
    node.max = bounds->second;
    if (node.max == RegexNode::kUnlimited && num_look_aheads_ > num_looks_before)
      fail(begin, "repeats a look-ahead without an end, which is not supported");
    node.parts.push_back(std::move(part));
    return node;
  }

  /// The least and the largest number of times; nothing, and nothing read, if there is none.
  std::optional<std::pair<int, int>> quantifier() {
    if (skip('*')) return std::pair(0, RegexNode::kUnlimited);
    if (skip('+')) return std::pair(1, RegexNode::kUnlimited);
    if (skip('?')) return std::pair(0, 1);
    const std::size_t begin = pos_;
    if (!skip('{')) return std::nullopt;
    const std::optional<int> min = number();
    const bool has_comma = skip(',');
    const std::optional<int> max = has_comma ? number() : min;
    if (skip('}')) {
      if (min && max && *max < *min) fail(begin, "has a repetition whose bounds are out of order");
      if (min) return std::pair(*min, max.value_or(RegexNode::kUnlimited));
      if (max) fail(begin, "has a repetition without a least number; write {0,n}");
    }
    pos_ = begin;  // a literal brace
    return std::nullopt;
  }

  std::optional<int> number() {
    if (at_end() || !is_digit(peek())) return std::nullopt;
    const std::size_t begin = pos_;
    int value = 0;
    for (; !at_end() && is_digit(peek()); ++pos_) {
      value = 10 * value + (peek() - '0');
      if (value > kMaxRegexRepeat)
        fail(begin, concat("repeats more than ", kMaxRegexRepeat, " times"));
    }
    return value;
  }

  RegexNode atom(int depth) {
    const std::size_t begin = pos_;
    switch (peek()) {
      case '(': return group(depth);
      case '[': return characters(bracket());
      case '.': ++pos_; return characters(regex_class::line_ends(ecmascript_).complement());
      case '^': ++pos_; return {.kind = Kind::text_begin};
      case '$': ++pos_; return {.kind = Kind::text_end};
      case '\\': return characters(escape(false).set);
      case '*':
      case '+':
      case '?': fail(begin, "has a quantifier with nothing to repeat");
      case '{':
        if (quantifier()) fail(begin, "has a quantifier with nothing to repeat");
        break;
      default: break;
    }
    return characters(CodePointSet(code_point()));
  }

  RegexNode group(int depth) {
    const std::size_t begin = pos_;
    ++pos_;
    const std::string_view sign = in_.substr(pos_, 2);
    const bool looks_ahead = sign == "?=" || sign == "?!";
    if (looks_ahead) {
      pos_ += sign.size();
    } else if (skip('?')) {
      group_options(begin);
    }
    RegexNode node = choice(depth + 1);
    if (!skip(')')) fail(begin, "has a group that is not closed");
    if (!looks_ahead) return node;
    ++num_look_aheads_;
    RegexNode wanted{.kind = Kind::sequence};
    wanted.parts.push_back(std::move(node));
    wanted.parts.push_back(RegexNode::any_text());
    RegexNode look{.kind = Kind::look_ahead, .is_negative = sign == "?!"};
    look.parts.push_back(std::move(wanted));
    return look;
  }

  /// Reads what comes between `(?` and the group's content.
  void group_options(std::size_t begin) {
    if (skip(':')) return;
    const std::string_view rest = in_.substr(pos_);
    if (rest.starts_with("<=") || rest.starts_with("<!"))
      fail(begin, "looks behind, which is not supported");
    if (rest.starts_with('>')) fail(begin, "has an atomic group, which is not supported");
    if (rest.starts_with("P<")) ++pos_;
    if (skip('<')) {
      const std::size_t name = pos_;
      while (!at_end() && (is_word(peek()))) ++pos_;
      if (pos_ > name && skip('>')) return;
      fail(begin, "has a named group whose name is not of letters, digits and _");
    }
    fail(begin, "has a group with options; supported are (…), (?:…), (?<name>…) and (?P<name>…)");
  }

  CodePointSet bracket() {
    const std::size_t begin = pos_;
    ++pos_;
    const bool negated = is_negated_ = skip('^');
    if (!at_end() && peek() == ']')
      fail(pos_, "has a ] that begins a class; a literal one is written \\]");
    CodePointSet set;
    while (!at_end() && peek() != ']') {
      const std::size_t item = pos_;
      const Escape low = class_item();
      if (pos_ + 1 >= in_.size() || peek() != '-' || in_[pos_ + 1] == ']') {
        set.add(low.set);
        continue;
      }
      ++pos_;
      const Escape high = class_item();
      if (!low.is_single || !high.is_single)
        fail(item, "has a range of classes; a literal - is written \\-");
      const char32_t first = low.code_point, last = high.code_point;
      if (first > last) fail(item, "has a range whose ends are out of order");
      set.add(first, last);
    }
    if (!skip(']')) fail(begin, "has a class that is not closed");
    return negated ? set.complement() : set;
  }

  /// A character, or several by an escape.
  struct Escape {
    CodePointSet set;
    char32_t code_point = 0;
    bool is_single = false;
  };

  static Escape single(char32_t code_point) { return {CodePointSet(code_point), code_point, true}; }

  Escape class_item() {
    if (peek() == '\\') return escape(true);
    if (peek() == '[' && pos_ + 1 < in_.size() &&
        std::string_view(":.=").find(in_[pos_ + 1]) != std::string_view::npos)
      fail(pos_, "has a POSIX class, which is not supported; a literal [ is written \\[");
    return single(code_point());
  }

  Escape escape(bool in_class) {
    const std::size_t begin = pos_;
    ++pos_;
    if (at_end()) fail(begin, "ends with a backslash");
    const char c = peek();
    if (static_cast<unsigned char>(c) >= 0x80) return single(code_point());
    ++pos_;
    switch (c) {
      case 'd': return {regex_class::digits()};
      case 'D': return {regex_class::digits().complement()};
      case 'w': return {regex_class::word_characters()};
      case 'W': return {regex_class::word_characters().complement()};
      // In ECMAScript, what counts as white space nowhere is \S, and what does everywhere is \s; a
      // negation turns the two round.
      case 's': return {regex_class::white_space(ecmascript_ && in_class && is_negated_)};
      case 'S':
        return {regex_class::white_space(ecmascript_ && !(in_class && is_negated_)).complement()};
      case 'n': return single('\n');
      case 'r': return single('\r');
      case 't': return single('\t');
      case 'f': return single('\f');
      case 'v': return single('\v');
      case 'a': return single('\a');
      case 'e': return single(0x1B);
      case 'x': {
        const char32_t value = hexadecimal(begin, 2);
        if (CodePointSet(value).ranges().empty()) fail(begin, "names a surrogate");
        return single(value);
      }
      case 'u': return single(utf16(begin));
      case 'b':
        if (in_class) return single('\b');
        fail(begin, "has a word boundary, which is not supported");
      case '0':
        if (at_end() || !is_digit(peek())) return single(0);
        fail(begin, "has an octal escape; \\xHH and \\u{H…} are supported");
      case 'p':
      case 'P': fail(begin, "has a Unicode property, which is not supported");
      default: break;
    }
    if (is_digit(c) || c == 'k' || c == 'g')
      fail(begin, "has a back-reference, which no regular language has");
    if (is_word(c) && c != '_')
      fail(begin, concat("has the escape \\", c, ", which is not supported"));
    return single(static_cast<char32_t>(c));
  }

  /// `num_digits` digits, or any number of them in braces.
  char32_t hexadecimal(std::size_t begin, int num_digits) {
    const bool in_braces = skip('{');
    char32_t value = 0;
    int count = 0;
    for (; !at_end() && (in_braces || count < num_digits); ++count, ++pos_) {
      const int digit = digit_value(peek());
      if (digit < 0) break;
      value = 16 * value + static_cast<char32_t>(digit);
      if (value > CodePointSet::kMax) fail(begin, "names a code point above U+10FFFF");
    }
    if (in_braces ? count == 0 || !skip('}') : count < num_digits)
      fail(begin, "has an escape that lacks hexadecimal digits");
    return value;
  }

  /// \uHHHH, two of them for what UTF-16 spells with surrogates, or \u{H…}.
  char32_t utf16(std::size_t begin) {
    const char32_t high = hexadecimal(begin, 4);
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high <= 0xDBFF && in_.substr(pos_).starts_with("\\u")) {
      pos_ += 2;
      const char32_t low = hexadecimal(begin, 4);
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
    fail(begin, "has half of a surrogate pair");
  }

  static RegexNode characters(CodePointSet set) {
    RegexNode node{.kind = Kind::characters};
    node.characters = std::move(set);
    return node;
  }

  char32_t code_point() {
    const utf8::Char c = utf8::decode(in_, pos_);
    pos_ += c.size;
    return c.code_point;
  }

  [[nodiscard]] bool at_end() const { return pos_ == in_.size(); }
  [[nodiscard]] char peek() const { return in_[pos_]; }
  bool skip(char c) {
    if (at_end() || peek() != c) return false;
    ++pos_;
    return true;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_word(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  static int digit_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  }

  [[noreturn]] void fail(std::size_t position, std::string_view what) const {
    throw RequestError(concat("the regular expression '", in_, "' ", what, ", at byte ", position));
  }

  std::string_view in_;
  bool ecmascript_;
  bool is_negated_ = false;  // of the class that is being read
  std::size_t pos_ = 0, num_look_aheads_ = 0;
};

}  // namespace detail

/// Throws RequestError, which names the position in bytes and what is wrong or not supported there.
/// @param ecmascript `.` leaves out all line terminators of ECMAScript, \s in [^\s] and \S stand
///                   for Unicode's white space.
[[nodiscard]] inline RegexNode parse_regex(std::string_view pattern, bool ecmascript = false) {
  return detail::RegexParser(pattern, ecmascript).run();
}

/// A pattern that matches `text` and nothing else.
[[nodiscard]] inline std::string escape_regex(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace nanovllm
