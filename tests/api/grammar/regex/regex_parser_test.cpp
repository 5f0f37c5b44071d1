#include "nanovllm/api/grammar/regex/regex_parser.hpp"

#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using Range = nv::CodePointSet::Range;
using Ranges = std::vector<Range>;

namespace {

/// The ranges of a pattern of one character.
Ranges characters(const std::string& pattern) {
  const nv::RegexNode node = nv::parse_regex(pattern);
  REQUIRE(node.parts.size() == 1);
  REQUIRE(node.parts[0].kind == nv::RegexNode::Kind::characters);
  return node.parts[0].characters.ranges();
}

bool matches(std::string_view pattern, std::string_view text) {
  const nv::ByteDfa dfa = nv::compile_regex(pattern);
  const auto state = dfa.next(nv::ByteDfa::kStart, text);
  return state != nv::ByteDfa::kDead && dfa.accepts(state);
}

std::string message(const std::string& pattern) {
  try {
    (void)nv::parse_regex(pattern);
  } catch (const nv::RequestError& error) {
    return error.what();
  }
  return "nothing refused";
}

}  // namespace

TEST_CASE("sets of code points join what touches, and leave out surrogates") {
  nv::CodePointSet set;
  set.add('c', 'd');
  set.add('g', 'k');
  CHECK(set.ranges() == Ranges{{'c', 'd'}, {'g', 'k'}});
  set.add('e', 'e');
  CHECK(set.ranges() == Ranges{{'c', 'e'}, {'g', 'k'}});
  set.add('a', 'z');
  CHECK(set.ranges() == Ranges{{'a', 'z'}});
  CHECK(set.complement().ranges() == Ranges{{0, 'a' - 1}, {'z' + 1, 0xD7FF}, {0xE000, 0x10FFFF}});
  CHECK(set.complement().complement().ranges() == set.ranges());
  CHECK(nv::CodePointSet::all().ranges() == Ranges{{0, 0xD7FF}, {0xE000, 0x10FFFF}});
  CHECK(nv::CodePointSet::all().complement().ranges().empty());
  CHECK(nv::CodePointSet(0xD800).ranges().empty());
}

TEST_CASE("characters, escapes and classes") {
  const std::vector<std::pair<std::string, Ranges>> cases = {
      {"a", {{'a', 'a'}}},
      {"é", {{0xE9, 0xE9}}},
      {"{", {{'{', '{'}}},
      {"}", {{'}', '}'}}},
      {"]", {{']', ']'}}},
      {"\\.", {{'.', '.'}}},
      {"\\/", {{'/', '/'}}},
      {"\\-", {{'-', '-'}}},
      {"\\é", {{0xE9, 0xE9}}},
      {"\\n", {{'\n', '\n'}}},
      {"\\t", {{'\t', '\t'}}},
      {"\\v", {{'\v', '\v'}}},
      {"\\0", {{0, 0}}},
      {"\\x41", {{'A', 'A'}}},
      {"\\x{1F600}", {{0x1F600, 0x1F600}}},
      {"\\u20ac", {{0x20AC, 0x20AC}}},
      {"\\u{20AC}", {{0x20AC, 0x20AC}}},
      {"\\uD83D\\uDE00", {{0x1F600, 0x1F600}}},
      {"\\d", {{'0', '9'}}},
      {"\\w", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
      {"\\s", {{'\t', '\r'}, {' ', ' '}}},
      {"\\D", {{0, '0' - 1}, {'9' + 1, 0xD7FF}, {0xE000, 0x10FFFF}}},
      {".", {{0, '\n' - 1}, {'\n' + 1, 0xD7FF}, {0xE000, 0x10FFFF}}},
      {"[abc]", {{'a', 'c'}}},
      {"[a-cx]", {{'a', 'c'}, {'x', 'x'}}},
      {"[-a]", {{'-', '-'}, {'a', 'a'}}},
      {"[a-]", {{'-', '-'}, {'a', 'a'}}},
      {"[.*[{|]", {{'*', '*'}, {'.', '.'}, {'[', '['}, {'{', '|'}}},
      {"[\\d\\]\\b]", {{'\b', '\b'}, {'0', '9'}, {']', ']'}}},
      {"[\\x20-\\x7E]", {{' ', '~'}}},
      {"[^\\x00-\\u{FFFF}]", {{0x10000, 0x10FFFF}}},
  };
  for (const auto& [pattern, expected] : cases) {
    INFO(pattern);
    CHECK(characters(pattern) == expected);
  }
}

TEST_CASE("braces that begin no repetition are literal") {
  CHECK(matches("{\"a\": {1}}", "{\"a\": {1}}") == false);  // {1} repeats the space
  CHECK(matches("{\"a\": \\{1}}", "{\"a\": {1}}"));
  CHECK(matches("a{", "a{"));
  CHECK(matches("a{}", "a{}"));
  CHECK(matches("a{,}", "a{,}"));
  CHECK(matches("a{1", "a{1"));
  CHECK(matches("a{1,x}", "a{1,x}"));
  CHECK(matches("a{2}", "aa"));
}

TEST_CASE("what is not supported is refused with its position") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(a(?=b)c)*", "repeats a look-ahead without an end, which is not supported, at byte 0"},
      {"(?!c)?", "repeats an anchor or a look-ahead"},
      {"(?!c", "a group that is not closed"},
      {"ab(?<=c)", "looks behind, which is not supported, at byte 2"},
      {"(?<!c)", "looks behind"},
      {"(?>a)", "atomic"},
      {"(?i)a", "options"},
      {"(?<>a)", "named group"},
      {"(a)\\1", "back-reference, which no regular language has, at byte 3"},
      {"\\k<a>", "back-reference"},
      {"\\bfoo", "word boundary, which is not supported, at byte 0"},
      {"\\p{L}", "Unicode property"},
      {"\\A", "the escape \\A"},
      {"\\cX", "the escape \\c"},
      {"\\012", "octal"},
      {"\\x4", "hexadecimal"},
      {"\\u12", "hexadecimal"},
      {"\\x{}", "hexadecimal"},
      {"\\x{110000}", "above U+10FFFF"},
      {"\\x{D800}", "surrogate"},
      {"\\uD800", "surrogate"},
      {"\\uD800\\u0041", "surrogate"},
      {"a*+", "possessive quantifier, which is not supported, at byte 2"},
      {"a**", "repeats a repetition"},
      {"*a", "nothing to repeat, at byte 0"},
      {"(|+)", "nothing to repeat, at byte 2"},
      {"{2}", "nothing to repeat"},
      {"^*", "repeats an anchor"},
      {"a{,3}", "write {0,n}"},
      {"a{3,2}", "out of order"},
      {"a{100001}", "more than 100000 times"},
      {"a{99999999999999999999}", "more than 100000 times"},
      {"[z-a]", "out of order"},
      {"[\\d-z]", "range of classes"},
      {"[a-\\d]", "range of classes"},
      {"[]a]", "written \\]"},
      {"[[:alpha:]]", "POSIX"},
      {"ab[c", "class that is not closed, at byte 2"},
      {"[a-", "class that is not closed"},
      {"[", "class that is not closed"},
      {"a(b", "group that is not closed, at byte 1"},
      {"a)b", "closes nothing; a literal one is written \\), at byte 1"},
      {"a\\", "ends with a backslash, at byte 1"},
      {"a\xFF", "not valid UTF-8, at byte 1"},
      {std::string(300, '(') + std::string(300, ')'), "deeper than 200"},
  };
  for (const auto& [pattern, expected] : cases) {
    INFO(pattern);
    CHECK_THAT(message(pattern), Contains(expected));
  }
}

TEST_CASE("an escaped text matches itself alone") {
  for (const std::string text : {"a.b", "[x]{2}(y)|^$*+?\\-", "é😀", "", "1-2/3", "{1}"}) {
    INFO(text);
    CHECK(matches(nv::escape_regex(text), text));
    CHECK_FALSE(matches(nv::escape_regex(text), text + "x"));
  }
  CHECK_FALSE(matches(nv::escape_regex("a.b"), "axb"));
}
