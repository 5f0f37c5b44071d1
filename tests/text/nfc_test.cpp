#include "nanovllm/text/nfc.hpp"

#include <chrono>
#include <cstdlib>
#include <random>

#include "catch.hpp"

namespace nv = nanovllm;
namespace utf8 = nanovllm::utf8;
using nv::unicode::contains;
using nv::unicode::kInertIn9;

namespace {

std::string nfc(std::string_view text) {
  std::string storage = "stale";
  return std::string(nv::nfc(text, storage));
}

/// utf8proc's own NFC, by its own version of Unicode.
std::string library_nfc(const std::string& text) {
  auto* bytes = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  const std::string out = reinterpret_cast<char*>(bytes);
  std::free(bytes);
  return out;
}

std::string encoded(const std::vector<char32_t>& code_points) {
  std::string out;
  for (char32_t c : code_points) utf8::append(out, c);
  return out;
}

/// Characters for which normalisation has work to do, and their neighbours.
std::vector<char32_t> interesting() {
  std::vector<char32_t> out = {'a', 'e', 'o', 'A', ' ', 0xE9, 0x1E69, 0x4F60, 0x1F999};
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (nv::NfcClasses::get().is_active(c) && !(c >= 0xF900 && c < 0xFB00) && c < 0x2F800)
      out.push_back(c);
  }
  return out;
}

}  // namespace

TEST_CASE("NFC composes, reorders and leaves alone", "[nfc]") {
  CHECK(nfc("e\u0301") == "\u00E9");
  CHECK(nfc("a\u0323\u0302") == "\u1EAD");
  CHECK(nfc("a\u0302\u0323") == "\u1EAD");
  CHECK(nfc("\u212B") == "\u00C5");
  CHECK(nfc("\u1100\u1161\u11A8") == "\uAC01");
  CHECK(nfc("\uAC00\u11A8") == "\uAC01");
  CHECK(nfc("\u0958") == "\u0915\u093C");  // excluded from composition
  CHECK(nfc("\u0301") == "\u0301");
  CHECK(nfc("") == "");
  for (std::size_t before = 0; before < 20; ++before) {
    const std::string a(before, 'a');
    CHECK(nfc(a + "e\u0300bcdefghijk") == a + "\u00E8bcdefghijk");
    CHECK(nfc(a + "\u02FF\u212Bz\u0300") == a + "\u02FF\u00C5z\u0300");
  }
  CHECK(nfc("x e\u0301 y e\u0301\u0323 z") == "x \u00E9 y \u1EB9\u0301 z");
}

TEST_CASE("Text in NFC is returned as it is, without a copy", "[nfc]") {
  for (const std::string text :
       {"plain text", "caf\u00E9 \u4F60\u597D \uD55C\uAD6D\uC5B4 \U0001F999",
        "\u041C\u043E\u0441\u043A\u0432\u0430"}) {
    std::string storage;
    CHECK(nv::nfc(text, storage).data() == text.data());
  }
}

TEST_CASE("NFC agrees with utf8proc on characters that Unicode 9.0 knows", "[nfc]") {
  const std::vector<char32_t> points = interesting();
  REQUIRE(points.size() > 900);
  std::mt19937 random(1);
  for (char32_t c : points) {
    const std::string text = encoded({c});
    REQUIRE(nfc(text) == library_nfc(text));
  }
  for (int i = 0; i < 200000; ++i) {
    std::vector<char32_t> list(1 + random() % 7);
    for (char32_t& c : list)
      c = random() % 4 == 0 ? points[random() % 9] : points[random() % points.size()];
    const std::string text = encoded(list);
    const std::string once = nfc(text);
    REQUIRE(once == library_nfc(text));
    REQUIRE(nfc(once) == once);
  }
}

TEST_CASE("Code points newer than Unicode 9.0 neither move nor compose nor let others pass",
          "[nfc]") {
  for (const nv::unicode::Range& range : kInertIn9) {
    for (char32_t c = range.first; c <= range.last; ++c) {
      // U+0345 has the highest class and U+0334 the lowest: a mark would move before or after.
      for (const auto& list :
           {std::vector<char32_t>{'a', 0x345, c}, {'a', c, 0x334}, {c, c, 0x301}}) {
        REQUIRE(nfc(encoded(list)) == encoded(list));
      }
      REQUIRE(nfc(encoded({'e', c, 0x301})) == encoded({'e', c, 0x301}));
      REQUIRE(nfc(encoded({'e', 0x301, c})) == encoded({0xE9, c}));
      REQUIRE(nfc(encoded({c, 'e', 0x301})) == encoded({c, 0xE9}));
    }
  }
  CHECK(nfc("\U00011935\U00011930") == "\U00011935\U00011930");  // U+11938 since Unicode 13.0
  CHECK(nfc("\U000105D2\u0307") == "\U000105D2\u0307");          // U+105C9 since Unicode 16.0
}

TEST_CASE("utf8proc's later marks are all on the list of inert code points", "[nfc]") {
  // 814 code points have a combining class in Unicode 9.0; the reference moves just as many.
  std::size_t marks = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class == 0) continue;
    if (!contains(kInertIn9, c)) ++marks;
  }
  CHECK(marks == 814);
}

TEST_CASE("A long run of marks takes no quadratic time", "[nfc]") {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\u0345" : "\u0334";
  const auto start = std::chrono::steady_clock::now();
  const std::string out = nfc(text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(out.size() == text.size());
  CHECK(out.substr(1, 4) == "\u0334\u0334");
  CHECK(seconds.count() < 5);  // 0.02 s where this was written; utf8proc's own takes minutes
}
