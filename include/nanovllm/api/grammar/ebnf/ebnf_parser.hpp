#pragma once
/// Reads grammars in the notation of GBNF (llama.cpp), and a few parts beyond it that grammars made
/// by this library use (api/grammar/ebnf/ebnf_text.hpp).
///
///   rule       name ::= expression, over as many lines as it takes; `root` is the whole text.
///              A name has letters, digits, '_', '-' and '.'
///   comment    # and the rest of the line
///   text       "…" with \n, \r, \t, \xHH, \uHHHH, \UHHHHHHHH and \ before punctuation
///   class      […] and [^…], with ranges and the same escapes
///   structure  sequences, |, (…), and * + ? {m} {m,} {m,n} after a part
///   <…>        the same as (…), to be read by one deterministic automaton; it may name only rules
///              that do not come back to themselves; <@"…" …> is named so in messages;
///              <… & …> is what all of these read; one may be a $pattern, and one that is not the
///              first a $multiple or, at the end, a $string
///   $string    a JSON string, $string{m,n} one of m to n characters, $string{m,} of m at the least
///   $pattern "…" a JSON string whose value matches the regular expression: json_strings.hpp
///   $multiple{n} a decimal integer that n divides
///   $until "…" text up to where this one first occurs, and that
///   $key       a JSON string without needless escapes, and so a text for each value
///   $unused("…" …) and a part that is one automaton: what it reads, but for the texts in brackets
///              and for what such parts have read since the rule `name ::= $scope expression` began
///              that this one is in; no other text may be read in two ways at once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/code_point_set.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

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
    terminal,    ///< what all parts read, as one automaton, which has the name `text`
    string,      ///< a JSON string of min to max characters
    until,       ///< what comes before `text`, and that
    key,         ///< a JSON string without needless escapes
    pattern,     ///< a JSON string that matches the pattern `text`
    multiple,    ///< an integer that `min` divides
    unused,      ///< the first part, but for the others, which are literals, and what was there
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
  std::vector<std::string_view> names;  ///< of the rules, within what was parsed
  std::vector<bool> is_scope;           ///< whether what `unused` parts of the rule read differs
  int root = 0;
};

namespace detail {

/// Recursive descent, a function for each level of the notation.
class EbnfParser {
 public:
  explicit EbnfParser(std::string_view text) : text_(text) {}

  [[nodiscard]] EbnfGrammar parse() {
    for (skip(); at_ < text_.size(); skip()) {
      const auto number = static_cast<std::size_t>(number_of(name()));
      expect(!is_there_[number], "another rule than before");
      for (const char c : {':', ':', '='}) expect(take(c), "::=");
      skip();
      if (text_.substr(at_).starts_with(kScope)) {
        at_ += kScope.size();
        grammar_.is_scope[number] = true;
      }
      grammar_.rules[number] = choice();
      is_there_[number] = true;
      expect(at_ == text_.size() || is_at_rule(), "the end of the rule");
    }
    for (const auto& [name, number] : numbers_)
      check<RequestError>(is_there_[static_cast<std::size_t>(number)], "the grammar has no rule '",
                          name, "'");
    const auto root = numbers_.find("root");
    check<RequestError>(root != numbers_.end(), "the grammar has no rule 'root'");
    grammar_.root = root->second;
    return std::move(grammar_);
  }

 private:
  using Kind = EbnfNode::Kind;
  static constexpr int kMaxDepth = 1000;
  static constexpr std::string_view kBlanks = " \t\r\n";
  static constexpr std::string_view kScope = "$scope ";
  static constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

  [[noreturn]] void fail(std::string_view expected) const {
    throw RequestError(concat("the grammar is to have ", expected, " at byte ", at_));
  }
  void expect(bool condition, std::string_view what) const {
    if (!condition) fail(what);
  }

  /// Where blanks, ends of lines and comments from `at` on end.
  [[nodiscard]] std::size_t behind_blanks(std::size_t at) const {
    while (at < text_.size() && (kBlanks.find(text_[at]) != kBlanks.npos || text_[at] == '#'))
      at = text_[at] == '#' ? std::min(text_.find('\n', at), text_.size()) : at + 1;
    return at;
  }
  void skip() { at_ = behind_blanks(at_); }

  [[nodiscard]] std::size_t behind_name(std::size_t at) const {
    const auto is_part = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.';
    };
    while (at < text_.size() && is_part(text_[at])) ++at;
    return at;
  }

  /// Whether the next rule begins here: a name and ::=.
  [[nodiscard]] bool is_at_rule() const {
    const std::size_t end = behind_name(at_);
    return end > at_ && text_.substr(behind_blanks(end), 3) == "::=";
  }

  /// What was read from `begin` on, without the blanks at its end.
  [[nodiscard]] std::string_view source(std::size_t begin) const {
    const std::string_view all = text_.substr(begin, at_ - begin);
    return all.substr(0, all.find_last_not_of(kBlanks) + 1);
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  [[nodiscard]] std::string_view name() {
    const std::size_t begin = at_;
    at_ = behind_name(at_);
    expect(at_ > begin, "the name of a rule");
    const std::string_view found = text_.substr(begin, at_ - begin);
    skip();
    return found;
  }

  [[nodiscard]] int number_of(std::string_view name) {
    const auto [found, is_new] =
        numbers_.try_emplace(name, static_cast<int>(grammar_.rules.size()));
    if (is_new) {
      grammar_.rules.emplace_back();
      grammar_.names.push_back(name);
      grammar_.is_scope.push_back(false);
      is_there_.push_back(false);
    }
    return found->second;
  }

  [[nodiscard]] EbnfNode choice() {
    expect(++depth_ <= kMaxDepth, "no deeper brackets");
    skip();
    const std::size_t begin = at_;
    EbnfNode node = sequence();
    if (peek() == '|') {
      EbnfNode all{.kind = Kind::choice};
      all.parts.push_back(std::move(node));
      while (take('|')) all.parts.push_back(sequence());
      all.source = source(begin);
      node = std::move(all);
    }
    --depth_;
    return node;
  }

  [[nodiscard]] EbnfNode sequence() {
    skip();
    const std::size_t begin = at_;
    EbnfNode node;
    while (at_ < text_.size() && std::string_view("|)>&").find(text_[at_]) == text_.npos &&
           !is_at_rule())
      node.parts.push_back(repeated());
    node.source = source(begin);
    if (node.parts.size() == 1) return EbnfNode(std::move(node.parts.front()));
    return node;
  }

  [[nodiscard]] EbnfNode repeated() {
    const std::size_t begin = at_;
    EbnfNode node = part();
    node.source = source(begin);
    while (std::string_view("*+?{").find(peek()) != std::string_view::npos && at_ < text_.size()) {
      EbnfNode outer{.kind = Kind::repeat};
      counts(outer);
      outer.parts.push_back(std::move(node));
      outer.source = source(begin);
      node = std::move(outer);
    }
    skip();
    return node;
  }

  void counts(EbnfNode& node) {
    if (take('*')) return;
    if (take('+')) {
      node.min = 1;
    } else if (take('?')) {
      node.max = 1;
    } else {
      expect(take('{'), "{");
      node.min = node.max = count();
      if (take(',')) node.max = peek() == '}' ? EbnfNode::kUnlimited : count();
      expect(take('}'), "}");
      expect(node.max == EbnfNode::kUnlimited || node.max >= node.min, "no fewer than before");
    }
  }

  [[nodiscard]] int count() {
    int value = 0;
    const auto end = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    expect(end.ec == std::errc{} && value >= 0 && value <= 1 << 30, "a count up to 2^30");
    at_ = static_cast<std::size_t>(end.ptr - text_.data());
    return value;
  }

  [[nodiscard]] EbnfNode part() {
    if (peek() == '"') return {.kind = Kind::literal, .text = literal()};
    if (peek() == '[') return {.kind = Kind::characters, .characters = characters()};
    if (take('(')) {
      EbnfNode node = choice();
      expect(take(')'), ")");
      return node;
    }
    if (take('<')) {
      EbnfNode node{.kind = Kind::terminal};
      if (take('@')) {
        expect(peek() == '"', "a name");
        node.text = literal();
      }
      do node.parts.push_back(choice());
      while (take('&'));
      expect(take('>'), ">");
      return node;
    }
    if (take('$')) {
      const std::string_view which = name();
      EbnfNode node;
      if (which == "unused") return unused();
      if (which == "key") {
        node.kind = Kind::key;
      } else if (which == "multiple") {
        node.kind = Kind::multiple;
        counts(node);
        expect(node.min > 0, "a number above 0");
      } else if (which == "string") {
        node.kind = Kind::string;
        if (peek() == '{') counts(node);
      } else {
        const bool is_pattern = which == "pattern";
        expect((is_pattern || which == "until") && peek() == '"',
               "$string, $key, $multiple, $unused, or $pattern or $until with a text");
        node = {.kind = is_pattern ? Kind::pattern : Kind::until, .text = literal()};
        expect(is_pattern || !node.text.empty(), "a text");
      }
      return node;
    }
    return {.kind = Kind::reference, .rule = number_of(name())};
  }

  [[nodiscard]] EbnfNode unused() {
    EbnfNode node{.kind = Kind::unused};
    node.parts.emplace_back();
    expect(take('('), "(");
    for (skip(); peek() == '"'; skip())
      node.parts.push_back({.kind = Kind::literal, .text = literal()});
    expect(take(')'), ")");
    skip();
    const std::size_t begin = at_;
    node.parts.front() = part();
    node.parts.front().source = source(begin);
    return node;
  }

  [[nodiscard]] char32_t character() {
    expect(at_ < text_.size(), "a character");
    if (take('\\')) {
      const char c = peek();
      ++at_;
      if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t size = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        std::uint32_t value = 0;
        const std::string_view digits = text_.substr(std::min(at_, text_.size()), size);
        const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        expect(end.ptr == digits.data() + size && value <= CodePointSet::kMax, "a code point");
        at_ += size;
        return value;
      }
      switch (c) {
        case 'n': return U'\n';
        case 'r': return U'\r';
        case 't': return U'\t';
        default:
          expect(kPunctuation.find(c) != kPunctuation.npos, "an escape");
          return static_cast<char32_t>(c);
      }
    }
    const utf8::Char c = utf8::decode(text_, at_);
    expect(c.status == utf8::Status::kValid && c.code_point >= ' ', "a character");
    at_ += c.size;
    return c.code_point;
  }

  [[nodiscard]] std::string literal() {
    std::string out;
    for (++at_; !take('"');) utf8::append(out, character());
    return out;
  }

  [[nodiscard]] CodePointSet characters() {
    CodePointSet set;
    ++at_;
    const bool is_complement = take('^');
    while (!take(']')) {
      const char32_t first = character();
      const bool is_range = peek() == '-' && text_.substr(at_ + 1, 1) != "]";
      const char32_t last = is_range && take('-') ? character() : first;
      expect(first <= last, "a range that goes up");
      set.add(first, last);
    }
    return is_complement ? set.complement() : set;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  EbnfGrammar grammar_;
  std::vector<bool> is_there_;  // [rule]
  std::unordered_map<std::string_view, int> numbers_;
};

}  // namespace detail

/// The rules of `text`, which must outlive them. Throws RequestError, which names the byte, for
/// what is not in the notation, a rule that is missing or there twice, and counts above 2^30.
[[nodiscard]] inline EbnfGrammar parse_ebnf(std::string_view text) {
  return detail::EbnfParser(text).parse();
}

}  // namespace nanovllm
