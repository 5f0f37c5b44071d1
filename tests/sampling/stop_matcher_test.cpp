#include "nanovllm/sampling/stop_matcher.hpp"

#include <random>

#include "catch.hpp"

using nanovllm::StopMatcher;

namespace {

struct Streamed {
  std::string text;
  bool stopped = false;
};

/// Feeds `text` in the given pieces, up to the stop.
Streamed stream(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Streamed out;
  for (const std::string& piece : pieces) {
    const StopMatcher::Result result = matcher.push(piece);
    out.text += result.text;
    if (result.stopped) return {out.text, true};
  }
  out.text += matcher.flush();
  return out;
}

}  // namespace

TEST_CASE("text without stop strings passes at once", "[stop_matcher]") {
  StopMatcher matcher({"END"}, false);
  CHECK(matcher.push("hello ").text == "hello ");
  CHECK(matcher.push("world").text == "world");
  CHECK(matcher.flush() == "");
}

TEST_CASE("only a tail that may become a stop string is held back", "[stop_matcher]") {
  StopMatcher matcher({"END", "aab"}, false);
  CHECK(matcher.push("xE").text == "x");
  CHECK(matcher.push("x").text == "Ex");
  CHECK(matcher.push("caa").text == "c");
  CHECK(matcher.push("a").text == "a");  // 'aa' of 'aaa' may still become 'aab'
  const auto last = matcher.push("b!");
  CHECK(last.stopped);
  CHECK(last.stop == "aab");
  CHECK(last.text == "");
}

TEST_CASE("the stop string is cut off, or kept when asked for", "[stop_matcher]") {
  CHECK(stream(StopMatcher({"END"}, false), {"abcEN", "Dxyz"}).text == "abc");
  CHECK(stream(StopMatcher({"END"}, true), {"abcEN", "Dxyz"}).text == "abcEND");
}

TEST_CASE("of several stop strings the one that begins first counts", "[stop_matcher]") {
  CHECK(stream(StopMatcher({"cd", "bc"}, true), {"abcd"}).text == "abc");
  CHECK(stream(StopMatcher({"bcd", "b"}, true), {"abcd"}).text == "abcd");
}

TEST_CASE("however the text is cut into pieces, the result is that of a search in the whole",
          "[stop_matcher]") {
  std::mt19937 rng(1);
  const auto letter = [&] { return static_cast<char>('a' + rng() % 2); };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(1 + rng() % 3);
    for (std::string& stop : stops) {
      for (std::size_t n = 1 + rng() % 5; n > 0; --n) stop += letter();
    }
    std::string text;
    std::vector<std::string> pieces;
    for (int i = 0; i < 6; ++i) {
      std::string piece;
      for (std::size_t n = rng() % 4; n > 0; --n) piece += letter();
      text += piece;
      pieces.push_back(piece);
    }
    const Streamed got = stream(StopMatcher(stops, false), pieces);
    // A stop string that ends earlier is found first, even if another begins before it; so the
    // expectation is made prefix by prefix.
    std::size_t seen = 0;
    std::string expected = text;
    bool stopped = false;
    for (const std::string& piece : pieces) {
      seen += piece.size();
      std::size_t first = std::string::npos;
      for (const std::string& stop : stops)
        first = std::min(first, text.substr(0, seen).find(stop));
      if (first != std::string::npos) {
        expected = text.substr(0, first);
        stopped = true;
        break;
      }
    }
    REQUIRE(got.text == expected);
    REQUIRE(got.stopped == stopped);
  }
}

TEST_CASE("a stop string may begin in text in which none may end, but not end there",
          "[stop_matcher]") {
  StopMatcher across({"needle"}, false);
  CHECK(across.pass("hay nee") == "hay ");
  const StopMatcher::Result found = across.push("dle, more");
  CHECK(found.stopped);
  CHECK(found.text.empty());

  // "b" ends in what was passed, where it does not count; "abc" is held back for its beginning.
  StopMatcher shorter({"abc", "b"}, false);
  CHECK(shorter.pass("xab") == "x");
  StopMatcher::Result result = shorter.push("x");
  CHECK_FALSE(result.stopped);
  CHECK(result.text == "abx");
  result = shorter.push("-b");
  CHECK(result.stopped);
  CHECK(result.text == "-");

  StopMatcher whole({"stop"}, false);
  CHECK(whole.pass("stop") == "stop");
  CHECK(whole.pass(" sto") == " ");
  CHECK(whole.flush() == "sto");
}
