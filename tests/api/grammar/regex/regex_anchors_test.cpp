#include "nanovllm/api/grammar/regex/regex_nfa.hpp"

#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/ebnf/json_strings.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::schema_error;
using nanovllm_test::takes;

namespace {

/// A random pattern, its spelling, and an own matcher by sets of positions.
struct Pattern {
  enum Kind { character, begin, end, look, not_look, sequence, choice, repeat };
  Kind kind = sequence;
  char letter = 0;
  std::vector<Pattern> parts{};
  int min = 0, max = -1;

  using Places = std::set<std::size_t>;

  [[nodiscard]] std::string text() const {
    std::string out;
    switch (kind) {
      case character: return std::string(1, letter);
      case begin: return "^";
      case end: return "$";
      case look:
      case not_look: return (kind == look ? "(?=" : "(?!") + parts[0].text() + ")";
      case sequence:
        for (const Pattern& part : parts) out += part.text();
        return "(?:" + out + ")";
      case choice:
        for (const Pattern& part : parts) out += (out.empty() ? "(" : "|") + part.text();
        return out + ")";
      case repeat:
        return "(" + parts[0].text() + "){" + std::to_string(min) + "," +
               (max < 0 ? "" : std::to_string(max)) + "}";
    }
    return out;
  }

  /// Where the pattern may end in `text` if it begins at one of `from`.
  [[nodiscard]] Places ends(const std::string& text, const Places& from) const {
    Places out;
    switch (kind) {
      case character:
        for (const std::size_t at : from)
          if (at < text.size() && (letter == '.' ? text[at] != '\n' : text[at] == letter))
            out.insert(at + 1);
        return out;
      case begin: return from.contains(0) ? Places{0} : Places{};
      case end: return from.contains(text.size()) ? Places{text.size()} : Places{};
      case look:
      case not_look:
        for (const std::size_t at : from)
          if (parts[0].ends(text, {at}).empty() == (kind == not_look)) out.insert(at);
        return out;
      case sequence:
        out = from;
        for (const Pattern& part : parts) out = part.ends(text, out);
        return out;
      case choice:
        for (const Pattern& part : parts) out.merge(part.ends(text, from));
        return out;
      case repeat: {
        Places now = from;
        if (min == 0) out = from;
        // More turns than this reach no place that fewer do not.
        const int most = max < 0 ? min + static_cast<int>(text.size()) + 2 : max;
        for (int turn = 1; turn <= most; ++turn) {
          now = parts[0].ends(text, now);
          if (turn >= min) out.insert(now.begin(), now.end());
        }
        return out;
      }
    }
    return out;
  }

  [[nodiscard]] bool has_anchors() const {
    return kind == begin || kind == end ||
           std::any_of(parts.begin(), parts.end(),
                       [](const Pattern& p) { return p.has_anchors(); });
  }

  /// Whether it occurs in `text`; without anchors, whether it is `text` as a whole.
  [[nodiscard]] bool matches(const std::string& text) const {
    if (!has_anchors()) return ends(text, {0}).contains(text.size());
    Places all;
    for (std::size_t i = 0; i <= text.size(); ++i) all.insert(i);
    return !ends(text, all).empty();
  }
};

struct Patterns {
  std::mt19937 random;

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

  bool looks_ahead = false;

  Pattern make(int depth) {
    Pattern out;
    if (looks_ahead && depth > 0 && below(4) == 0) {
      out.kind = below(2) ? Pattern::look : Pattern::not_look;
      out.parts.push_back(make(depth - 1));
      return out;
    }
    switch (below(depth > 0 ? 9 : 5)) {
      case 0: out.kind = Pattern::begin; return out;
      case 1: out.kind = Pattern::end; return out;
      case 2:
      case 3:
      case 4:
        out.kind = Pattern::character;
        out.letter = "ab."[below(3)];
        return out;
      case 5:
      case 6:
        for (int i = 1 + below(3); i > 0; --i) out.parts.push_back(make(depth - 1));
        return out;
      case 7:
        out.kind = Pattern::choice;
        for (int i = 2 + below(2); i > 0; --i) out.parts.push_back(make(depth - 1));
        return out;
      default:
        out.kind = Pattern::repeat;
        out.parts.push_back(make(depth - 1));
        out.min = below(4);
        out.max = below(2) ? -1 : out.min + below(3);
        return out;
    }
  }
};

/// All texts of up to `size` letters.
std::vector<std::string> all_texts(std::size_t size) {
  std::vector<std::string> out{""};
  for (std::size_t i = 0; out[i].size() < size; ++i)
    for (const char c : std::string("ab\n")) out.push_back(out[i] + c);
  return out;
}

}  // namespace

TEST_CASE("defect: a pattern accepts what it must not, with anchors in groups and alternatives") {
  struct Case {
    const char* pattern;
    std::vector<std::string> yes, no;
  };
  // As Python's re.search and ECMAScript's RegExp have it.
  const std::vector<Case> cases{
      {"^(a|b$)", {"a", "b", "aha", "ab"}, {"brong these shoes from, Kjoge,", "", "ba", "ca"}},
      {"^(https?://|$)", {"", "http://", "https://x.y"}, {"http:/", "x", " "}},
      {"^(yes|no$)", {"yes", "no", "yes, please"}, {"nothing", "y", ""}},
      {"^(a$|b)", {"a", "b", "bee"}, {"an", "", "c"}},
      {"^(\\d+|none$)", {"1", "12 apples", "none"}, {"nonesuch", "x1", ""}},
      {"(^|,)x(,|$)", {"x", "x,", "a,x,b", "y,x"}, {"ax", "xa", ",xy", ""}},
      {"(^a|b$)", {"a", "ax", "xb", "b"}, {"xa", "bx", ""}},
      {"(^a)+b", {"ab", "abx"}, {"aab", "xab"}},
      {"(^|a){2}b", {"ab", "aab", "b", "xaab"}, {"xab", "xb"}},
      {"(a|$){3}", {"a", "", "xaaa", "b"}, {}},
      {"^$|^[A-Z]{2}$", {"", "AB"}, {"A", "ABC", "aAB"}},
      {"^a|b", {"ax", "xbx"}, {"xa", ""}},
      {"(?:^x|y)(?:z|$)", {"xz", "x", "ay", "yz"}, {"xa", "axz", "ya"}},
      {"^^a$$", {"a"}, {"aa", ""}},
      {"a|^$", {"", "xax"}, {"b"}},
      {"a*^b", {"b", "bx"}, {"ab"}},
      {"b$a*", {"b", "xb"}, {"ba"}},
      {"^.$", {"a", "é"}, {"", "\n", "\r", "\u2028"}},
      {"^[^\\s]$", {"a"}, {" ", "\u00a0", "\ufeff"}},
      {"^\\S$", {"a"}, {" ", "\u00a0"}},
      {"^[^\\S]$", {" ", "\t"}, {"a"}},
      {"abc", {"abc"}, {"xabc", "abcx"}},  // without any anchor: the string as a whole
  };
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  for (const Case& each : cases) {
    INFO(each.pattern);
    nv::Json schema = nv::Json::object();
    schema["pattern"] = each.pattern;
    const auto source = compiler.json_schema(schema.dump());
    for (const std::string& text : each.yes) {
      INFO(text);
      CHECK(takes(*source, nv::Json(text).dump()));
    }
    for (const std::string& text : each.no) {
      INFO(text);
      CHECK_FALSE(takes(*source, nv::Json(text).dump()));
    }
  }
  for (const char* none : {"a^b", "(a$b)", "x(^|y$)z"})
    CHECK_THAT(schema_error(std::string(R"({"pattern": ")") + none + "\"}"),
               Catch::Matchers::Contains("matches no text"));
}

TEST_CASE("random patterns with anchors match what a matcher of positions matches") {
  Patterns patterns{std::mt19937(11)};
  const std::vector<std::string> texts = all_texts(5);
  int num_anchored = 0, num_none = 0;
  for (int i = 0; i < 3000; ++i) {
    const Pattern pattern = patterns.make(4);
    INFO(pattern.text());
    const auto dfa = [&]() -> std::optional<nv::ByteDfa> {
      nv::RegexNode root = nv::parse_regex(pattern.text());
      REQUIRE(nv::has_anchors(root) == pattern.has_anchors());
      if (pattern.has_anchors()) {
        ++num_anchored;
        root = nv::search_pattern(std::move(root));
      }
      return nv::ByteDfa::make_if_any(nv::make_nfa(root), nv::CompileBudget());
    }();
    num_none += !dfa;
    for (const std::string& text : texts) {
      const auto end = dfa ? dfa->next(nv::ByteDfa::kStart, text) : nv::ByteDfa::kDead;
      const bool is_taken = end != nv::ByteDfa::kDead && dfa->accepts(end);
      if (is_taken == pattern.matches(text)) continue;
      INFO("text " << nv::Json(text).dump());
      REQUIRE(is_taken == pattern.matches(text));
    }
  }
  CHECK(num_anchored > 1500);
  CHECK(num_none > 50);
}

TEST_CASE("random patterns that look ahead match what a matcher of positions matches") {
  Patterns patterns{std::mt19937(12)};
  patterns.looks_ahead = true;
  const std::vector<std::string> texts = all_texts(5);
  int num_taken = 0, num_refused = 0, num_compiled = 0;
  for (int i = 0; i < 3000; ++i) {
    const Pattern pattern = patterns.make(4);
    if (pattern.text().find("(?=") == std::string::npos &&
        pattern.text().find("(?!") == std::string::npos)
      continue;
    INFO(pattern.text());
    std::optional<nv::ByteDfa> dfa;
    try {
      nv::RegexNode root = nv::parse_regex(pattern.text());
      if (pattern.has_anchors()) root = nv::search_pattern(std::move(root));
      dfa = nv::ByteDfa::make_if_any(nv::make_nfa(root), nv::CompileBudget());
    } catch (const nv::RequestError& error) {
      REQUIRE_THAT(error.what(), Catch::Matchers::Contains("look-ahead"));
      ++num_refused;
      continue;
    }
    ++num_compiled;
    for (const std::string& text : texts) {
      const auto end = dfa ? dfa->next(nv::ByteDfa::kStart, text) : nv::ByteDfa::kDead;
      const bool is_taken = end != nv::ByteDfa::kDead && dfa->accepts(end);
      num_taken += is_taken;
      if (is_taken == pattern.matches(text)) continue;
      INFO("text " << nv::Json(text).dump());
      REQUIRE(is_taken == pattern.matches(text));
    }
  }
  CHECK(num_compiled > 500);
  CHECK(num_refused > 100);
  CHECK(num_taken > 10'000);
}

TEST_CASE("look-ahead as pydantic's Decimal and Zod's e-mail addresses have it") {
  struct Case {
    const char* pattern;
    std::vector<std::string> yes, no;
  };
  const std::vector<Case> cases{
      {R"(^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$)",
       {"1.5", "-7", ".5", "007", "+1."},
       {"", "+", "-.", "x"}},
      {R"(^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$))",
       {"123", "12.34", "-1.5", "000.10", "1234"},
       {"", "-", ".", "+."}},
      {R"(^(?!\.)(?!.*\.\.)([a-z0-9_'+\-.]*)[a-z0-9_+-]@([a-z0-9][a-z0-9\-]*\.)+[a-z]{2,}$)",
       {"a.b@c.de", "a+b@x-y.z.org"},
       {".a@c.de", "a..b@c.de", "a.@c.de", "a@c"}},
      {R"(^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,}$)",
       {"Abc1", "1234X"},
       {"abcd", "ABCD", "A1b", "Ab1-"}},
      {R"(^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+D)?(T(?=\d)(\d+H)?(\d+S)?)?)$)",
       {"P1W", "P1Y2D", "PT5H", "P1DT1S"},
       {"P", "PT", "P1Y1W", "P1DT"}},
      {R"(^https?://(?!localhost)\S+$)",
       {"http://a", "https://local"},
       {"http://localhost/x", "http://"}},
  };
  const nv::JsonSchemaCompiler compiler(byte_vocabulary());
  for (const Case& each : cases) {
    INFO(each.pattern);
    nv::Json schema = nv::Json::object();
    schema["pattern"] = each.pattern;
    const auto source = compiler.json_schema(schema.dump());
    for (const std::string& text : each.yes) {
      INFO(text);
      CHECK(takes(*source, nv::Json(text).dump()));
    }
    for (const std::string& text : each.no) {
      INFO(text);
      CHECK_FALSE(takes(*source, nv::Json(text).dump()));
    }
  }
  CHECK_THAT(schema_error(R"({"pattern": "^(?:(?!ab).)*$"})"),
             Catch::Matchers::Contains("repeats a look-ahead without an end"));
  CHECK_THAT(schema_error(R"({"pattern": "a*(?=^b)b"})"),
             Catch::Matchers::Contains("not at the begin of the text"));
}
