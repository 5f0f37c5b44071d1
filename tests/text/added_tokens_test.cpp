#include "nanovllm/text/added_tokens.hpp"

#include <optional>
#include <random>

#include "catch.hpp"

namespace nv = nanovllm;
using Parts = std::vector<std::string>;

namespace {

nv::AddedToken token(nv::TokenId id, std::string content) {
  nv::AddedToken out;
  out.id = id;
  out.content = std::move(content);
  return out;
}

/// "#id" for a token, the text for what is between.
Parts parts(const std::vector<nv::AddedToken>& tokens, std::string_view text) {
  Parts out;
  nv::AddedTokenMatcher(tokens).split(
      text, [&](nv::TokenId id) { out.push_back(nv::concat("#", id)); },
      [&](std::string_view between) { out.emplace_back(between); });
  return out;
}

/// The definition for tokens without flags: try every token at every position.
Parts by_definition(const std::vector<nv::AddedToken>& tokens, std::string_view text) {
  Parts out;
  std::string between;
  for (std::size_t pos = 0; pos < text.size();) {
    const nv::AddedToken* best = nullptr;
    for (const nv::AddedToken& t : tokens) {
      if (text.substr(pos).starts_with(t.content) &&
          (!best || t.content.size() > best->content.size()))
        best = &t;
    }
    if (best == nullptr) {
      between += text[pos++];
      continue;
    }
    if (!between.empty()) out.push_back(std::exchange(between, {}));
    out.push_back(nv::concat("#", best->id));
    pos += best->content.size();
  }
  if (!between.empty()) out.push_back(between);
  return out;
}

}  // namespace

TEST_CASE("Added tokens are found leftmost, then longest, without overlap", "[added_tokens]") {
  const std::vector<nv::AddedToken> tokens = {token(1, "<a>"), token(2, "<a>b"), token(3, "a>"),
                                              token(4, "<")};
  CHECK(parts(tokens, "x<a>y") == Parts{"x", "#1", "y"});
  CHECK(parts(tokens, "<a>b") == Parts{"#2"});
  CHECK(parts(tokens, "<a<a>") == Parts{"#4", "a", "#1"});
  CHECK(parts(tokens, "a>b<") == Parts{"#3", "b", "#4"});
  CHECK(parts(tokens, "").empty());
  CHECK(parts({}, "plain") == Parts{"plain"});
  CHECK(parts({token(1, "<a>")}, "<a><a> <a") == Parts{"#1", "#1", " <a"});
  CHECK_THROWS_AS(parts({token(1, "")}, "x"), nv::LoadError);
}

TEST_CASE("Random token sets cut random text as the definition does", "[added_tokens]") {
  std::mt19937 random(1);
  const auto word = [&](std::size_t max, unsigned letters) {
    std::string out(1 + random() % max, ' ');
    for (char& c : out) c = static_cast<char>("abc\xC3"[random() % letters]);
    return out;
  };
  for (int i = 0; i < 20000; ++i) {
    const unsigned letters = 1 + random() % 3;
    std::vector<nv::AddedToken> tokens;
    for (nv::TokenId id = 0, n = 1 + static_cast<nv::TokenId>(random() % 6); id < n; ++id) {
      const std::string content = word(4, letters);
      const bool known = std::any_of(tokens.begin(), tokens.end(),
                                     [&](const auto& t) { return t.content == content; });
      if (!known) tokens.push_back(token(id, content));
    }
    const std::string text = word(20, letters + 1 > 3 ? 3 : letters + 1);
    REQUIRE(parts(tokens, text) == by_definition(tokens, text));
  }
}

TEST_CASE("single_word refuses a word character on either side", "[added_tokens]") {
  nv::AddedToken t = token(1, "[x]");
  t.single_word = true;
  CHECK(parts({t}, "[x]") == Parts{"#1"});
  CHECK(parts({t}, " [x].") == Parts{" ", "#1", "."});
  for (const char* word :
       {"a", "7", "_", "\u00E9", "\u4F60", "\u0301", "\u200D", "\u24B6", "\u2160", "\U00011F02"}) {
    INFO(word);
    CHECK(parts({t}, std::string(word) + "[x]").size() == 1);
    CHECK(parts({t}, "[x]" + std::string(word)).size() == 1);
  }
  for (const char* other :
       {" ", "-", "\u00BD", "\u2460", "\u20AC", "\u200B", "\U0001F999", "\U0001D2C0"}) {
    INFO(other);
    CHECK(parts({t}, std::string(other) + "[x]" + other) == Parts{other, "#1", other});
  }
  // A refused match is gone, even where a shorter token would fit inside it.
  CHECK(parts({t, token(2, "x")}, "a[x]") == Parts{"a[x]"});
}

TEST_CASE("lstrip and rstrip swallow the white space beside the token", "[added_tokens]") {
  nv::AddedToken left = token(1, "<l>"), right = token(2, "<r>");
  left.lstrip = right.rstrip = true;
  const std::vector<nv::AddedToken> tokens = {left, right, token(3, " <s>")};
  CHECK(parts(tokens, "a \n\t<l> b") == Parts{"a", "#1", " b"});
  CHECK(parts(tokens, "a <r>\u3000\u00A0b") == Parts{"a ", "#2", "b"});
  CHECK(parts(tokens, "<r>  <l>") == Parts{"#2", "#1"});
  CHECK(parts(tokens, "<r>  ") == Parts{"#2"});
  CHECK(parts(tokens, "  <l>") == Parts{"#1"});
  CHECK(parts(tokens, "<r> <s>x") == Parts{"#2", "#3", "x"});  // matched although swallowed
  CHECK(parts({right, token(3, " \n")}, "<r> \n\nx") == Parts{"#2", "#3", "\nx"});
  CHECK(parts({left, right, token(3, " \n")}, "<r> \n\n<l>") == Parts{"#2", "#3", "#1"});
  CHECK(parts(tokens, "a\u180E<l>") == Parts{"a\u180E", "#1"});
}
